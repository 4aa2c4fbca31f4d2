"""``lean-attention inspect``: what a rewrite would do to a model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lean_attention.commands.rewrite_report import ReportFile, print_inspection
from lean_attention.rewrite import inspect as inspect_model

__all__ = ["inspect"]


def inspect(
    source: Annotated[
        str,
        typer.Argument(
            help="A model file, a model folder of onnxruntime-genai, or one on the Hugging Face "
            "Hub: org/name, org/name/sub/folder, either with @revision."
        ),
    ],
    skip_rule: Annotated[
        list[str] | None, typer.Option(help="A rule not to apply; may be given again.")
    ] = None,
    subfolder: Annotated[str, typer.Option(help="A folder within the source.")] = "",
    report: Annotated[
        Path | None, typer.Option(help="A JSON file to write, with all that is printed.")
    ] = None,
) -> None:
    """Print which attention nodes a rewrite would replace, why not the others, and what to do."""
    report_file = ReportFile(report)
    found = inspect_model(source, skip_rules=skip_rule or (), subfolder=subfolder)
    print_inspection(Console(soft_wrap=True, highlight=False), found)
    report_file.write(found.to_dict())
