"""``lean-attention bench``: the measurements, one command for each."""

import typer

from lean_attention.commands.bench_kernel import kernel

__all__ = ["bench"]

bench = typer.Typer(
    help="Measure, side by side and against the speed of memory.", no_args_is_help=True
)
for command in (kernel,):
    bench.command()(command)


@bench.callback()
def _group() -> None:
    # With a callback, typer keeps a group even of one command.
    pass
