"""``lean-attention rewrite``: put the operator into an exported model, or take it out again."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lean_attention.commands.rewrite_arguments import Report, SkipRule, Source, Subfolder
from lean_attention.commands.rewrite_report import ReportFile, print_result
from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite import SCHEDULES, VerificationError
from lean_attention.rewrite import restore as restore_model
from lean_attention.rewrite import rewrite as rewrite_model

__all__ = ["rewrite"]


def rewrite(
    source: Source,
    destination: Annotated[
        Path, typer.Argument(help="The file or folder to write; nothing may be there yet.")
    ],
    schedule: Annotated[
        str, typer.Option(help=f"How the operator cuts its work: {', '.join(SCHEDULES)}.")
    ] = "auto",
    skip_rule: SkipRule = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Turn a rewritten model back into a stock one.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            help="Run both models on random inputs, and write nothing where they differ.",
        ),
    ] = True,
    subfolder: Subfolder = "",
    fuse: Annotated[
        bool,
        typer.Option(
            "--fuse",
            help="First fuse norms and activations into ONNX Runtime's own operators, by "
            "onnxscript.",
        ),
    ] = False,
    report: Report = None,
) -> None:
    """Replace a model's attention by LeanAttention's; the weights are shared, not stored twice."""
    if restore and (schedule != "auto" or skip_rule or subfolder or fuse):
        raise LeanAttentionError(
            "--restore takes no --schedule, --skip-rule, --subfolder or --fuse; it restores every "
            "node of a local model"
        )
    console = Console(soft_wrap=True, highlight=False)
    report_file = ReportFile(report)
    try:
        result = (
            restore_model(source, destination, verify=verify)
            if restore
            else rewrite_model(
                source,
                destination,
                schedule=schedule,
                skip_rules=skip_rule or (),
                verify=verify,
                subfolder=subfolder,
                fuse=fuse,
            )
        )
    except VerificationError as error:
        print_result(console, error.result)
        report_file.write(error.result.to_dict() | {"error": str(error)})
        raise
    print_result(console, result)
    if not result.unchanged:
        console.print(Text.assemble("  wrote ", (str(result.destination), "bold")))
    report_file.write(result.to_dict())
