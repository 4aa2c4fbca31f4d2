"""The rules over a whole model."""

from collections import Counter
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.function_calls import FunctionCalls
from lean_attention.rewrite.graph_walk import Scope, node_name, op_name, scopes
from lean_attention.rewrite.report import NodeReport, by_reason
from lean_attention.rewrite.rules import RULES, Rule
from lean_attention.rewrite.rules.group_query_attention import DOMAIN, OPSET_VERSION
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["apply_rules"]


@dataclass
class _Found:
    """A node that a rule is for, and why it cannot be replaced, if so."""

    scope: Scope
    node: ir.Node
    rule: Rule
    reason: str | None

    @property
    def report(self) -> NodeReport:
        name, op = node_name(self.node), op_name(self.node)
        return NodeReport(name, op, self.scope.location, self.reason or "")


def apply_rules(
    model: ir.Model, proto: onnx.ModelProto, *, schedule: str
) -> tuple[tuple[NodeReport, ...], tuple[NodeReport, ...]]:
    """Replaces every attention node that a rule accepts, in place.

    Args:
        model: The model to change.
        proto: The same model as it was read.
        schedule: The operator's ``schedule`` attribute.

    Returns:
        The nodes replaced, and the nodes left with their reasons.

    Raises:
        LeanAttentionError: No node was replaced; the message says what the model holds instead.
    """
    types = ValueTypes(model, proto)
    calls = FunctionCalls(model)
    found = [
        _Found(scope, node, rule, rule.check(node, types))
        for scope in scopes(model)
        for node in scope.graph
        for rule in RULES
        if rule.match(node)
    ]
    for item in found:
        if item.reason is None and item.scope.function is not None:
            accepted = [other.node for other in found if other.reason is None]
            item.reason = calls.obstacle(item.scope.function, accepted, types)
    if all(item.reason for item in found):
        raise LeanAttentionError(_why_nothing(model, [item.report for item in found]))

    reports = [item.report for item in found]
    for item in found:
        if item.reason is None:
            item.rule.rewrite(item.node, types, schedule)
            model.graph.opset_imports[DOMAIN] = OPSET_VERSION
            if item.scope.function is not None:
                item.scope.function.opset_imports[DOMAIN] = OPSET_VERSION
                calls.declare_outputs(item.scope.function, types)
    replaced = tuple(report for report in reports if not report.reason)
    return replaced, tuple(report for report in reports if report.reason)


def _why_nothing(model: ir.Model, left: list[NodeReport]) -> str:
    """One line on a model without a node to replace: what it holds instead."""
    ops = Counter(op_name(node) for scope in scopes(model) for node in scope.graph)
    reasons = "; ".join(
        f"{len(nodes)} because {reason} ({nodes[0]}{', ...' if len(nodes) > 1 else ''})"
        for reason, nodes in by_reason(left).items()
    )
    done = sum(count for op, count in ops.items() if op.startswith(f"{DOMAIN}::"))
    if done:
        message = f"is already rewritten: {done} of its nodes are LeanAttention's"
        return f"{message}; left stock: {reasons}" if left else message
    if left:
        return f"has no attention node that can be replaced; left stock: {reasons}"
    attention = [op for op in ops if "attention" in op.lower()]
    seen = attention or [op for op, _ in ops.most_common(3)]
    return (
        "has no com.microsoft::GroupQueryAttention node, so there is nothing to rewrite; among its "
        f"{ops.total()} nodes are {', '.join(f'{ops[op]} {op}' for op in seen)}"
    )
