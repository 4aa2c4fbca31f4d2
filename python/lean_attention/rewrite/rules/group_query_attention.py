"""``com.microsoft::GroupQueryAttention`` becomes ``com.leanattention::LeanGroupQueryAttention``.

Both operators have the same inputs, outputs and attributes in the same order, so a node changes
its operator and its domain and nothing else.
"""

import math
from enum import IntEnum

import onnx_ir as ir

from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["DOMAIN", "OPSET_VERSION", "OP_TYPE", "SCHEDULES", "GroupQueryAttention"]

DOMAIN = "com.leanattention"
OP_TYPE = "LeanGroupQueryAttention"
OPSET_VERSION = 1
SCHEDULES = ("auto", "lean", "fixed_split", "direct", "stock")

SUPPORTED_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
MAX_WINDOW = 2**31 - 1


class Input(IntEnum):
    """Positions of the inputs, as ONNX Runtime 1.32 declares them."""

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


# Values of the schema's type T (activations) and T_CACHE, the likeliest to be declared first.
ACTIVATION_INPUTS = (
    Input.QUERY,
    Input.KEY,
    Input.VALUE,
    Input.COS_CACHE,
    Input.SIN_CACHE,
    Input.HEAD_SINK,
    Input.ATTENTION_BIAS,
)
CACHE_INPUTS = (Input.PAST_KEY, Input.PAST_VALUE)
CACHE_OUTPUTS = (Output.PRESENT_KEY, Output.PRESENT_VALUE)

# The attributes that decide whether a node is supported, with ONNX Runtime's defaults.
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

# The attributes of ONNX Runtime's schema, by their types.
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


class GroupQueryAttention:
    """The rule for ONNX Runtime's own grouped-query attention."""

    def match(self, node: ir.Node) -> bool:
        """Whether the node is a stock GroupQueryAttention."""
        return node.domain == "com.microsoft" and node.op_type == "GroupQueryAttention"

    def check(self, node: ir.Node, types: ValueTypes) -> str | None:
        """Why the node must stay stock, as a clause; None where it can be replaced."""
        return (
            _check_attribute_types(node)
            or _check_attributes(node)
            or _check_connections(node)
            or _check_types(node, types)
        )

    def rewrite(self, node: ir.Node, types: ValueTypes, schedule: str) -> None:
        """Renames the node and declares its outputs, whose shapes ONNX Runtime cannot infer."""
        activation, cache = _element_types(node, types)
        node.domain, node.op_type = DOMAIN, OP_TYPE
        if schedule != "auto":
            node.attributes.add(ir.AttrString("schedule", schedule))
        _declare(_output(node, Output.OUTPUT), activation, _output_shape(node))
        for past, present in zip(CACHE_INPUTS, CACHE_OUTPUTS, strict=True):
            _declare(_output(node, present), cache, _present_shape(node, _input(node, past)))


def _check_attribute_types(node: ir.Node) -> str | None:
    for expected, names in ATTRIBUTE_TYPES.items():
        for attribute in (node.attributes[name] for name in names if name in node.attributes):
            if attribute.type != expected and not attribute.is_ref():
                found = attribute.type.name.lower()
                return (
                    f"its attribute {attribute.name} has the type {found}, not "
                    f"{expected.name.lower()}"
                )
    return None


def _check_attributes(node: ir.Node) -> str | None:
    for name in DECIDING_ATTRIBUTES:
        if name in node.attributes and node.attributes[name].is_ref():
            return f"its attribute {name} is set by each call of the function"
    heads, kv_heads = _heads(node)
    if heads <= 0 or kv_heads <= 0 or heads % kv_heads:
        return f"num_heads ({heads}) is not a multiple of kv_num_heads ({kv_heads})"
    if _attribute(node, "causal") != 1:
        return "it attends in both directions (causal=0)"
    if _attribute(node, "sliding_window_cache") != 0:
        return "its cache holds a sliding window only (sliding_window_cache=1)"
    if _attribute(node, "qk_output") != 0:
        return "it outputs its scores (qk_output)"
    quantised = ("kv_cache_bit_width", "k_quant_type", "v_quant_type")
    if any(_attribute(node, name) != DECIDING_ATTRIBUTES[name] for name in quantised):
        return "its cache is quantised"
    return _check_ranges(node)


def _check_ranges(node: ir.Node) -> str | None:
    """Values that ONNX Runtime lets pass and the operator refuses when the model is loaded."""
    window = _number(node, "local_window_size", -1)
    if window != -1 and not 1 <= window <= MAX_WINDOW:
        return f"its local_window_size ({window}) is neither -1 nor between 1 and {MAX_WINDOW}"
    if not math.isfinite(scale := _number(node, "scale", 0.0)):
        return f"its scale is {scale}"
    softcap = _number(node, "softcap", 0.0)
    if not math.isfinite(softcap) or softcap < 0:
        return f"its softcap is {softcap}"
    return None


def _check_connections(node: ir.Node) -> str | None:
    if _output(node, Output.OUTPUT_QK) is not None:
        return "it outputs its scores (output_qk)"
    if _input(node, Input.K_SCALE) is not None or _input(node, Input.V_SCALE) is not None:
        return "its cache is quantised"
    if any(_input(node, i) is not None for i in (Input.Q_NORM_WEIGHT, Input.K_NORM_WEIGHT)):
        return "it normalises queries and keys (q_norm_weight, k_norm_weight)"
    if all(_output(node, present) is not None for present in CACHE_OUTPUTS):
        return None
    if any(_input(node, past) is not None for past in CACHE_INPUTS):
        return (
            "past_key and past_value are connected but present_key and present_value are not, "
            "with which ONNX Runtime itself returns wrong values"
        )
    return "present_key and present_value are not connected, and the operator writes both"


def _check_types(node: ir.Node, types: ValueTypes) -> str | None:
    activation, cache = _element_types(node, types)
    if activation is None or cache is None:
        return (
            "the model does not tell its element type: declare past_key's, or run "
            "onnx.shape_inference first"
        )
    if activation not in SUPPORTED_TYPES:
        return f"its type is {activation.name.lower()}; the operator takes float and float16"
    if cache != activation:
        return f"its cache is {cache.name.lower()} and its query {activation.name.lower()}"
    return None


def _element_types(
    node: ir.Node, types: ValueTypes
) -> tuple[ir.DataType | None, ir.DataType | None]:
    """Types of activations and cache. They are equal unless the cache is quantised."""
    activation = types.common(
        [*(_input(node, i) for i in ACTIVATION_INPUTS), _output(node, Output.OUTPUT)]
    )
    cache = types.common(
        [*(_input(node, i) for i in CACHE_INPUTS), *(_output(node, i) for i in CACHE_OUTPUTS)]
    )
    return activation or cache, cache or activation


def _attribute(node: ir.Node, name: str) -> object:
    if name not in node.attributes:
        return DECIDING_ATTRIBUTES[name]
    return node.attributes[name].value


def _number(node: ir.Node, name: str, default: float) -> float:
    """A number, or the default where it is absent or left to each call of a function."""
    if name not in node.attributes or node.attributes[name].is_ref():
        return default
    value = node.attributes[name].value
    return value if isinstance(value, int | float) else math.nan


def _heads(node: ir.Node) -> tuple[int, int]:
    """num_heads and kv_num_heads; 0 for one that is missing or not an integer."""
    heads, kv_heads = _attribute(node, "num_heads"), _attribute(node, "kv_num_heads")
    return (
        heads if isinstance(heads, int) else 0,
        kv_heads if isinstance(kv_heads, int) else 0,
    )


def _input(node: ir.Node, index: Input) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _output(node: ir.Node, index: Output) -> ir.Value | None:
    # ONNX writes an output that nobody wants as an empty name.
    value = node.outputs[index] if index < len(node.outputs) else None
    return value if value is not None and value.name else None


def _output_shape(node: ir.Node) -> ir.Shape:
    """[batch, sequence, num_heads * head_size], as far as the query's shape tells it."""
    query = _input(node, Input.QUERY)
    if query is None or query.shape is None or query.shape.rank() != 3:
        return ir.Shape([None, None, None])
    batch, sequence, width = query.shape
    if _input(node, Input.KEY) is not None:
        return ir.Shape([batch, sequence, width])
    # Packed: the width is (num_heads + 2 * kv_num_heads) * head_size.
    heads, kv_heads = _heads(node)
    known = isinstance(width, int) and width % (heads + 2 * kv_heads) == 0
    hidden = width // (heads + 2 * kv_heads) * heads if known else None
    return ir.Shape([batch, sequence, hidden])


def _present_shape(node: ir.Node, past: ir.Value | None) -> ir.Shape:
    """[batch, kv_num_heads, rows, head_size]; rows are past's only where both share a buffer."""
    if past is None or past.shape is None or past.shape.rank() != 4:
        return ir.Shape([None, _heads(node)[1], None, None])
    return ir.Shape([past.shape[0], past.shape[1], None, past.shape[3]])


def _declare(value: ir.Value | None, dtype: ir.DataType | None, shape: ir.Shape) -> None:
    """Declares an output that the model itself does not declare."""
    if value is not None and dtype is not None and value.type is None:
        value.type, value.shape = ir.TensorType(dtype), shape
