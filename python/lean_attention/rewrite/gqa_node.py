"""A GroupQueryAttention node as ONNX Runtime 1.32 declares it: inputs, outputs, attributes.

Ours has the same, and one attribute more: ``schedule``.
"""

import math
from enum import IntEnum

import onnx_ir as ir

__all__ = [
    "ATTENTION_OPS",
    "ATTRIBUTE_TYPES",
    "DECIDING_ATTRIBUTES",
    "DOMAIN",
    "MAX_HEADS",
    "MAX_HEAD_SIZE",
    "OPSET_VERSION",
    "OP_TYPE",
    "STOCK_DOMAIN",
    "STOCK_OP_TYPE",
    "Input",
    "Output",
    "attribute",
    "head_size",
    "heads",
    "input_of",
    "number",
    "output_of",
]

STOCK_DOMAIN, STOCK_OP_TYPE = "com.microsoft", "GroupQueryAttention"
DOMAIN, OP_TYPE = "com.leanattention", "LeanGroupQueryAttention"
OPSET_VERSION = 1
# What the operator takes.
MAX_HEADS = 65536
MAX_HEAD_SIZE = 4096
ATTENTION_OPS = {(STOCK_DOMAIN, STOCK_OP_TYPE), (DOMAIN, OP_TYPE)}


class Input(IntEnum):
    """Positions of the inputs."""

    QUERY = 0
    KEY = 1
    VALUE = 2
    PAST_KEY = 3
    PAST_VALUE = 4
    SEQLENS_K = 5
    TOTAL_SEQUENCE_LENGTH = 6
    COS_CACHE = 7
    SIN_CACHE = 8
    POSITION_IDS = 9
    ATTENTION_BIAS = 10
    HEAD_SINK = 11
    K_SCALE = 12
    V_SCALE = 13
    Q_NORM_WEIGHT = 14
    K_NORM_WEIGHT = 15
    QUERY_SEQLENS = 16


class Output(IntEnum):
    """Positions of the outputs."""

    OUTPUT = 0
    PRESENT_KEY = 1
    PRESENT_VALUE = 2
    OUTPUT_QK = 3


DECIDING_ATTRIBUTES: dict[str, int | str] = {
    "num_heads": 0,
    "kv_num_heads": 0,
    "causal": 1,
    "sliding_window_cache": 0,
    "qk_output": 0,
    "kv_cache_bit_width": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}
"""Those that decide whether a node is supported, with ONNX Runtime's defaults."""

ATTRIBUTE_TYPES: dict[ir.AttributeType, tuple[str, ...]] = {
    ir.AttributeType.INT: (
        "num_heads",
        "kv_num_heads",
        "causal",
        "do_rotary",
        "kv_cache_bit_width",
        "local_window_size",
        "qk_output",
        "rotary_interleaved",
        "sliding_window_cache",
        "smooth_softmax",
    ),
    ir.AttributeType.FLOAT: (
        "scale",
        "softcap",
        "qk_norm_epsilon",
        "q_norm_epsilon",
        "k_norm_epsilon",
    ),
    ir.AttributeType.STRING: ("k_quant_type", "v_quant_type"),
}
"""All of them, by their types."""


def attribute(node: ir.Node, name: str) -> object:
    """Returns one of `DECIDING_ATTRIBUTES`, or its default where the node lacks it."""
    if name not in node.attributes:
        return DECIDING_ATTRIBUTES[name]
    return node.attributes[name].value


def number(node: ir.Node, name: str, default: float) -> float:
    """Returns a number, or the default where it is absent or left to each call of a function."""
    if name not in node.attributes or node.attributes[name].is_ref():
        return default
    value = node.attributes[name].value
    return value if isinstance(value, int | float) else math.nan


def heads(node: ir.Node) -> tuple[int, int]:
    """Returns num_heads and kv_num_heads; 0 for one that is missing or not an integer."""
    num_heads, kv_num_heads = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    return (
        num_heads if isinstance(num_heads, int) else 0,
        kv_num_heads if isinstance(kv_num_heads, int) else 0,
    )


def head_size(node: ir.Node) -> int | None:
    """Returns the size of a head, from the shape of the past or the query; None without these."""
    past, query = input_of(node, Input.PAST_KEY), input_of(node, Input.QUERY)
    if past is not None and past.shape is not None and past.shape.rank() == 4:
        width = past.shape[3]
        if isinstance(width, int):
            return width * 2 if number(node, "kv_cache_bit_width", 0) == 4 else width
    if query is None or query.shape is None or query.shape.rank() != 3:
        return None
    width, (num_heads, kv_num_heads) = query.shape[2], heads(node)
    if input_of(node, Input.KEY) is None:
        num_heads += 2 * kv_num_heads
    return width // num_heads if isinstance(width, int) and num_heads else None


def input_of(node: ir.Node, index: Input) -> ir.Value | None:
    """Returns what is connected to an input."""
    return node.inputs[index] if index < len(node.inputs) else None


def output_of(node: ir.Node, index: Output) -> ir.Value | None:
    """Returns an output that somebody may want."""
    # ONNX writes one that nobody wants as an empty name.
    value = node.outputs[index] if index < len(node.outputs) else None
    return value if value is not None and value.name else None
