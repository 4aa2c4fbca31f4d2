"""``com.microsoft::MultiHeadAttention`` with a cache becomes LeanGroupQueryAttention.

onnxruntime-genai's builder writes it for float16 and bfloat16 on CPUs, and so do older tools for
Phi-2. The cache is appended to by the node, or before it by nodes that repeat the KV heads.
"""

from enum import IntEnum

import onnx_ir as ir

from lean_attention.rewrite.decode_form import (
    BUILDER,
    DecodeForm,
    DecodeFormRule,
    RefusalError,
    appendings,
    check_types,
    mask_of,
)
from lean_attention.rewrite.masks import Mask
from lean_attention.rewrite.probe import static_size
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["MultiHeadAttention"]


class _Input(IntEnum):
    QUERY = 0
    KEY = 1
    VALUE = 2
    BIAS = 3
    KEY_PADDING_MASK = 4
    ATTENTION_BIAS = 5
    PAST_KEY = 6
    PAST_VALUE = 7
    PAST_SEQUENCE_LENGTH = 8
    CACHE_INDIRECTION = 9


class MultiHeadAttention(DecodeFormRule):
    """The rule for ONNX Runtime's own multi-head attention."""

    name = "multi-head-attention"

    def match(self, node: ir.Node) -> bool:
        """Whether the node is ONNX Runtime's MultiHeadAttention."""
        return node.domain == "com.microsoft" and node.op_type == "MultiHeadAttention"

    def read(self, node: ir.Node, types: ValueTypes) -> DecodeForm:
        """What the node computes."""
        return _read(node, types)


def _read(node: ir.Node, types: ValueTypes) -> DecodeForm:
    inputs = {i: node.inputs[i] if i < len(node.inputs) else None for i in _Input}
    query, key, value = (inputs[i] for i in (_Input.QUERY, _Input.KEY, _Input.VALUE))
    if query is None or key is None or value is None:
        raise RefusalError(f"its query, key and value are packed in one; {BUILDER}")
    if any(v.shape is None or v.shape.rank() != 3 for v in (query, key, value)):
        raise RefusalError(
            "its query, key and value are not known to be [batch, tokens, heads * size]; run "
            "onnx.shape_inference first"
        )
    if inputs[_Input.BIAS] is not None:
        raise RefusalError(f"it adds the bias of the projections itself; {BUILDER}")
    if inputs[_Input.PAST_SEQUENCE_LENGTH] or inputs[_Input.CACHE_INDIRECTION]:
        raise RefusalError(f"it keeps its cache for beams in a buffer of its own; {BUILDER}")
    if len(node.outputs) > 3 and node.outputs[3].name:
        raise RefusalError("it outputs its scores (qk), and the operator never holds them")
    num_heads = node.attributes.get_int("num_heads", 0)
    if num_heads <= 0:
        raise RefusalError(f"its num_heads is {num_heads}")
    past_key, past_value = inputs[_Input.PAST_KEY], inputs[_Input.PAST_VALUE]
    dtype = check_types(types, query, key, value, past_key, past_value, node.outputs[0])
    kv_num_heads = num_heads
    rows: dict[ir.Value, tuple[int, int]] = {}
    presents: list[ir.Value | None] = [v if v.name else None for v in node.outputs[1:3]]
    if past_key is None or past_value is None:
        updates = appendings(key, value, num_heads)
        past_key, past_value = (u.past for u in updates)
        key, value = (u.new for u in updates)
        presents = [u.present for u in updates]
        kv_num_heads = updates[0].kv_num_heads
        rows = {u.new: (u.kv_num_heads, u.head_size) for u in updates}
    presents += [None] * (2 - len(presents))
    return DecodeForm(
        query,
        key,
        value,
        past_key,
        past_value,
        presents[0],
        presents[1],
        node.outputs[0],
        _mask(node, inputs, rows, dtype, types),
        num_heads,
        kv_num_heads,
        dtype,
        node.attributes.get_float("scale", 0.0),
    )


def _mask(
    node: ir.Node,
    inputs: dict[_Input, ir.Value | None],
    rows: dict[ir.Value, tuple[int, int]],
    dtype: ir.DataType,
    types: ValueTypes,
) -> Mask | None:
    causal = node.attributes.get_int("unidirectional", 0) == 1
    if inputs[_Input.KEY_PADDING_MASK] is not None:
        raise RefusalError(
            f"its padding is told by key_padding_mask, which may be lengths or a mask; {BUILDER}"
        )
    bias = inputs[_Input.ATTENTION_BIAS]
    if bias is not None:
        return mask_of(bias, dtype, types, causal=causal, rows=rows)
    query = inputs[_Input.QUERY]
    assert query is not None
    if not causal and static_size(query, 1) != 1:
        raise RefusalError("it attends in both directions (no mask, unidirectional=0)")
    return None
