"""The rules over a whole model."""

from collections import Counter
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.function_calls import FunctionCalls
from lean_attention.rewrite.gqa_node import DOMAIN, OPSET_VERSION
from lean_attention.rewrite.graph_walk import Scope, count_ops, node_name, op_name, scopes
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.patterns import describe
from lean_attention.rewrite.report import Changes, NodeReport, by_reason
from lean_attention.rewrite.rules import RULES, Rule
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["apply_rules", "judge"]


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
        return NodeReport(name, op, self.scope.location, self.reason or "", self.rule.name)


class _Judgement:
    """Which nodes of a model the rules are for, and which of these they accept."""

    def __init__(self, model: ir.Model, proto: onnx.ModelProto, options: Options) -> None:
        self.types = ValueTypes(model, proto)
        self.calls = FunctionCalls(model)
        self.found = [
            _Found(scope, node, rule, self._reason(rule, node, options))
            for scope in scopes(model)
            for node in scope.graph
            for rule in RULES
            if rule.match(node)
        ]
        for item in self.found:
            if item.reason is None and item.scope.function is not None:
                accepted = [other.node for other in self.found if other.reason is None]
                item.reason = self.calls.obstacle(item.scope.function, accepted, self.types)

    def _reason(self, rule: Rule, node: ir.Node, options: Options) -> str | None:
        if rule.name in options.skip_rules:
            return f"the rule {rule.name} is skipped, as was asked for"
        return rule.check(node, self.types)


def judge(
    model: ir.Model, proto: onnx.ModelProto, options: Options
) -> tuple[tuple[NodeReport, ...], tuple[NodeReport, ...]]:
    """The nodes that would be replaced, and those that would be left, with reasons.

    Args:
        model: The model, which stays as it is.
        proto: The same model as it was read.
        options: Which rules are skipped.
    """
    return _split(_Judgement(model, proto, options).found)


def apply_rules(model: ir.Model, proto: onnx.ModelProto, options: Options) -> Changes:
    """Replaces every attention node that a rule accepts, in place.

    Args:
        model: The model to change.
        proto: The same model as it was read.
        options: Which rules are skipped, and the operator's ``schedule`` attribute.

    Returns:
        The nodes replaced, and the nodes left with their reasons; none replaced where the model
        holds the operator already.

    Raises:
        LeanAttentionError: No node was replaced, and none was before; the message says what the
            model holds instead.
    """
    before = count_ops(model)
    judgement = _Judgement(model, proto, options)
    replaced, left = _split(judgement.found)
    if not replaced and not any(op.startswith(f"{DOMAIN}::") for op in before):
        raise LeanAttentionError(_why_nothing(before, left, describe(model)))
    for item in judgement.found:
        if item.reason is None:
            item.rule.rewrite(item.node, judgement.types, options.schedule)
            model.graph.opset_imports[DOMAIN] = OPSET_VERSION
            if item.scope.function is not None:
                item.scope.function.opset_imports[DOMAIN] = OPSET_VERSION
                judgement.calls.declare_outputs(item.scope.function, judgement.types)
    # What nodes share stands before the first that was replaced, which need not be the first.
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        graph.sort()
    return Changes(replaced, left, before, count_ops(model))


def _split(found: list[_Found]) -> tuple[tuple[NodeReport, ...], tuple[NodeReport, ...]]:
    reports = [item.report for item in found]
    accepted = tuple(report for report in reports if not report.reason)
    return accepted, tuple(report for report in reports if report.reason)


def _why_nothing(ops: Counter[str], left: tuple[NodeReport, ...], patterns: list[str]) -> str:
    """One line on a model without a node to replace: what it holds instead."""
    reasons = "; ".join(
        f"{len(nodes)} because {reason} ({nodes[0]}{', ...' if len(nodes) > 1 else ''})"
        for reason, nodes in by_reason(left).items()
    )
    if left:
        return f"has no attention node that can be replaced; left stock: {reasons}"
    if patterns:
        return f"has no attention node that can be replaced; it has {'; '.join(patterns)}"
    attention = [op for op in ops if "attention" in op.lower()]
    seen = attention or [op for op, _ in ops.most_common(3)]
    return (
        "has no com.microsoft::GroupQueryAttention node, so there is nothing to rewrite; among its "
        f"{ops.total()} nodes are {', '.join(f'{ops[op]} {op}' for op in seen)}"
    )
