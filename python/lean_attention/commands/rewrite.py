"""``lean-attention rewrite``: put the operator into an exported model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lean_attention.rewrite import SCHEDULES
from lean_attention.rewrite import rewrite as rewrite_model
from lean_attention.rewrite.report import by_reason

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
) -> None:
    """Replace a model's attention by LeanAttention's; the weights are shared, not stored twice."""
    result = rewrite_model(source, destination, schedule=schedule)
    console = Console(soft_wrap=True, highlight=False)
    mark = ("✓", "bold green") if not result.left else ("!", "bold yellow")
    console.print(Text.assemble(mark, " ", result.headline))
    for reason, nodes in by_reason(result.left).items():
        console.print(Text.assemble(("  left stock", "yellow"), f", because {reason}:"))
        for node in nodes:
            console.print(Text(f"    {node}"))
    console.print(Text.assemble("  wrote ", (str(result.destination), "bold")))
