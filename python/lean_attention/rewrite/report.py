"""What a rewrite did, node by node."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NodeReport", "RewriteResult", "by_reason"]


@dataclass(frozen=True)
class NodeReport:
    """One attention node of the source.

    Attributes:
        name: The node's name; a node without one is named by its first output.
        op: Domain and operator in the source, as ``com.microsoft::GroupQueryAttention``.
        location: ``graph``, a subgraph as ``graph/NODE.ATTRIBUTE``, or ``function DOMAIN::NAME``.
        reason: Why the node was left as it is; empty for a replaced one.
    """

    name: str
    op: str
    location: str
    reason: str = ""

    def __str__(self) -> str:
        """The name, and the location of a node outside the main graph."""
        return self.name if self.location == "graph" else f"{self.name} in {self.location}"


@dataclass(frozen=True)
class RewriteResult:
    """The outcome of a rewrite; ``str()`` of it is a summary to read.

    Attributes:
        source: The model file or folder that was read.
        destination: The one that was written.
        replaced: The nodes that became LeanAttention's, in graph order.
        left: The nodes that stayed stock, each with its reason.
    """

    source: Path
    destination: Path
    replaced: tuple[NodeReport, ...]
    left: tuple[NodeReport, ...]

    @property
    def headline(self) -> str:
        """How many nodes of each operator were replaced, on one line."""
        nodes = (*self.replaced, *self.left)
        counts = []
        for op in dict.fromkeys(node.op for node in nodes):
            total = sum(node.op == op for node in nodes)
            done = sum(node.op == op for node in self.replaced)
            counts.append(f"{done} of {total} {op.split('::')[-1]} nodes replaced")
        return ", ".join(counts)

    def __str__(self) -> str:
        """The headline, then a paragraph for each reason to leave nodes."""
        lines = [f"{self.headline}: {self.destination}"]
        for reason, nodes in by_reason(self.left).items():
            lines.append(f"left stock, because {reason}:")
            lines.extend(f"  {node}" for node in nodes)
        return "\n".join(lines)


def by_reason(nodes: Iterable[NodeReport]) -> dict[str, list[NodeReport]]:
    """Groups nodes by the reason why they were left, in order of appearance."""
    groups: dict[str, list[NodeReport]] = {}
    for node in nodes:
        groups.setdefault(node.reason, []).append(node)
    return groups
