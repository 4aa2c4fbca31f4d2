"""Names attention that a model has written out in small nodes, whether a rule is for it or not."""

from collections import Counter, deque
from collections.abc import Callable, Iterable

import onnx_ir as ir

from lean_attention.rewrite.graph_walk import scopes

__all__ = ["BUILDER", "describe"]

BUILDER = (
    "python -m onnxruntime_genai.models.builder -i MODEL -o FOLDER -p int4 -e cpu "
    "--extra_options windowed_kv_cache=false"
)
"""The exporter whose models need no guessing: GroupQueryAttention with a cache."""

PRODUCTS = ("MatMul", "Gemm", "Einsum", "FusedMatMul")
BETWEEN = (
    "Add", "Cast", "Clip", "Div", "Dropout", "Identity", "IsNaN", "Max", "Mul", "Reshape", "Sub",
    "Transpose", "Where",
)  # fmt: skip
MAX_STEPS = 6


def describe(model: ir.Model) -> list[str]:
    """What attention a model holds as products around a softmax.

    Args:
        model: Any model; it stays as it is.

    Returns:
        A line for each way in which it is written: how often, its nodes, who writes it so, and the
        exporter that writes GroupQueryAttention instead. Empty where there is none.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for scope in scopes(model):
        for node in scope.graph:
            if node.op_type == "Softmax" and (steps := _steps(node)):
                counts[steps] += 1
    advice = f"to have GroupQueryAttention instead: {BUILDER}"
    if counts and not _takes_caches(model):
        advice = f"without a cache, which a model that generates needs; {advice}"
    return [
        f"{count} x {' → '.join(steps)}, as optimum's exporter and torch.onnx before operator set "
        f"23 write attention; {advice}"
        for steps, count in counts.items()
    ]


def _steps(softmax: ir.Node) -> tuple[str, ...]:
    """The operators from the product of queries and keys to that with the values."""
    above, below = _path(softmax, _producers), _path(softmax, _users)
    if above is None or below is None:
        return ()
    return (*reversed(above), "Softmax", *below)


def _path(start: ir.Node, following: Callable[[ir.Node], Iterable[ir.Node]]) -> list[str] | None:
    """The shortest way to a product through nodes that may stand in between."""
    ways: deque[tuple[ir.Node, list[str]]] = deque([(start, [])])
    while ways:
        node, passed = ways.popleft()
        for other in following(node):
            way = [*passed, other.op_type]
            if other.op_type in PRODUCTS:
                return way
            if other.op_type in BETWEEN and len(way) < MAX_STEPS:
                ways.append((other, way))
    return None


def _producers(node: ir.Node) -> list[ir.Node]:
    above = (value.producer() for value in node.inputs if value is not None)
    return [producer for producer in above if producer is not None]


def _users(node: ir.Node) -> list[ir.Node]:
    return [user for output in node.outputs for user, _ in output.uses()]


def _takes_caches(model: ir.Model) -> bool:
    return any(
        value.shape is not None
        and value.shape.rank() == 4
        and value.dtype is not None
        and value.dtype.is_floating_point()
        for value in model.graph.inputs
    )
