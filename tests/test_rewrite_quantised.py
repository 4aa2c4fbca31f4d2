"""The rewriter on caches of integers: what it replaces, what not, and that the result runs."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import lean_attention
import rewrite_models as models
from lean_attention import LeanAttentionError
from rewrite_changes import attention_nodes, attention_of, connect, rewritten, set_attribute

FORMATS = {
    "int8 per tensor": {"cache": "int8"},
    "int8 per channel": {"cache": "int8", "quantisation": "PER_CHANNEL"},
    "int4 per tensor": {"cache": "int4"},
    "int4 per channel": {"cache": "int4", "quantisation": "PER_CHANNEL"},
    "lower case": {"cache": "int8", "quantisation": "per_channel"},
    "float16, int8 per channel": {
        "cache": "int8",
        "quantisation": "PER_CHANNEL",
        "dtype": "float16",
    },
    "float16, int4 per tensor": {"cache": "int4", "dtype": "float16"},
    "packed, int8 per tensor": {"cache": "int8", "packed": True},
}
# Lengths after the step, and the tokens that brought each there.
STEPS = {
    "decode": ([4, 9, 32], 1),
    "chunk": ([9], 3),
    "prompt": ([6, 6], 6),
    "padded prompt": ([6, 2], 6),
    "long prompt": ([12, 12], 12),
}


@pytest.mark.parametrize(("lengths", "steps"), STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", FORMATS)
def test_rewritten_model_computes_what_stock_computes(name, lengths, steps, tmp_path):
    made = models.decoder(layers=1, **FORMATS[name])
    result, _ = rewritten(made, tmp_path)
    assert (len(result.replaced), result.left) == (1, ())
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    feeds = models.feeds(made, lengths, steps)
    stock = onnxruntime.InferenceSession(tmp_path / "source.onnx").run(None, feeds)
    ours = onnxruntime.InferenceSession(tmp_path / "rewritten.onnx", options).run(None, feeds)

    valid = np.arange(steps) < np.array(lengths)[:, None] if steps == max(lengths) else ...
    unit = 2.0**-11 if feeds["hidden"].dtype == np.float16 else 0
    magnitude = np.abs(stock[0]).max().astype(np.float64)
    np.testing.assert_allclose(
        ours[0][valid], stock[0][valid], rtol=0, atol=(2e-6 + 4 * unit) * magnitude
    )
    for expected, got in zip(stock[1:], ours[1:], strict=True):
        assert got.dtype == expected.dtype
        for row, length in enumerate(lengths):
            assert got[row, :, :length].tobytes() == expected[row, :, :length].tobytes()


@pytest.mark.parametrize(
    ("cache", "kind", "width"), [("int8", TensorProto.INT8, 16), ("int4", TensorProto.UINT8, 8)]
)
def test_presents_are_declared_with_the_type_and_the_width_of_the_cache(
    cache, kind, width, tmp_path
):
    made = models.decoder(layers=1, dtype="float16", cache=cache)
    del made.graph.output[1:]
    _, new = rewritten(made, tmp_path)
    declared = {value.name: value.type.tensor_type for value in new.graph.value_info}
    assert declared["attention.0"].elem_type == TensorProto.FLOAT16
    for name in ("present.0.key", "present.0.value"):
        assert declared[name].elem_type == kind
        dims = [d.dim_param or d.dim_value or None for d in declared[name].shape.dim]
        assert dims == ["B", models.KV_NUM_HEADS, None, width]


def retype_past(kind: int):
    def change(made: onnx.ModelProto) -> None:
        for value in (*made.graph.input, *made.graph.output):
            if value.name.startswith(("past.1.", "present.1.")):
                value.type.tensor_type.elem_type = kind

    return change


def at_node(change):
    return lambda made: change(attention_of(made, 1))


def no_past(made: onnx.ModelProto) -> None:
    node = attention_of(made, 1)
    node.input[3], node.input[4] = "", ""


def scale_of(kind: int, count: int):
    def change(made: onnx.ModelProto) -> None:
        made.graph.input.append(models.tensor("scale", kind, [1, count]))
        connect(13, "scale")(attention_of(made, 1))

    return change


LEFT = {
    "value per channel": (
        at_node(set_attribute(v_quant_type="PER_CHANNEL")),
        "k_quant_type is PER_TENSOR and its v_quant_type PER_CHANNEL",
    ),
    "value not": (at_node(set_attribute(v_quant_type="NONE")), "and its v_quant_type NONE"),
    "key not": (at_node(set_attribute(k_quant_type="NONE")), "k_quant_type is NONE and its v_"),
    "unknown type": (
        at_node(set_attribute(k_quant_type="PER_TOKEN")),
        "k_quant_type is 'PER_TOKEN', not NONE, PER_TENSOR or PER_CHANNEL",
    ),
    "type unknown of values": (at_node(set_attribute(v_quant_type="")), "its v_quant_type is ''"),
    "no type": (
        at_node(set_attribute(k_quant_type="NONE", v_quant_type="NONE")),
        "its cache is int8 and its query float, but its k_quant_type NONE",
    ),
    "no width": (
        at_node(set_attribute(kv_cache_bit_width=0)),
        "kv_cache_bit_width is 0; for a cache of int8 it must be 8",
    ),
    "other width": (at_node(set_attribute(kv_cache_bit_width=4)), "bit_width is 4; .* must be 8"),
    "other cache": (retype_past(TensorProto.UINT8), "bit_width is 8; .* of uint8 it must be 4"),
    "float8": (
        retype_past(TensorProto.FLOAT8E4M3FN),
        "its cache is float8e4m3fn and its query float; the operator takes such a cache on GPUs",
    ),
    "another float8": (
        retype_past(TensorProto.FLOAT8E5M2),
        "its cache float8e5m2; the operator takes int8, float8e4m3fn, and uint8 for int4",
    ),
    "float": (retype_past(TensorProto.FLOAT), "its cache float; the operator takes int8, "),
    "no key scale": (at_node(connect(12, "")), "PER_TENSOR and k_scale is not connected"),
    "no value scale": (at_node(connect(13, "")), "PER_TENSOR and v_scale is not connected"),
    "half scale": (scale_of(TensorProto.FLOAT16, 1), "its v_scale is float16, not float"),
    "scales": (scale_of(TensorProto.FLOAT, 32), "v_scale has 32 elements; .* must have 1$"),
    "no past": (no_past, "k_quant_type is PER_TENSOR without a past_key and past_value"),
}


@pytest.mark.parametrize(("change", "reason"), LEFT.values(), ids=LEFT)
def test_cache_that_the_operator_does_not_take_is_left_with_the_reason(change, reason, tmp_path):
    made = models.decoder(cache="int8")
    change(made)
    result, new = rewritten(made, tmp_path)
    assert [node.name for node in result.replaced] == ["/layer.0/attention"]
    (left,) = result.left
    assert left.name == "/layer.1/attention"
    assert re.search(reason, left.reason)
    assert len(attention_nodes(new, "com.microsoft")) == 1


@pytest.mark.parametrize(("cache", "wrong"), [("int8", 16), ("int8", 1), ("int4", 16)])
def test_scale_per_channel_has_one_element_for_each(cache, wrong, tmp_path):
    made = models.decoder(cache=cache, quantisation="PER_CHANNEL")
    scale_of(TensorProto.FLOAT, wrong)(made)
    result, _ = rewritten(made, tmp_path)
    (left,) = result.left
    assert left.reason == (
        f"its v_scale has {wrong} elements; with k_quant_type PER_CHANNEL it must have 32"
    )


def test_bit_width_of_a_cache_that_is_not_quantised_is_a_reason(tmp_path):
    made = models.decoder(layers=2)
    set_attribute(kv_cache_bit_width=8)(attention_of(made, 1))
    result, _ = rewritten(made, tmp_path)
    assert [node.reason for node in result.left] == [
        "its kv_cache_bit_width is 8; for a cache of float it must be 0"
    ]


def test_scales_that_nothing_reads_are_no_reason(tmp_path):
    made = models.decoder()
    scale_of(TensorProto.FLOAT, 1)(made)
    result, _ = rewritten(made, tmp_path)
    assert not result.left


def test_types_left_to_each_call_of_a_function_are_a_reason(tmp_path):
    made = models.in_function(cache="int8")
    (function,) = made.functions
    for name in ("k_quant_type", "v_quant_type"):
        function.attribute.append(name)
        (found,) = (a for a in function.node[0].attribute if a.name == name)
        found.ClearField("s")
        found.ref_attr_name = name
    with pytest.raises(LeanAttentionError, match="k_quant_type is set by each call"):
        rewritten(made, tmp_path)


def test_function_called_with_caches_of_two_types_is_left(tmp_path):
    made = models.in_function(cache="int8")
    retype_past(TensorProto.UINT8)(made)
    with pytest.raises(LeanAttentionError, match="does not tell its element type; declare past_"):
        rewritten(made, tmp_path)


def test_function_with_a_quantised_cache_computes_what_stock_computes(tmp_path):
    made = models.in_function(layers=1, cache="int4")
    rewritten(made, tmp_path)
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    feeds = models.feeds(made, [4, 9, 32])
    stock = onnxruntime.InferenceSession(tmp_path / "source.onnx").run(None, feeds)
    ours = onnxruntime.InferenceSession(tmp_path / "rewritten.onnx", options).run(None, feeds)
    np.testing.assert_allclose(ours[0], stock[0], atol=2e-6 * np.abs(stock[0]).max())
    for expected, got in zip(stock[1:], ours[1:], strict=True):
        assert got.tobytes() == expected.tobytes()
