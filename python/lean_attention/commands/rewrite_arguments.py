"""Arguments that ``lean-attention inspect`` and ``rewrite`` share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from lean_attention.rewrite import RULES

__all__ = ["Report", "SkipRule", "Source", "Subfolder"]

Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="A model file, a model folder of onnxruntime-genai, or one on the Hugging Face "
        "Hub: org/name, org/name/sub/folder, either with @revision."
    ),
]
SkipRule: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A rule not to apply; may be given again. Rules: "
        f"{', '.join(rule.name for rule in RULES)}."
    ),
]
Subfolder: TypeAlias = Annotated[str, typer.Option(help="A folder within the source.")]
Report: TypeAlias = Annotated[
    Path | None, typer.Option(help="A JSON file to write, with all that is printed.")
]
