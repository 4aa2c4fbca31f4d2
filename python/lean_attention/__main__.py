"""The console command ``lean-attention``; also ``python -m lean_attention``."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lean_attention._version import __version__
from lean_attention.commands.bench import bench
from lean_attention.commands.doctor import doctor
from lean_attention.commands.export import export
from lean_attention.commands.generate import generate
from lean_attention.commands.inspect import inspect
from lean_attention.commands.rewrite import rewrite
from lean_attention.errors import LeanAttentionError

__all__ = ["app", "main"]

app = typer.Typer(
    name="lean-attention",
    help="LeanAttention for ONNX Runtime: export, rewrite, run and measure models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    pass


for command in (doctor, export, inspect, rewrite, generate):
    app.command()(command)
app.add_typer(bench, name="bench")

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Runs the command line; an error the user can mend is one line and exit status 1.

    SIGTERM and SIGHUP end it as Ctrl-C does, with nothing half-written, and status 128 + signal.
    """
    for number in ENDING_SIGNALS:
        # A signal that the caller ignores, as nohup does, stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        app()
    except LeanAttentionError as error:
        Console(stderr=True, soft_wrap=True).print(
            Text.assemble(("error:", "bold red"), " ", str(error))
        )
        sys.exit(1)


def _end(number: int, frame: FrameType | None) -> None:
    # The next one must not cut the cleaning up short.
    for each in ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
