"""Every graph of a model, and where it lies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["Scope", "count_ops", "node_name", "op_name", "scopes"]


@dataclass(frozen=True)
class Scope:
    """A graph of a model.

    Attributes:
        graph: The main graph, a subgraph of a node, or the body of a function.
        location: ``graph``, ``graph/NODE.ATTRIBUTE`` or ``function DOMAIN::NAME``, nested at will.
        function: The function whose body this is or is part of; None in the main graph.
    """

    graph: ir.Graph
    location: str
    function: ir.Function | None


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Yields the main graph, then its subgraphs, then each function with its subgraphs."""
    yield from _nested(Scope(model.graph, "graph", None))
    for function in model.functions.values():
        name = f"function {function.domain}::{function.name}"
        yield from _nested(Scope(function.graph, name, function))


def node_name(node: ir.Node) -> str:
    """The node's name, or its first output's where it has none."""
    return node.name or f"the unnamed node of {node.outputs[0].name!r}"


def op_name(node: ir.Node) -> str:
    """Domain and operator, as ``com.microsoft::GroupQueryAttention``."""
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"


def count_ops(model: ir.Model) -> Counter[str]:
    """How many nodes of each operator a model has, in subgraphs and functions too."""
    return Counter(op_name(node) for scope in scopes(model) for node in scope.graph)


def _nested(scope: Scope) -> Iterator[Scope]:
    yield scope
    for node in scope.graph:
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                graphs = [attribute.as_graph()]
            elif attribute.type == ir.AttributeType.GRAPHS:
                graphs = list(attribute.as_graphs())
            else:
                continue
            location = f"{scope.location}/{node_name(node)}.{attribute.name}"
            for graph in graphs:
                yield from _nested(Scope(graph, location, scope.function))
