"""What a rewrite did, or would do, for a reader of the console or as a JSON file."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite import Inspection, RewriteResult
from lean_attention.rewrite.report import by_reason
from lean_attention.rewrite.verification.result import Verification

__all__ = ["ReportFile", "print_inspection", "print_result"]


class ReportFile:
    """A JSON file that is written in the end, or not at all.

    Args:
        path: Where to write it; None: nowhere.

    Raises:
        LeanAttentionError: It cannot be written there; the message says why.
    """

    def __init__(self, path: Path | None) -> None:
        """Checks the path, so that no work is done in vain."""
        self._path = path
        if path is None:
            return
        if path.exists() or path.is_symlink():
            raise LeanAttentionError(f"{path} exists already; remove it or name another report")
        if not path.absolute().parent.is_dir():
            raise LeanAttentionError(f"{path.parent} is no folder; make it, or name another report")

    def write(self, content: dict[str, object]) -> None:
        """Writes the report."""
        if self._path is None:
            return
        text = f"{json.dumps(content, indent=2)}\n"
        try:
            file = self._path.open("x", encoding="utf-8")
            try:
                with file:
                    file.write(text)
            except BaseException:
                self._path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise LeanAttentionError(
                f"the report {self._path} cannot be written ({error.strerror or error})"
            ) from error


def print_result(console: Console, result: RewriteResult) -> None:
    """Prints what became of the nodes, the operators' counts, and the verification."""
    mark = ("✓", "bold green") if not result.left else ("!", "bold yellow")
    console.print(Text.assemble(mark, " ", result.headline))
    for reason, nodes in by_reason(result.left).items():
        console.print(Text.assemble(("  left stock", "yellow"), f", because {reason}:"))
        for node in nodes:
            console.print(Text(f"    {node}"))
    if result.unchanged:
        return
    _print_operators(console, result)
    if result.verification is not None:
        _print_verification(console, result.verification)


def print_inspection(console: Console, found: Inspection) -> None:
    """Prints for each attention node what would be done, or why nothing."""
    total = sum(found.operators.values())
    console.print(Text(f"{found.path}: {total} nodes"))
    if found.ours:
        which = "1 node is" if found.ours == 1 else f"{found.ours} nodes are"
        console.print(Text(f"  ✓ {which} LeanAttention's already"))
    for node in found.accepted:
        console.print(Text.assemble(("  ✓ ", "bold green"), f"{node}: {node.op} would be replaced"))
    for node in found.left:
        console.print(
            Text.assemble(
                ("  ! ", "bold yellow"), f"{node}: {node.op} would stay, because {node.reason}"
            )
        )
    for pattern in found.patterns:
        console.print(Text(f"  it has {pattern}"))
    if not (found.ours or found.accepted or found.left or found.patterns):
        console.print(Text("  no attention node that a rule is for; its operators:"))
        for op, count in sorted(found.operators.items(), key=lambda item: -item[1]):
            console.print(Text(f"    {count} {op}"))


def _print_operators(console: Console, result: RewriteResult) -> None:
    table = Table(box=None, padding=(0, 2))
    table.add_column("operator")
    for column in ("before", "after"):
        table.add_column(column, justify="right")
    for op, counts in result.operators.items():
        changed = counts["before"] != counts["after"]
        numbers = (str(counts["before"]), str(counts["after"]))
        table.add_row(Text(op), *numbers, style="bold" if changed else "")
    console.print(table)


def _print_verification(console: Console, found: Verification) -> None:
    if found.obstacle:
        console.print(Text.assemble(("  not verified", "bold yellow"), f": {found.obstacle}"))
        return
    console.print(Text(f"  verified on {found.runs} inputs in ONNX Runtime's CPU provider:"))
    for line in found.lines():
        console.print(Text(f"    {line}", style="" if line.passed else "bold red"))
    for refusal in found.refused:
        console.print(Text.assemble("    ", ("not compared", "yellow"), f": {refusal}"))
