"""The rewriter's graph work: what is replaced, what is left and why, and that the result runs."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import lean_attention
import rewrite_models as models
from lean_attention import LeanAttentionError, rewrite
from rewrite_changes import (
    attention_nodes,
    attention_of,
    connect,
    graphs,
    retype,
    rewritten,
    set_attribute,
)

VARIANTS = {
    "float32": models.decoder,
    "float16": lambda: models.decoder(dtype="float16"),
    "packed": lambda: models.decoder(packed=True),
    "in an If": models.in_if,
    "in a function": models.in_function,
}
every_variant = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS)


@every_variant
def test_node_changes_operator_and_domain_and_the_rest_of_the_model_nothing(make, tmp_path):
    made = make()
    result, new = rewritten(made, tmp_path)
    nodes = attention_nodes(new)
    assert len(result.replaced) == len(nodes) == len(attention_nodes(made, "com.microsoft"))
    assert not result.left
    assert {node.op_type for node in nodes} == {"LeanGroupQueryAttention"}

    for node in nodes:
        node.domain, node.op_type = "com.microsoft", "GroupQueryAttention"
    for holder in (new, *new.functions):
        ours = [o for o in holder.opset_import if o.domain == "com.leanattention"]
        assert [o.version for o in ours] == [1]
        holder.opset_import.remove(ours[0])
    for graph in (*graphs(new), *graphs(made)):
        # Only declarations may have been added.
        del graph.value_info[:]
    assert new == made


def test_shared_initialisers_and_trailing_empty_inputs_stay(tmp_path):
    _, new = rewritten(models.decoder(), tmp_path)
    tables = [list(node.input[7:]) for node in attention_nodes(new)]
    assert tables == [["cos", "sin", "", ""]] * 2
    assert [w.name for w in new.graph.initializer].count("cos") == 1


@pytest.mark.parametrize("packed", [False, True])
def test_outputs_of_new_nodes_are_declared(packed, tmp_path):
    made = models.decoder(layers=1, dtype="float16", packed=packed)
    del made.graph.output[1:]
    _, new = rewritten(made, tmp_path)
    declared = {value.name: value for value in new.graph.value_info}
    shapes = {
        # Nothing declares the shape of a projection, so not that of the attention either.
        "attention.0": [None, None, None],
        "present.0.key": ["B", models.KV_NUM_HEADS, None, models.HEAD_SIZE],
        "present.0.value": ["B", models.KV_NUM_HEADS, None, models.HEAD_SIZE],
    }
    for name, shape in shapes.items():
        kind = declared[name].type.tensor_type
        assert kind.elem_type == TensorProto.FLOAT16
        assert [d.dim_param or d.dim_value or None for d in kind.shape.dim] == shape


@pytest.mark.parametrize(("packed", "width"), [(False, 64), (True, 128)])
def test_declared_shape_follows_the_query(packed, width, tmp_path):
    made = models.decoder(layers=1, packed=packed)
    query = attention_of(made, 0).input[0]
    made.graph.value_info.append(models.tensor(query, TensorProto.FLOAT, ["B", "S", width]))
    _, new = rewritten(made, tmp_path)
    (declared,) = [v for v in new.graph.value_info if v.name == "attention.0"]
    dims = [d.dim_param or d.dim_value for d in declared.type.tensor_type.shape.dim]
    assert dims == ["B", "S", models.HIDDEN]


def test_what_a_model_declares_itself_stays(tmp_path):
    made = models.decoder(layers=1)
    made.graph.value_info.append(models.tensor("attention.0", TensorProto.FLOAT, ["a", "b", "c"]))
    _, new = rewritten(made, tmp_path)
    assert made.graph.value_info[0] in new.graph.value_info


def test_each_call_of_a_function_declares_its_outputs(tmp_path):
    _, new = rewritten(models.in_function(), tmp_path)
    declared = {v.name: v.type.tensor_type.elem_type for v in new.graph.value_info}
    assert declared["attention.0"] == declared["attention.1"] == TensorProto.FLOAT


@pytest.mark.parametrize("schedule", ["lean", "fixed_split", "direct", "stock"])
def test_schedule_is_an_attribute_of_each_node(schedule, tmp_path):
    _, new = rewritten(models.decoder(), tmp_path, schedule=schedule)
    for node in attention_nodes(new):
        values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        assert values["schedule"] == schedule.encode()


def test_unknown_schedule_names_the_known_ones(tmp_path):
    with pytest.raises(LeanAttentionError, match="'quick'; choose one of auto, lean"):
        rewritten(models.decoder(), tmp_path, schedule="quick")


def drop_presents(node: onnx.NodeProto) -> None:
    node.output[:] = [node.output[0], "", "", ""]


def no_cache(node: onnx.NodeProto) -> None:
    node.input[3], node.input[4] = "", ""
    del node.output[1:]


LEFT = {
    "bidirectional": (set_attribute(causal=0), "causal=0"),
    "window cache": (set_attribute(sliding_window_cache=1), "sliding_window_cache=1"),
    "scores by attribute": (set_attribute(qk_output=1), "outputs its scores"),
    "scores": (lambda node: node.output.append("scores"), "outputs its scores"),
    "query norm alone": (connect(14, "norm"), "only one of q_norm_weight and k_norm_weight"),
    "key norm alone": (connect(15, "norm"), "only one of q_norm_weight and k_norm_weight"),
    "keys alone": (connect(2, ""), "only one of key and value is connected"),
    "past keys alone": (connect(4, ""), "only one of past_key and past_value"),
    "cosines alone": (connect(8, ""), "only one of cos_cache and sin_cache"),
    "query lengths without a past": (
        lambda node: (connect(16, "seqlens_k")(node), connect(3, "")(node), connect(4, "")(node)),
        "query_seqlens is connected, and past_key and past_value are not",
    ),
    "norm by nothing": (set_attribute(qk_norm_epsilon=0.0), r"its q_norm_epsilon is 0\.0"),
    "key norm by nothing": (set_attribute(k_norm_epsilon=-1.0), r"its k_norm_epsilon is -1\.0"),
    "too many heads": (set_attribute(num_heads=1 << 17), "at most 65536"),
    "uneven heads": (set_attribute(kv_num_heads=3), r"num_heads \(4\) is not a multiple"),
    "no heads": (set_attribute(num_heads=0), r"num_heads \(0\)"),
    "presents dropped": (drop_presents, "ONNX Runtime itself returns wrong values"),
    "no cache at all": (no_cache, "the operator writes both"),
    "absurd window": (
        set_attribute(local_window_size=2**32 + 4),
        r"local_window_size \(4294967300",
    ),
    "no window": (set_attribute(local_window_size=0), r"local_window_size \(0\)"),
    "negative softcap": (set_attribute(softcap=-1.0), r"softcap is -1\.0"),
    "scale that is no number": (set_attribute(scale=float("nan")), "scale is nan"),
    "integer scale": (set_attribute(scale=1), "attribute scale has the type int, not float"),
    "float rotary": (set_attribute(do_rotary=1.0), "attribute do_rotary has the type float"),
    "text window": (set_attribute(local_window_size="4"), "local_window_size has the type string"),
    "number for a text": (set_attribute(k_quant_type=1), "k_quant_type has the type int"),
}


@pytest.mark.parametrize(("change", "reason"), LEFT.values(), ids=LEFT)
def test_unsupported_node_is_left_with_its_name_and_reason(change, reason, tmp_path):
    made = models.decoder()
    made.graph.input.append(models.tensor("norm", TensorProto.FLOAT, [16]))
    change(attention_of(made, 1))
    stock = onnx.NodeProto()
    stock.CopyFrom(attention_of(made, 1))
    result, new = rewritten(made, tmp_path)
    assert [node.name for node in result.replaced] == ["/layer.0/attention"]
    (left,) = result.left
    assert (left.name, left.location) == ("/layer.1/attention", "graph")
    assert left.op == "com.microsoft::GroupQueryAttention"
    assert re.search(reason, left.reason)
    # What to do about it.
    assert "; " in left.reason
    (kept,) = attention_nodes(new, "com.microsoft")
    while stock.output[-1] == "":
        stock.output.pop()
    # Bytes, because a NaN differs from itself.
    assert kept.SerializeToString() == stock.SerializeToString()
    summary = str(result)
    assert "1 of 2 GroupQueryAttention nodes replaced" in summary
    assert f"because {left.reason}:\n  /layer.1/attention" in summary


SUPPORTED = {
    "window": set_attribute(local_window_size=4),
    "softcap": set_attribute(softcap=2.0),
    "smooth softmax": set_attribute(smooth_softmax=1),
    "no rotary": set_attribute(do_rotary=0),
    "explicit defaults": set_attribute(causal=1, sliding_window_cache=0, k_quant_type="NONE"),
    "positions": connect(9, "positions"),
    "bias": connect(10, "bias"),
    "sink": connect(11, "sink"),
    "query lengths": connect(16, "seqlens_k"),
    "query and key norm": lambda node: (connect(14, "norm")(node), connect(15, "norm")(node)),
    "epsilon": set_attribute(qk_norm_epsilon=0.0, q_norm_epsilon=1e-5, k_norm_epsilon=1e-5),
}


@pytest.mark.parametrize("change", SUPPORTED.values(), ids=SUPPORTED)
def test_supported_feature_is_replaced(change, tmp_path):
    made = models.decoder(layers=1)
    made.graph.input.append(models.tensor("positions", TensorProto.INT64, ["B", "S"]))
    made.graph.input.append(models.tensor("bias", TensorProto.FLOAT, [1, 1, "S", "T"]))
    made.graph.input.append(models.tensor("sink", TensorProto.FLOAT, [models.NUM_HEADS]))
    made.graph.input.append(models.tensor("norm", TensorProto.FLOAT, [models.HEAD_SIZE]))
    change(attention_of(made, 0))
    result, _ = rewritten(made, tmp_path)
    assert len(result.replaced) == 1
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    onnxruntime.InferenceSession(tmp_path / "rewritten.onnx", options)


def test_heads_that_are_too_large_are_left(tmp_path):
    made = models.decoder(layers=1)
    made.graph.value_info.append(models.tensor("q.0.projected", TensorProto.FLOAT, [1, 1, 20000]))
    del made.graph.input[1].type.tensor_type.shape.dim[3]
    with pytest.raises(LeanAttentionError, match=r"heads are of size 5000; .* at most 4096"):
        rewritten(made, tmp_path)


def test_model_without_a_replaceable_node_is_refused_with_the_reasons(tmp_path):
    made = retype(models.decoder(dtype="float16"), TensorProto.FLOAT16, TensorProto.DOUBLE)
    set_attribute(causal=0)(attention_of(made, 1))
    with pytest.raises(LeanAttentionError) as caught:
        rewritten(made, tmp_path)
    message = str(caught.value)
    assert "1 because its type is double; the operator takes float, float16 and bfloat16" in message
    assert "1 because it attends in both directions (causal=0); the operator is" in message
    assert "for causal attention (/layer.1/attention)" in message
    assert "\n" not in message
    assert not (tmp_path / "rewritten.onnx").exists()


def test_bfloat16_is_replaced(tmp_path):
    made = retype(models.decoder(dtype="float16"), TensorProto.FLOAT16, TensorProto.BFLOAT16)
    result, new = rewritten(made, tmp_path)
    assert len(result.replaced) == 2
    assert not result.left
    declared = {value.name: value.type.tensor_type.elem_type for value in new.graph.value_info}
    assert {declared[node.output[0]] for node in attention_nodes(new)} == {TensorProto.BFLOAT16}


def without_declarations(made: onnx.ModelProto) -> onnx.ModelProto:
    """One layer without past and tables: only shape inference can tell its type."""
    node = attention_of(made, 0)
    node.input[3:] = ["", "", "seqlens_k", "total"]
    set_attribute(do_rotary=0)(node)
    del made.graph.output[1:]
    return made


def test_type_comes_from_shape_inference_where_nothing_declares_it(tmp_path):
    result, _ = rewritten(without_declarations(models.decoder(layers=1)), tmp_path)
    assert len(result.replaced) == 1


def test_node_of_unknown_type_is_left_and_says_so(tmp_path):
    made = without_declarations(models.decoder(layers=1))
    # A custom operator in front of the projections hides their type.
    for node in made.graph.node:
        if node.op_type == "MatMul" and node.input[1] in ("q.0", "k.0", "v.0"):
            node.domain, node.op_type = "com.microsoft", "Secret"
    with pytest.raises(LeanAttentionError, match="does not tell its element type"):
        rewritten(made, tmp_path)


def test_locations_name_subgraphs_and_functions(tmp_path):
    result, _ = rewritten(models.in_if(), tmp_path / "if")
    assert [node.location for node in result.replaced] == [
        "graph/choose.else_branch",
        "graph/choose.then_branch",
    ]
    result, _ = rewritten(models.in_function(), tmp_path / "function")
    assert [node.location for node in result.replaced] == ["function test::Attend"]


def test_function_called_with_two_types_is_left(tmp_path):
    made = models.in_function(layers=1)
    half = models.decoder(layers=1, dtype="float16")
    attention_of(half, 0).CopyFrom(made.graph.node[3])
    half.graph.node[3].ClearField("attribute")
    onnx.compose.add_prefix_graph(half.graph, "half_", inplace=True)
    made.graph.MergeFrom(half.graph)
    with pytest.raises(LeanAttentionError, match="function test::Attend"):
        rewritten(made, tmp_path)


def test_function_called_by_a_function_is_left(tmp_path):
    made = models.in_function()
    (inner,) = made.functions
    call = helper.make_node("Attend", inner.input, inner.output, domain="test", name="inner")
    opsets = [*models.OPSETS, helper.make_opsetid("test", 1)]
    outer = helper.make_function("test", "Outer", inner.input, inner.output, [call], opsets)
    made.functions.append(outer)
    for node in made.graph.node:
        if node.op_type == "Attend":
            node.op_type = "Outer"
    with pytest.raises(LeanAttentionError, match="its function is called by another one"):
        rewritten(made, tmp_path)


def test_attribute_that_each_call_of_a_function_sets_is_a_reason(tmp_path):
    made = models.in_function()
    (function,) = made.functions
    function.attribute.append("causal")
    reference = function.node[0].attribute.add()
    reference.name = reference.ref_attr_name = "causal"
    reference.type = onnx.AttributeProto.INT
    with pytest.raises(LeanAttentionError, match="its attribute causal is set by each call"):
        rewritten(made, tmp_path)


def test_model_without_attention_says_what_it_holds(tmp_path):
    made = models.decoder()
    kept = [node for node in made.graph.node if node.op_type == "MatMul"]
    del made.graph.node[:]
    made.graph.node.extend(kept)
    with pytest.raises(
        LeanAttentionError, match=r"nothing to rewrite.* 8 nodes are 8 ai\.onnx::Mat"
    ):
        rewritten(made, tmp_path)
    kept[0].op_type, kept[0].domain = "LongformerAttention", "com.microsoft"
    made.graph.node[0].CopyFrom(kept[0])
    with pytest.raises(LeanAttentionError, match=r"are 1 com\.microsoft::Longformer"):
        rewritten(made, tmp_path)


def test_rewriting_a_rewritten_model_does_nothing_and_says_so(tmp_path):
    rewritten(models.decoder(), tmp_path)
    result = rewrite(tmp_path / "rewritten.onnx", tmp_path / "again.onnx")
    assert result.unchanged == "is already rewritten: 2 of its nodes are LeanAttention's"
    assert "nothing was written" in str(result)
    assert not (tmp_path / "again.onnx").exists()


def test_partly_rewritten_model_is_rewritten_further(tmp_path):
    made = models.decoder()
    set_attribute(causal=0)(attention_of(made, 1))
    _, half = rewritten(made, tmp_path / "half")
    set_attribute(causal=1)(attention_of(half, 0))
    result, whole = rewritten(half, tmp_path / "whole")
    assert [node.name for node in result.replaced] == ["/layer.1/attention"]
    assert len(attention_nodes(whole)) == 2


@every_variant
def test_rewriting_twice_gives_the_same_bytes_and_leaves_the_source(make, tmp_path):
    source = models.save(make(), tmp_path / "source.onnx")
    before = source.read_bytes()
    for name in ("a.onnx", "b.onnx"):
        rewrite(source, tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert source.read_bytes() == before


STEPS = {"decode": ([4, 9, 32], 1), "prompt": ([6, 6], 6)}


@pytest.mark.parametrize(("lengths", "steps"), STEPS.values(), ids=STEPS)
@every_variant
def test_rewritten_model_computes_what_stock_computes(make, lengths, steps, tmp_path):
    made = make()
    rewritten(made, tmp_path)
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    stock = onnxruntime.InferenceSession(tmp_path / "source.onnx")
    ours = onnxruntime.InferenceSession(tmp_path / "rewritten.onnx", options)
    feeds = models.feeds(made, lengths, steps)
    if "flag" in feeds:
        feeds["flag"] = np.array(True)
    tolerance = 3e-2 if feeds["hidden"].dtype == np.float16 else 2e-5
    names = [output.name for output in stock.get_outputs()]
    for name, expected, got in zip(
        names, stock.run(None, feeds), ours.run(None, feeds), strict=True
    ):
        assert got.dtype == expected.dtype
        if name.startswith("present"):
            # Rows past the valid length are unspecified.
            valid = np.arange(expected.shape[2]) < np.array(lengths)[:, None]
            expected = np.where(valid[:, None, :, None], expected, 0)
            got = np.where(valid[:, None, :, None], got, 0)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
