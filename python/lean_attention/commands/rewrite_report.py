"""What a rewrite did, for a reader of the console."""

from rich.console import Console
from rich.text import Text

from lean_attention.rewrite.report import RewriteResult, by_reason
from lean_attention.rewrite.verification.result import Verification

__all__ = ["print_result"]


def print_result(console: Console, result: RewriteResult) -> None:
    """Prints what became of the nodes and what the verification found."""
    mark = ("✓", "bold green") if not result.left else ("!", "bold yellow")
    console.print(Text.assemble(mark, " ", result.headline))
    for reason, nodes in by_reason(result.left).items():
        console.print(Text.assemble(("  left stock", "yellow"), f", because {reason}:"))
        for node in nodes:
            console.print(Text(f"    {node}"))
    if result.verification is not None:
        _print_verification(console, result.verification)


def _print_verification(console: Console, found: Verification) -> None:
    if found.obstacle:
        console.print(Text.assemble(("  not verified", "bold yellow"), f": {found.obstacle}"))
        return
    console.print(Text(f"  verified on {found.runs} inputs in ONNX Runtime's CPU provider:"))
    for line in found.lines():
        console.print(Text(f"    {line}", style="" if line.passed else "bold red"))
