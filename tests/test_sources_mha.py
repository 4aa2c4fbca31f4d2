"""MultiHeadAttention with a cache, as onnxruntime-genai's builder and older tools write it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from hand_made_attention import assert_same, feeds, mask_nodes, parsed
from lean_attention import LeanAttentionError, rewrite
from onnx_decoder import assert_like_stock
from phi_exports import build
from rewrite_models import save

PHIS = ("phi-2", "phi-3", "phi-3.5", "phi-4-mini")
STEPS = ((3, 0, 1), (3, 9, 1), (2, 0, 6), (1, 9, 4), (1, 300, 1))
NODE = (
    "output, present_key, present_value = com.microsoft.MultiHeadAttention"
    ' <num_heads = 2 {attributes}> (query, key, value, "{bias}", "{padding}", "{mask}", '
    "past_key, past_value{more})"
)


def node(
    attributes: str = "", *, bias: str = "", padding: str = "", mask: str = "", more: str = ""
) -> str:
    return NODE.format(attributes=attributes, bias=bias, padding=padding, mask=mask, more=more)


@pytest.mark.parametrize("name", PHIS)
def test_float16_exports_for_cpus_give_stocks_tokens(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")
    stock = build(name, "fp16", "cpu", tmp_path) / "model.onnx"
    lean = tmp_path / "lean" / "model.onnx"
    result = rewrite(stock, lean)
    assert (len(result.replaced), result.left) == (2, ())
    nodes = onnx.load(lean, load_external_data=False).graph.node
    assert [n.op_type for n in nodes].count("LeanGroupQueryAttention") == 2
    # What repeated the KV heads is gone.
    assert not [n.name for n in nodes if "repeat_kv" in n.name and n.op_type == "Expand"]
    for lengths in ((12,), (12, 12), (12, 5, 9)):
        assert_like_stock(stock, lean, lengths=lengths)


def test_onnxruntime_genai_runs_a_rewritten_folder(tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")
    stock = build("phi-2", "fp16", "cpu", tmp_path)
    rewrite(stock, tmp_path / "lean")
    prompts = np.array([[5, 9, 33, 70, 12, 8], [99, 9, 133, 70, 120, 8]], np.int32)
    said = []
    for folder in (stock, tmp_path / "lean"):
        params = genai.GeneratorParams(genai.Model(str(folder)))
        params.set_search_options(max_length=24, do_sample=False, batch_size=2)
        generator = genai.Generator(genai.Model(str(folder)), params)
        generator.append_tokens(prompts)
        while not generator.is_done():
            generator.generate_next_token()
        said.append([generator.get_sequence(row).tolist() for row in range(2)])
    assert said[0] == said[1]
    assert len(set(said[0][0][6:])) > 3


def test_bfloat16_exports_for_cpus_are_rewritten(tmp_path: Path) -> None:
    # ONNX Runtime's CPU provider lacks bfloat16's Where and MatMul: the graph alone is checked.
    pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")
    stock = build("phi-4-mini", "bf16", "cpu", tmp_path) / "model.onnx"
    result = rewrite(stock, tmp_path / "lean" / "model.onnx")
    assert (len(result.replaced), result.left) == (2, ())


MASKED = {
    "causal and padding": mask_nodes() + node(mask="bias"),
    "with a window": mask_nodes(
        more="""three = Constant <value_int = 3> ()
        begin = Sub (columns, three)
        near = Greater (keys, begin)
        visible = And (causal, near)"""
    )
    + node(", scale = 0.5", mask="bias"),
    "padding alone, in a causal node": mask_nodes(more="visible = Or (causal, not_causal)").replace(
        "causal = LessOrEqual (keys, columns)",
        "causal = LessOrEqual (keys, columns) not_causal = Not (causal)",
    )
    + node(", unidirectional = 1", mask="bias"),
}
UNMASKED = {
    "causal": node(", unidirectional = 1"),
    "causal and scaled": node(", unidirectional = 1, scale = 0.5"),
}


@pytest.mark.parametrize("name", [*MASKED, *UNMASKED])
def test_nodes_made_by_hand_say_the_same(name: str, tmp_path: Path) -> None:
    made = parsed((MASKED | UNMASKED)[name])
    stock, lean = save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx"
    assert len(rewrite(stock, lean).replaced) == 1
    for step in STEPS:
        assert_same(stock, lean, feeds(made, *step))
        if name in MASKED:
            assert_same(stock, lean, feeds(made, *step, padded=True))
    if name in MASKED:
        assert_same(stock, lean, feeds(made, 3, 9, 4, padded=True))
        assert_same(stock, lean, feeds(made, 3, 9, 12, padded=True))


def test_one_token_needs_no_mask(tmp_path: Path) -> None:
    made = parsed(node())
    for value in made.graph.input[:3]:
        value.type.tensor_type.shape.dim[1].dim_value = 1
    stock, lean = save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx"
    assert len(rewrite(stock, lean).replaced) == 1
    assert_same(stock, lean, feeds(made, 3, 9, 1))


def test_layers_share_what_tells_their_lengths(tmp_path: Path) -> None:
    second = node(mask="bias").replace("(query, key", "(output, key")
    second = second.replace("output, present_key, present_value =", "output2, k2, v2 =")
    made = parsed(mask_nodes() + node(mask="bias") + second)
    lean = tmp_path / "lean.onnx"
    rewrite(save(made, tmp_path / "stock.onnx"), lean)
    both = [n for n in onnx.load(lean).graph.node if n.op_type == "LeanGroupQueryAttention"]
    assert len(both) == 2
    assert both[0].input[5:7] == both[1].input[5:7]
    assert both[0].input[16] == both[1].input[16]


TAKES_SCORES = "position_bias = Cast <to = 1> (keys) biased = Add (bias, position_bias)"
LEFT = {
    "shows a token those after it": mask_nodes("GreaterOrEqual") + node(mask="bias"),
    "hides a token from itself": mask_nodes("Less") + node(mask="bias"),
    "other numbers than 0": mask_nodes() + TAKES_SCORES + node(mask="biased"),
    "a bias by position": mask_nodes(hidden="-2.0") + node(mask="bias"),
    "depends on query": mask_nodes()
    + "low = ReduceMin (query) many = Mul (bias, low)"
    + node(mask="many"),
    "attends in both directions": node(),
    "key_padding_mask": "i = Cast <to = 6> (attention_mask)" + node(padding="i"),
    "bias of the projections": node(", unidirectional = 1", bias="b"),
    "num_heads is 0": node(", unidirectional = 1").replace("num_heads = 2", "num_heads = 0"),
    "a buffer of its own": node(", unidirectional = 1", more=", p"),
    "reads no cache": node(", unidirectional = 1").replace("past_key, past_value)", '"", "")'),
    "outputs its scores": node(", unidirectional = 1").replace(" = com", ", qk = com"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_has_no_form_in_ours_is_left_with_the_reason(reason: str, tmp_path: Path) -> None:
    more = ", float[96] b, int32[1] p"
    made = parsed(LEFT[reason])
    made.graph.input.extend(parsed("", f"int64[1] x{more}", "").graph.input[1:])
    with pytest.raises(LeanAttentionError, match=reason):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")
    assert not (tmp_path / "lean.onnx").exists()


@pytest.mark.parametrize("op", ["SparseAttention", "PagedAttention", "Attention"])
def test_attention_without_a_form_in_ours_is_named(op: str, tmp_path: Path) -> None:
    made = parsed(f"output = com.microsoft.{op} (query, key)", outputs="float[B,S,32] output")
    with pytest.raises(LeanAttentionError, match=f"left stock: 1 because .*{op}|cache|blocks"):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")
