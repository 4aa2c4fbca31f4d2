"""What a rewrite is asked to do."""

from dataclasses import dataclass

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.rules import RULES
from lean_attention.rewrite.rules.group_query_attention import SCHEDULES

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What a rewrite is asked to do.

    Attributes:
        schedule: The operator's ``schedule`` attribute.
        skip_rules: Names of rules that are not applied.
        verify: Whether source and result are run and compared before anything is written.
        fuse: Whether onnxscript fuses nodes around attention first.
        restore: Whether the operator's nodes become stock ones, in place of the other way round.

    Raises:
        LeanAttentionError: There is no such schedule or rule.
    """

    schedule: str = "auto"
    skip_rules: frozenset[str] = frozenset()
    verify: bool = True
    restore: bool = False
    fuse: bool = False

    def __post_init__(self) -> None:
        """Checks the names."""
        if self.schedule not in SCHEDULES:
            raise LeanAttentionError(
                f"there is no schedule {self.schedule!r}; choose one of {', '.join(SCHEDULES)}"
            )
        names = [rule.name for rule in RULES]
        for name in sorted(self.skip_rules.difference(names)):
            raise LeanAttentionError(f"there is no rule {name!r}; the rules are {', '.join(names)}")
