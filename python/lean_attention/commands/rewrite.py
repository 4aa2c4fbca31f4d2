"""``lean-attention rewrite``: put the operator into an exported model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lean_attention.commands.rewrite_report import print_result
from lean_attention.rewrite import SCHEDULES, VerificationError
from lean_attention.rewrite import rewrite as rewrite_model

__all__ = ["rewrite"]


def rewrite(
    source: Annotated[
        Path, typer.Argument(help="A model file, or a model folder of onnxruntime-genai.")
    ],
    destination: Annotated[
        Path, typer.Argument(help="The file or folder to write; nothing may be there yet.")
    ],
    schedule: Annotated[
        str, typer.Option(help=f"How the operator cuts its work: {', '.join(SCHEDULES)}.")
    ] = "auto",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            help="Run both models on random inputs, and write nothing where they differ.",
        ),
    ] = True,
) -> None:
    """Replace a model's attention by LeanAttention's; the weights are shared, not stored twice."""
    console = Console(soft_wrap=True, highlight=False)
    try:
        result = rewrite_model(source, destination, schedule=schedule, verify=verify)
    except VerificationError as error:
        print_result(console, error.result)
        raise
    print_result(console, result)
    if not result.unchanged:
        console.print(Text.assemble("  wrote ", (str(result.destination), "bold")))
