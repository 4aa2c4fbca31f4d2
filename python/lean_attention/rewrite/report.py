"""What a rewrite did, node by node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lean_attention._version import __version__
from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.verification.result import Verification

__all__ = ["Changes", "NodeReport", "RewriteResult", "VerificationError", "by_reason"]


@dataclass(frozen=True)
class NodeReport:
    """One attention node of the source.

    Attributes:
        name: The node's name; a node without one is named by its first output.
        op: Domain and operator in the source, as ``com.microsoft::GroupQueryAttention``.
        location: ``graph``, a subgraph as ``graph/NODE.ATTRIBUTE``, or ``function DOMAIN::NAME``.
        reason: Why the node was left as it is, and after a semicolon what to do about it; empty
            for a replaced one.
        rule: The name of the rule that the node is for.
    """

    name: str
    op: str
    location: str
    reason: str = ""
    rule: str = ""

    def to_dict(self, outcome: str) -> dict[str, str]:
        """The node, and what became of it, as JSON takes it."""
        return {
            "name": self.name,
            "op": self.op,
            "location": self.location,
            "outcome": outcome,
            "rule": self.rule,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        """The name, and the location of a node outside the main graph."""
        return self.name if self.location == "graph" else f"{self.name} in {self.location}"


@dataclass(frozen=True)
class Changes:
    """What became of a model.

    Attributes:
        replaced: The nodes that became LeanAttention's (or, restored, stock), in graph order.
        left: The nodes that stayed, each with its reason.
        before: How many nodes of each operator the source has, subgraphs and functions included.
        after: How many the result has.
    """

    replaced: tuple[NodeReport, ...] = ()
    left: tuple[NodeReport, ...] = ()
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RewriteResult(Changes):
    """The outcome of a rewrite; ``str()`` of it is a summary to read.

    Attributes:
        source: The model file or folder that was read.
        destination: The one that was written.
        done: What was done to the nodes: ``replaced`` or ``restored``.
        unchanged: Why there was nothing to do, so that nothing was written; empty where there was.
        verification: What running both models showed; None where that was not asked for.
    """

    source: Path = Path()
    destination: Path = Path()
    done: str = "replaced"
    unchanged: str = ""
    verification: Verification | None = None

    @property
    def operators(self) -> dict[str, dict[str, int]]:
        """Nodes of each operator ``before`` and ``after``, the most frequent operator first."""
        ops = {*self.before, *self.after}
        counts = {op: (self.before.get(op, 0), self.after.get(op, 0)) for op in ops}
        order = sorted(ops, key=lambda op: (-max(counts[op]), op))
        return {op: dict(zip(("before", "after"), counts[op], strict=True)) for op in order}

    @property
    def headline(self) -> str:
        """How many nodes of each operator were replaced, on one line."""
        if self.unchanged:
            return f"{self.source} {self.unchanged}: nothing to do, and nothing was written"
        nodes = (*self.replaced, *self.left)
        counts = []
        for op in dict.fromkeys(node.op for node in nodes):
            total = sum(node.op == op for node in nodes)
            done = sum(node.op == op for node in self.replaced)
            counts.append(f"{done} of {total} {op.split('::')[-1]} nodes {self.done}")
        return ", ".join(counts)

    def to_dict(self) -> dict[str, object]:
        """Everything, as JSON takes it."""
        return {
            "lean_attention": __version__,
            "source": str(self.source),
            "destination": str(self.destination),
            "unchanged": self.unchanged,
            "operators": self.operators,
            "nodes": [
                *(node.to_dict(self.done) for node in self.replaced),
                *(node.to_dict("left") for node in self.left),
            ],
            "verification": None if self.verification is None else self.verification.to_dict(),
        }

    def __str__(self) -> str:
        """The headline, a paragraph for each reason to leave nodes, and the verification."""
        lines = [self.headline if self.unchanged else f"{self.headline}: {self.destination}"]
        for reason, nodes in by_reason(self.left).items():
            lines.append(f"left stock, because {reason}:")
            lines.extend(f"  {node}" for node in nodes)
        if self.verification is not None:
            lines.append(str(self.verification))
        return "\n".join(lines)


class VerificationError(LeanAttentionError):
    """The rewritten model does not compute what its source computes; nothing was written.

    Attributes:
        result: What would have been written, with the verification that failed.
    """

    def __init__(self, message: str, result: RewriteResult) -> None:
        """Keeps the result beside the message."""
        super().__init__(message)
        self.result = result


def by_reason(nodes: Iterable[NodeReport]) -> dict[str, list[NodeReport]]:
    """Groups nodes by the reason why they were left, in order of appearance."""
    groups: dict[str, list[NodeReport]] = {}
    for node in nodes:
        groups.setdefault(node.reason, []).append(node)
    return groups
