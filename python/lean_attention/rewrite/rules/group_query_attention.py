"""``com.microsoft::GroupQueryAttention`` becomes ``com.leanattention::LeanGroupQueryAttention``.

Both operators have the same inputs, outputs and attributes in the same order, so a node changes
its operator and its domain and nothing else.
"""

import math

import onnx_ir as ir

from lean_attention.rewrite.gqa_node import (
    ATTRIBUTE_TYPES,
    DECIDING_ATTRIBUTES,
    DOMAIN,
    MAX_HEAD_SIZE,
    MAX_HEADS,
    OP_TYPE,
    OPSET_VERSION,
    STOCK_DOMAIN,
    STOCK_OP_TYPE,
    Input,
    Output,
    attribute,
    head_size,
    heads,
    input_of,
    number,
    output_of,
)
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["DOMAIN", "OPSET_VERSION", "OP_TYPE", "SCHEDULES", "GroupQueryAttention"]

SCHEDULES = ("auto", "lean", "fixed_split", "direct", "stock")

SUPPORTED_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Of quantised caches, with the bits of a value: int4 has no type of its own.
CACHE_BITS = {ir.DataType.INT8: 8, ir.DataType.FLOAT8E4M3FN: 8, ir.DataType.UINT8: 4}
QUANTISATIONS = ("NONE", "PER_TENSOR", "PER_CHANNEL")
MAX_WINDOW = 2**31 - 1
DEFAULT_EPSILON = 1e-6
# Inputs that mean nothing without each other.
PAIRS = (
    (Input.KEY, Input.VALUE),
    (Input.PAST_KEY, Input.PAST_VALUE),
    (Input.COS_CACHE, Input.SIN_CACHE),
    (Input.Q_NORM_WEIGHT, Input.K_NORM_WEIGHT),
)

# Values of the schema's type T (activations) and T_CACHE, the likeliest to be declared first.
ACTIVATION_INPUTS = (
    Input.QUERY,
    Input.KEY,
    Input.VALUE,
    Input.COS_CACHE,
    Input.SIN_CACHE,
    Input.HEAD_SINK,
    Input.ATTENTION_BIAS,
    Input.Q_NORM_WEIGHT,
    Input.K_NORM_WEIGHT,
)
CACHE_INPUTS = (Input.PAST_KEY, Input.PAST_VALUE)
CACHE_OUTPUTS = (Output.PRESENT_KEY, Output.PRESENT_VALUE)
SCALES = {"k_scale": Input.K_SCALE, "v_scale": Input.V_SCALE}


class GroupQueryAttention:
    """The rule for ONNX Runtime's own grouped-query attention."""

    name = "group-query-attention"

    def match(self, node: ir.Node) -> bool:
        """Whether the node is a stock GroupQueryAttention."""
        return (node.domain, node.op_type) == (STOCK_DOMAIN, STOCK_OP_TYPE)

    def check(self, node: ir.Node, types: ValueTypes) -> str | None:
        """Why the node must stay stock, and what to do about it; None where it can be replaced."""
        return (
            _check_attribute_types(node)
            or _check_attributes(node)
            or _check_connections(node)
            or _check_types(node, types)
            or _check_scales(node, types)
        )

    def rewrite(self, node: ir.Node, types: ValueTypes, schedule: str) -> None:
        """Renames the node and declares its outputs, whose shapes ONNX Runtime cannot infer."""
        activation, cache = _element_types(node, types)
        node.domain, node.op_type = DOMAIN, OP_TYPE
        if schedule != "auto":
            node.attributes.add(ir.AttrString("schedule", schedule))
        _declare(output_of(node, Output.OUTPUT), activation, _output_shape(node))
        for past, present in zip(CACHE_INPUTS, CACHE_OUTPUTS, strict=True):
            _declare(output_of(node, present), cache, _present_shape(node, input_of(node, past)))


def _check_attribute_types(node: ir.Node) -> str | None:
    for expected, names in ATTRIBUTE_TYPES.items():
        for found in (node.attributes[name] for name in names if name in node.attributes):
            if found.type != expected and not found.is_ref():
                return (
                    f"its attribute {found.name} has the type {found.type.name.lower()}, not "
                    f"{expected.name.lower()}; ONNX Runtime refuses it as well, so correct it"
                )
    return None


def _check_attributes(node: ir.Node) -> str | None:
    for name in DECIDING_ATTRIBUTES:
        if name in node.attributes and node.attributes[name].is_ref():
            return (
                f"its attribute {name} is set by each call of the function; inline the model's "
                "functions first (onnx.inliner)"
            )
    num_heads, kv_num_heads = heads(node)
    if num_heads <= 0 or kv_num_heads <= 0 or num_heads % kv_num_heads:
        return (
            f"num_heads ({num_heads}) is not a multiple of kv_num_heads ({kv_num_heads}); correct "
            "the attributes"
        )
    if num_heads > MAX_HEADS:
        return f"its num_heads is {num_heads}; the operator takes at most {MAX_HEADS}"
    if (size := head_size(node)) is not None and size > MAX_HEAD_SIZE:
        return f"its heads are of size {size}; the operator takes at most {MAX_HEAD_SIZE}"
    if attribute(node, "causal") != 1:
        return "it attends in both directions (causal=0); the operator is for causal attention"
    if attribute(node, "sliding_window_cache") != 0:
        return (
            "its cache holds a sliding window only (sliding_window_cache=1); build it with "
            "--extra_options windowed_kv_cache=false"
        )
    if attribute(node, "qk_output") != 0:
        return "it outputs its scores (qk_output); export it without them"
    return _check_ranges(node) or _check_quantisation(node)


def _check_ranges(node: ir.Node) -> str | None:
    """Values that ONNX Runtime lets pass and the operator refuses when the model is loaded."""
    window = number(node, "local_window_size", -1)
    if window != -1 and not 1 <= window <= MAX_WINDOW:
        return (
            f"its local_window_size ({window}) is neither -1 nor between 1 and {MAX_WINDOW}; set "
            "-1 for no window"
        )
    if not math.isfinite(scale := number(node, "scale", 0.0)):
        return f"its scale is {scale}; correct it, or set 0 for 1 / sqrt(head size)"
    softcap = number(node, "softcap", 0.0)
    if not math.isfinite(softcap) or softcap < 0:
        return f"its softcap is {softcap}; correct it, or set 0 for none"
    for name in ("q_norm_epsilon", "k_norm_epsilon"):
        epsilon = number(node, name, number(node, "qk_norm_epsilon", DEFAULT_EPSILON))
        if not (math.isfinite(epsilon) and epsilon > 0):
            return f"its {name} is {epsilon}; correct it, it must be positive"
    return None


def _check_quantisation(node: ir.Node) -> str | None:
    """What the attributes say of the cache, apart from its type."""
    for name in ("k_quant_type", "v_quant_type"):
        if (found := _quantisation(node, name)) not in QUANTISATIONS:
            return (
                f"its {name} is {found!r}, not {', '.join(QUANTISATIONS[:2])} or PER_CHANNEL; "
                "quantise the cache in one of these ways"
            )
    k_type, v_type = (_quantisation(node, name) for name in ("k_quant_type", "v_quant_type"))
    if k_type != v_type:
        return f"its k_quant_type is {k_type} and its v_quant_type {v_type}; make them equal"
    if k_type == "NONE":
        return None
    if any(input_of(node, past) is None for past in CACHE_INPUTS):
        return (
            f"its k_quant_type is {k_type} without a past_key and past_value, from which ONNX "
            "Runtime takes the cache's type; connect them"
        )
    for name, scale in SCALES.items():
        if input_of(node, scale) is None:
            return f"its k_quant_type is {k_type} and {name} is not connected; connect it"
    return None


def _check_connections(node: ir.Node) -> str | None:
    if output_of(node, Output.OUTPUT_QK) is not None:
        return "it outputs its scores (output_qk); export it without them"
    for first, second in PAIRS:
        if (input_of(node, first) is None) != (input_of(node, second) is None):
            names = f"{first.name.lower()} and {second.name.lower()}"
            return f"only one of {names} is connected; connect both, or none"
    if input_of(node, Input.QUERY_SEQLENS) is not None and input_of(node, Input.PAST_KEY) is None:
        return "query_seqlens is connected, and past_key and past_value are not; connect them"
    if all(output_of(node, present) is not None for present in CACHE_OUTPUTS):
        return None
    if any(input_of(node, past) is not None for past in CACHE_INPUTS):
        return (
            "past_key and past_value are connected but present_key and present_value are not, "
            "with which ONNX Runtime itself returns wrong values; make them outputs of the graph"
        )
    return (
        "present_key and present_value are not connected, and the operator writes both; name these "
        "outputs"
    )


def _check_types(node: ir.Node, types: ValueTypes) -> str | None:
    activation, cache = _element_types(node, types)
    if activation is None or cache is None:
        where = "past_key" if cache is None else "query"
        return (
            f"the model does not tell its element type; declare {where}'s, or run "
            "onnx.shape_inference first"
        )
    if activation not in SUPPORTED_TYPES:
        return f"its type is {_name(activation)}; the operator takes float, float16 and bfloat16"
    quantisation, bits = _quantisation(node, "k_quant_type"), attribute(node, "kv_cache_bit_width")
    if quantisation == "NONE":
        if cache != activation:
            return (
                f"its cache is {_name(cache)} and its query {_name(activation)}, but its "
                "k_quant_type NONE; give both one type, or quantise the cache"
            )
        expected = 0
    elif cache not in CACHE_BITS:
        return (
            f"its k_quant_type is {quantisation} and its cache {_name(cache)}; the operator takes "
            "int8, float8e4m3fn, and uint8 for int4"
        )
    elif cache == ir.DataType.FLOAT8E4M3FN and activation == ir.DataType.FLOAT:
        return (
            "its cache is float8e4m3fn and its query float; the operator takes such a cache on "
            "GPUs, with float16 and bfloat16"
        )
    else:
        expected = CACHE_BITS[cache]
    if bits != expected:
        return (
            f"its kv_cache_bit_width is {bits}; for a cache of {_name(cache)} it must be {expected}"
        )
    return None


def _check_scales(node: ir.Node, types: ValueTypes) -> str | None:
    """The types of the scales, and as far as the model tells it, their number."""
    quantisation = _quantisation(node, "k_quant_type")
    for name, index in SCALES.items():
        if (scale := input_of(node, index)) is None:
            continue
        if (dtype := types.common([scale])) not in (None, ir.DataType.FLOAT):
            return f"its {name} is {_name(dtype)}, not float; ONNX Runtime takes no other"
        count, expected = _elements(scale), _scale_elements(node, quantisation)
        if expected is not None and count not in (None, expected):
            return (
                f"its {name} has {count} elements; with k_quant_type {quantisation} it must have "
                f"{expected}"
            )
    return None


def _element_types(
    node: ir.Node, types: ValueTypes
) -> tuple[ir.DataType | None, ir.DataType | None]:
    """Types of activations and cache. They are equal unless the cache is quantised."""
    activation = types.common(
        [*(input_of(node, i) for i in ACTIVATION_INPUTS), output_of(node, Output.OUTPUT)]
    )
    cache = types.common(
        [*(input_of(node, i) for i in CACHE_INPUTS), *(output_of(node, i) for i in CACHE_OUTPUTS)]
    )
    if _quantisation(node, "k_quant_type") != "NONE":
        return activation, cache
    return activation or cache, cache or activation


def _quantisation(node: ir.Node, name: str) -> str:
    # ONNX Runtime takes lower case as well.
    return str(attribute(node, name)).upper()


def _name(dtype: ir.DataType | None) -> str:
    return "unknown" if dtype is None else dtype.name.lower()


def _elements(value: ir.Value) -> int | None:
    """How many elements a value has, where its shape is known and fixed."""
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return math.prod(size for size in value.shape if isinstance(size, int))


def _scale_elements(node: ir.Node, quantisation: str) -> int | None:
    """How many elements a scale must have; None where any will do or the model does not tell."""
    if quantisation == "PER_TENSOR":
        return 1
    past = input_of(node, Input.PAST_KEY)
    if quantisation == "NONE" or past is None or past.shape is None or past.shape.rank() != 4:
        return None
    width = past.shape[3]
    if not isinstance(width, int):
        return None
    return heads(node)[1] * width * (2 if attribute(node, "kv_cache_bit_width") == 4 else 1)


def _output_shape(node: ir.Node) -> ir.Shape:
    """[batch, sequence, num_heads * head_size], as far as the query's shape tells it."""
    query = input_of(node, Input.QUERY)
    if query is None or query.shape is None or query.shape.rank() != 3:
        return ir.Shape([None, None, None])
    batch, sequence, width = query.shape
    if input_of(node, Input.KEY) is not None:
        return ir.Shape([batch, sequence, width])
    # Packed: the width is (num_heads + 2 * kv_num_heads) * head_size.
    num_heads, kv_num_heads = heads(node)
    known = isinstance(width, int) and width % (num_heads + 2 * kv_num_heads) == 0
    hidden = width // (num_heads + 2 * kv_num_heads) * num_heads if known else None
    return ir.Shape([batch, sequence, hidden])


def _present_shape(node: ir.Node, past: ir.Value | None) -> ir.Shape:
    """[batch, kv_num_heads, rows, head_size]; rows are past's only where both share a buffer.

    Of 4-bit integers, two to a byte, the last is half of head_size, in past as in present.
    """
    if past is None or past.shape is None or past.shape.rank() != 4:
        return ir.Shape([None, heads(node)[1], None, None])
    return ir.Shape([past.shape[0], past.shape[1], None, past.shape[3]])


def _declare(value: ir.Value | None, dtype: ir.DataType | None, shape: ir.Shape) -> None:
    """Declares an output that the model itself does not declare."""
    if value is not None and dtype is not None and value.type is None:
        value.type, value.shape = ir.TensorType(dtype), shape
