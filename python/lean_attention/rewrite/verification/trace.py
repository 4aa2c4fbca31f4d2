"""Values followed back through a graph without functions, out of subgraphs and into branches."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

__all__ = ["ancestors", "constant_rows", "made_by", "origin"]

# They pass on their first input's content.
TRANSPARENT = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"}


def origin(value: ir.Value) -> ir.Value:
    """The value that a value is a copy of, in another type or shape at most."""
    while (node := value.producer()) is not None:
        first = node.inputs[0] if node.inputs else None
        if node.domain != "" or node.op_type not in TRANSPARENT or first is None:
            break
        value = first
    return value


def made_by(value: ir.Value) -> tuple[ir.Node, int] | None:
    """The node that computes a value, in the first branch of an If, and which output it is."""
    value = origin(value)
    node, index = value.producer(), value.index()
    if node is None or index is None:
        return None
    for branch in _branches(node):
        return made_by(branch.outputs[index]) or (node, index)
    return node, index


def ancestors(values: Iterable[ir.Value]) -> set[ir.Value]:
    """All values that these were computed from, themselves included."""
    found: set[ir.Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found.add(value)
        node = value.producer()
        if node is not None:
            waiting.extend(each for each in node.inputs if each is not None)
            waiting.extend(output for branch in _branches(node) for output in branch.outputs)
    return found


def constant_rows(value: ir.Value) -> int | None:
    """The first size of a constant table; of one that an If chooses, the larger."""
    shape = _constant_shape(value)
    return shape[0] if shape else None


def _constant_shape(value: ir.Value) -> tuple[int, ...]:
    """The sizes of a constant, the first of which is right after a Reshape too; empty: unknown."""
    value = origin(value)
    node = value.producer()
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    if node is None:
        return ()
    if node.op_type == "Constant" and "value" in node.attributes:
        return tuple(node.attributes["value"].as_tensor().shape.numpy())
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "DequantizeLinear" and first is not None:
        return _constant_shape(first)
    if node.op_type == "Transpose" and first is not None:
        shape = _constant_shape(first)
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
        return tuple(shape[axis] for axis in order) if shape and order else shape[::-1]
    index = value.index() or 0
    shapes = [_constant_shape(branch.outputs[index]) for branch in _branches(node)]
    return max(shapes, default=())


def _branches(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
