"""A cache that the graph itself appends to, outside the attention node."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lean_attention.rewrite.probe import Case, Probe, ProbeError, static_size

__all__ = ["LAYOUT_OPS", "CacheUpdate", "find_update"]

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
        head_size: H.
        num_heads: How many heads the attention reads: K, or each of them several times.
    """

    past: ir.Value
    new: ir.Value
    present: ir.Value
    kv_num_heads: int
    head_size: int
    num_heads: int

    @property
    def sizes(self) -> tuple[int, int]:
        """KV heads, and the size of one."""
        return self.kv_num_heads, self.head_size


def find_update(value: ir.Value, num_heads: int | None = None) -> CacheUpdate | None:
    """Finds the appending whose result an attention node reads, and runs the nodes between.

    Args:
        value: The keys or values that the node reads: [batch, heads, rows, head_size], or
            [batch, rows, heads * head_size].
        num_heads: How many heads the node reads there; None where its shape shall tell it.

    Returns:
        The appending, or None where there is none, or where the node reads anything else than the
        cache after it with each KV head repeated.
    """
    concat = _concat_above(value)
    if concat is None or None in concat.inputs:
        return None
    past, new = (item for item in concat.inputs if item is not None)
    if new.producer() is None and past.producer() is not None:
        # The other way round: what is given comes after what is computed.
        return None
    sizes = [static_size(past, axis) or static_size(new, axis) for axis in (HEAD_AXIS, WIDTH_AXIS)]
    if None in sizes:
        return None
    heads, width = (size for size in sizes if size is not None)
    # Run once: a rule asks when it checks a node and when it rewrites it.
    known: dict[int | None, int | None] = value.meta.setdefault("lean_attention.heads_read", {})
    if num_heads not in known:
        known[num_heads] = _heads_read(value, past, new, (heads, width), num_heads)
    found = known[num_heads]
    return None if found is None else CacheUpdate(past, new, concat.outputs[0], heads, width, found)


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


def _heads_read(
    value: ir.Value,
    past: ir.Value,
    new: ir.Value,
    sizes: tuple[int, int],
    num_heads: int | None,
) -> int | None:
    """How many heads are read, where the nodes between repeat KV heads and do nothing else."""
    kv_num_heads, width = sizes
    rng = np.random.default_rng(0)
    try:
        probe = Probe([value], given=(past, new))
        for rows_before, rows, batch in ((0, 3, 2), (5, 1, 2), (4, 3, 1)):
            case = Case(rows_before, rows, np.ones((batch, rows_before + rows), np.int64))
            given = {
                v: rng.normal(size=(batch, kv_num_heads, n, width)).astype(np.float32)
                for v, n in ((past, rows_before), (new, rows))
            }
            (found,) = probe.run(case, given)
            if num_heads is None and found.ndim == 4:
                num_heads = found.shape[HEAD_AXIS]
            if not num_heads or num_heads % kv_num_heads:
                return None
            present = np.concatenate([given[past], given[new]], ROW_AXIS)
            expected = np.repeat(present, num_heads // kv_num_heads, HEAD_AXIS)
            if found.ndim == 3:
                expected = expected.transpose(0, 2, 1, 3).reshape(batch, case.total, -1)
            if not np.array_equal(found, expected):
                return None
    except ProbeError:
        return None
    return num_heads
