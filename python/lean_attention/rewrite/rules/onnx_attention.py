"""``ai.onnx::Attention`` with a cache becomes LeanGroupQueryAttention.

torch.onnx writes it for operator set 23 and later. The cache is appended to by the node, or, as
transformers' models do it, before the node by nodes that may repeat the KV heads.
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
from lean_attention.rewrite.probe import static_size
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["OnnxAttention"]


class _Input(IntEnum):
    QUERY = 0
    KEY = 1
    VALUE = 2
    MASK = 3
    PAST_KEY = 4
    PAST_VALUE = 5
    NONPAD_KV_SEQLEN = 6


class OnnxAttention(DecodeFormRule):
    """The rule for the attention of ONNX itself."""

    name = "onnx-attention"

    def match(self, node: ir.Node) -> bool:
        """Whether the node is ONNX's Attention."""
        return node.domain in ("", "ai.onnx") and node.op_type == "Attention"

    def read(self, node: ir.Node, types: ValueTypes) -> DecodeForm:
        """What the node computes."""
        return _read(node, types)


def _read(node: ir.Node, types: ValueTypes) -> DecodeForm:
    inputs = [node.inputs[i] if i < len(node.inputs) else None for i in _Input]
    query, key, value = inputs[:3]
    if query is None or key is None or value is None:
        raise RefusalError("its query, key or value is missing")
    _check_attributes(node)
    if inputs[_Input.NONPAD_KV_SEQLEN] is not None:
        raise RefusalError(f"its cache is written before it (nonpad_kv_seqlen); {BUILDER}")
    num_heads, kv_num_heads = _heads(node, query, "q_num_heads"), _heads(node, key, "kv_num_heads")
    dtype = check_types(types, query, key, value, node.outputs[0])
    past_key, past_value = inputs[_Input.PAST_KEY], inputs[_Input.PAST_VALUE]
    presents: list[ir.Value | None] = [v if v.name else None for v in node.outputs[1:3]]
    causal = node.attributes.get_int("is_causal", 0) == 1
    rows: dict[ir.Value, tuple[int, int]] = {}
    if past_key is None or past_value is None:
        updates = appendings(key, value, kv_num_heads)
        if causal:
            # Without a past of its own the node takes the first key for the first query's.
            raise RefusalError("it is causal over a cache that it does not know of (is_causal=1)")
        past_key, past_value = (u.past for u in updates)
        key, value = (u.new for u in updates)
        presents = [u.present for u in updates]
        kv_num_heads = updates[0].kv_num_heads
        rows = {u.new: (u.kv_num_heads, u.head_size) for u in updates}
    if num_heads % kv_num_heads:
        raise RefusalError(f"its {num_heads} heads are no multiple of {kv_num_heads} KV heads")
    presents += [None] * (2 - len(presents))
    mask = inputs[_Input.MASK]
    if mask is None and not causal and static_size(query, -2) != 1:
        raise RefusalError("it attends in both directions (no mask, is_causal=0)")
    return DecodeForm(
        query,
        key,
        value,
        past_key,
        past_value,
        presents[0],
        presents[1],
        node.outputs[0],
        None if mask is None else mask_of(mask, dtype, types, causal=causal, rows=rows),
        num_heads,
        kv_num_heads,
        dtype,
        node.attributes.get_float("scale", 0.0),
        node.attributes.get_float("softcap", 0.0),
    )


def _check_attributes(node: ir.Node) -> None:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise RefusalError(
            "its attributes are set by each call of the function; inline the functions"
        )
    if len(node.outputs) > 3 and node.outputs[3].name:
        raise RefusalError(
            "it outputs its scores (qk_matmul_output), and the operator never holds them"
        )
    if node.attributes.get_int("softmax_precision", 1) == ir.DataType.DOUBLE:
        raise RefusalError("its softmax is computed in double")


def _heads(node: ir.Node, value: ir.Value, attribute: str) -> int:
    """How many heads a query or key has: its second dimension, or an attribute where that is 3."""
    rank = None if value.shape is None else value.shape.rank()
    heads = static_size(value, 1) if rank == 4 else node.attributes.get_int(attribute, 0)
    if rank not in (3, 4) or not heads:
        raise RefusalError(
            f"the model does not tell how many heads {value.name!r} has; run onnx.shape_inference "
            "first"
        )
    return heads
