"""A cache that the graph itself appends to, outside the attention node."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lean_attention.rewrite.probe import Case, Probe, ProbeError, static_size

__all__ = ["CacheUpdate", "find_update"]

# What stands between a cache and the attention where KV heads are repeated for each query head.
LAYOUT_OPS = ("Expand", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
HEAD_AXIS, ROW_AXIS, WIDTH_AXIS = 1, 2, 3


@dataclass(frozen=True)
class CacheUpdate:
    """``present = Concat(past, new)``, all of them [batch, kv_num_heads, rows, head_size].

    Attributes:
        past: The cache before.
        new: The rows of this step.
        present: The cache after.
        kv_num_heads: K.
    """

    past: ir.Value
    new: ir.Value
    present: ir.Value
    kv_num_heads: int


def find_update(value: ir.Value, num_heads: int) -> CacheUpdate | None:
    """Finds the appending whose result an attention node reads, and runs the nodes between.

    Args:
        value: The keys or values that the node reads: [batch, heads, rows, head_size], or
            [batch, rows, heads * head_size].
        num_heads: How many heads the node reads there; each KV head may be repeated.

    Returns:
        The appending, or None where there is none, or where the node reads anything else than the
        cache after it with each KV head repeated.
    """
    concat = _concat_above(value)
    if concat is None or None in concat.inputs:
        return None
    past, new = (item for item in concat.inputs if item is not None)
    heads = static_size(past, HEAD_AXIS) or static_size(new, HEAD_AXIS)
    if heads is None or num_heads % heads:
        return None
    update = CacheUpdate(past, new, concat.outputs[0], heads)
    # Run once: a rule asks when it checks a node and when it rewrites it.
    known: dict[int, bool] = value.meta.setdefault("lean_attention.reads_present", {})
    if num_heads not in known:
        known[num_heads] = _reads_present(value, update, num_heads)
    return update if known[num_heads] else None


def _concat_above(value: ir.Value) -> ir.Node | None:
    for node in _above(value):
        if node.op_type == "Concat" and node.domain in ("", "ai.onnx"):
            axis = node.attributes.get_int("axis")
            return node if axis in (ROW_AXIS, ROW_AXIS - 4) and len(node.inputs) == 2 else None
        if node.op_type not in LAYOUT_OPS or node.domain not in ("", "ai.onnx"):
            return None
    return None


def _above(value: ir.Value | None) -> Iterator[ir.Node]:
    while value is not None and (node := value.producer()) is not None:
        yield node
        value = node.inputs[0] if node.inputs else None


def _reads_present(value: ir.Value, update: CacheUpdate, num_heads: int) -> bool:
    """Whether the nodes between repeat KV heads and do nothing else."""
    width = static_size(update.past, WIDTH_AXIS) or static_size(update.new, WIDTH_AXIS) or 4
    rng = np.random.default_rng(0)
    try:
        probe = Probe([value], given=(update.past, update.new))
        for past, new, batch in ((0, 3, 2), (5, 1, 2), (4, 3, 1)):
            case = Case(past, new, np.ones((batch, past + new), np.int64))
            sizes = (batch, update.kv_num_heads)
            rows = [rng.normal(size=(*sizes, n, width)).astype(np.float32) for n in (past, new)]
            (found,) = probe.run(case, dict(zip((update.past, update.new), rows, strict=True)))
            repeats = num_heads // update.kv_num_heads
            expected = np.repeat(np.concatenate(rows, ROW_AXIS), repeats, HEAD_AXIS)
            if found.ndim == 3:
                expected = expected.transpose(0, 2, 1, 3).reshape(batch, past + new, -1)
            if not np.array_equal(found, expected):
                return False
    except ProbeError:
        return False
    return True
