"""The rewriting rules: one file for each kind of node."""

from typing import Protocol

import onnx_ir as ir

from lean_attention.rewrite.rules.group_query_attention import GroupQueryAttention
from lean_attention.rewrite.rules.left_stock import LeftStock
from lean_attention.rewrite.rules.multi_head_attention import MultiHeadAttention
from lean_attention.rewrite.rules.onnx_attention import OnnxAttention
from lean_attention.rewrite.rules.softmax_attention import SoftmaxAttention
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["RULES", "Rule"]


class Rule(Protocol):
    """Replaces one kind of attention node.

    Attributes:
        name: Of the rule, as ``--skip-rule`` takes it.
    """

    name: str

    def match(self, node: ir.Node) -> bool:
        """Whether this rule is the one for the node."""

    def check(self, node: ir.Node, types: ValueTypes) -> str | None:
        """Why the node must be left as it is; None where it can be replaced.

        A clause, and after a semicolon what a user can do about it.
        """

    def rewrite(self, node: ir.Node, types: ValueTypes, schedule: str) -> None:
        """Replaces a node that passed the check, in place."""


RULES: tuple[Rule, ...] = (
    GroupQueryAttention(),
    MultiHeadAttention(),
    OnnxAttention(),
    SoftmaxAttention(),
    LeftStock(),
)
