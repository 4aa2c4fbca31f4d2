"""``lean-attention inspect``: what a rewrite would do to a model."""

from rich.console import Console

from lean_attention.commands.rewrite_arguments import Report, SkipRule, Source, Subfolder
from lean_attention.commands.rewrite_report import ReportFile, print_inspection
from lean_attention.rewrite import inspect as inspect_model

__all__ = ["inspect"]


def inspect(
    source: Source,
    skip_rule: SkipRule = None,
    subfolder: Subfolder = "",
    report: Report = None,
) -> None:
    """Print which attention nodes a rewrite would replace, why not the others, and what to do."""
    report_file = ReportFile(report)
    found = inspect_model(source, skip_rules=skip_rule or (), subfolder=subfolder)
    print_inspection(Console(soft_wrap=True, highlight=False), found)
    report_file.write(found.to_dict())
