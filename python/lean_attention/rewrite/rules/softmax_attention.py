"""MatMul, Softmax, MatMul over a cache become LeanGroupQueryAttention.

optimum's exporter writes attention so, and torch.onnx before operator set 23. The nodes are found
by their Softmax; what they compute is learnt by running them.
"""

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from lean_attention.rewrite.cache_update import LAYOUT_OPS, CacheUpdate, find_update
from lean_attention.rewrite.decode_form import (
    BUILDER,
    DIFFERENT_VALUES,
    DecodeForm,
    DecodeFormRule,
    RefusalError,
    check_types,
    mask_of,
)
from lean_attention.rewrite.probe import Case, Probe, ProbeError, numbers_of
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["SoftmaxAttention", "product_with_values"]

SCALINGS = ("Mul", "Div")
# Two products in float32, against one in float64.
TOLERANCE = 1e-5


class SoftmaxAttention(DecodeFormRule):
    """The rule for attention that is written out."""

    name = "softmax-attention"

    def match(self, node: ir.Node) -> bool:
        """Whether the node is a Softmax over scores, whose result is multiplied with values."""
        return (
            _is(node, "Softmax")
            and product_with_values(node) is not None
            and _product(node.inputs[0]) is not None
        )

    def read(self, node: ir.Node, types: ValueTypes) -> DecodeForm:
        """What the nodes compute."""
        return _read(node, types)

    def last(self, node: ir.Node) -> ir.Node:
        """The product with the values."""
        last = product_with_values(node)
        assert last is not None
        return last


def product_with_values(softmax: ir.Node) -> ir.Node | None:
    """The MatMul of a Softmax's result with the values; None where it is put to another use.

    Rows without any key are NaN; exporters may replace these by zeros before the product.
    """
    probabilities = softmax.outputs[0]
    users = {user for user, _ in probabilities.uses()}
    wheres = [user for user in users if _is(user, "Where")]
    if len(users) == 2 and len(wheres) == 1:
        (where,) = wheres
        condition = where.inputs[0].producer() if where.inputs[0] is not None else None
        replaced = where.inputs[1]
        if (
            condition is None
            or not _is(condition, "IsNaN")
            or condition.inputs[0] is not probabilities
            or where.inputs[2] is not probabilities
            or replaced is None
            or _number(replaced) != 0
        ):
            return None
        probabilities = where.outputs[0]
        users = {user for user, _ in probabilities.uses()}
    if len(users) != 1:
        return None
    (user,) = users
    is_product = _is(user, "MatMul") and user.inputs[0] is probabilities
    return user if is_product and not probabilities.is_graph_output() else None


def _read(softmax: ir.Node, types: ValueTypes) -> DecodeForm:
    if softmax.attributes.get_int("axis", _default_axis(softmax)) not in (-1, 3):
        raise RefusalError("its softmax is not over the keys")
    last, scores = product_with_values(softmax), softmax.inputs[0]
    product, mask = _product(scores) or (None, None)
    assert last is not None
    assert product is not None
    if mask is None:
        raise RefusalError("it attends in both directions (no mask)")
    query, keys, values = product.inputs[0], product.inputs[1], last.inputs[1]
    if query is None or keys is None or values is None:
        raise RefusalError("one of its products has no operand")
    query = next(_without_scalings(query))
    found = next(
        ((value, update) for value in _without_scalings(keys) if (update := find_update(value))),
        None,
    )
    value_update = find_update(values)
    if found is None or value_update is None:
        raise RefusalError(f"it reads no cache that the model is given; {BUILDER}")
    key, update = found
    if update.sizes != value_update.sizes or update.num_heads != value_update.num_heads:
        raise RefusalError(DIFFERENT_VALUES)
    if query.shape is not None and len(query.shape) != 4:
        raise RefusalError("its query is not [batch, heads, tokens, head_size]")
    dtype = check_types(types, update.past, update.new, query, last.outputs[0])
    rows = {u.new: (u.kv_num_heads, u.head_size) for u in (update, value_update)}
    return DecodeForm(
        query,
        update.new,
        value_update.new,
        update.past,
        value_update.past,
        update.present,
        value_update.present,
        last.outputs[0],
        mask_of(mask, dtype, types, causal=False, rows=rows),
        update.num_heads,
        update.kv_num_heads,
        dtype,
        _scale(product.outputs[0], query, key, update),
        reads=(key, values),
    )


def _default_axis(softmax: ir.Node) -> int:
    """The axis of a Softmax that names none: before operator set 13 the second and all after it."""
    graph = softmax.graph
    version = None if graph is None else graph.opset_imports.get("")
    return -1 if version is not None and version >= 13 else 1


def _product(scores: ir.Value | None) -> tuple[ir.Node, ir.Value | None] | None:
    """The MatMul of queries and keys under a Softmax, and the mask that is added to it."""
    node = scores.producer() if scores is not None else None
    if node is None or _is(node, "MatMul"):
        return None if node is None else (node, None)
    if not _is(node, "Add"):
        return None
    for product, mask in (node.inputs, node.inputs[::-1]):
        above = product.producer() if product is not None else None
        if above is not None and _is(above, "MatMul"):
            return above, mask
    return None


def _is(node: ir.Node, op: str) -> bool:
    """Whether a node is that operator of ONNX."""
    return node.domain in ("", "ai.onnx") and node.op_type == op


def _without_scalings(value: ir.Value) -> Iterator[ir.Value]:
    """What a factor is made of, outermost first, without multiplications by a number."""
    while True:
        node = value.producer()
        if node is not None and node.op_type in SCALINGS:
            operands = [v for v in node.inputs if v is not None and _number(v) is None]
            if len(operands) == 1:
                value = operands[0]
                continue
        yield value
        if node is None or node.op_type not in LAYOUT_OPS or node.inputs[0] is None:
            return
        value = node.inputs[0]


def _number(value: ir.Value) -> float | None:
    """A constant of one element."""
    constant = ir.convenience.get_const_tensor(value)
    numbers = None if constant is None or constant.size != 1 else numbers_of(constant)
    return None if numbers is None else float(numbers.item())


def _scale(scores: ir.Value, query: ir.Value, key: ir.Value, update: CacheUpdate) -> float:
    """The factor of the scores, from running them on random queries and keys.

    Raises:
        RefusalError: They are not the product of queries and keys times a number.
    """
    rng = np.random.default_rng(0)
    factors = []
    try:
        probe = Probe([scores], given=(query, key))
        for past, new, batch in ((0, 3, 2), (5, 1, 2), (4, 3, 1)):
            case = Case(past, new, np.ones((batch, past + new), np.int64))
            q, k = (
                rng.normal(size=(batch, update.num_heads, rows, update.head_size)).astype(
                    np.float32
                )
                for rows in (new, case.total)
            )
            (found,) = probe.run(case, {query: q, key: k})
            expected = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3)
            if found.shape != expected.shape:
                raise RefusalError("its scores are not the product of queries and keys")
            factors.append(float((found * expected).sum() / (expected**2).sum()))
            error = np.abs(found - factors[-1] * expected).max()
            if not error <= TOLERANCE * np.abs(found).max():
                raise RefusalError("its scores are not the product of queries and keys")
    except ProbeError as error:
        raise RefusalError(f"its scores are not known: {error}; {BUILDER}") from error
    if max(factors) - min(factors) > TOLERANCE * abs(factors[0]):
        raise RefusalError("its scores have no fixed scale")
    if not np.float32(factors[0]):
        raise RefusalError("its scores are all 0")
    usual = 1 / math.sqrt(update.head_size)
    return usual if abs(factors[0] / usual - 1) < TOLERANCE else factors[0]
