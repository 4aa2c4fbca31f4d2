"""ONNX's own Attention with a cache, as torch.onnx writes it from operator set 23 on."""

from pathlib import Path

import onnx
import pytest

from hand_made_attention import assert_same, feeds, mask_nodes, parsed
from lean_attention import LeanAttentionError, rewrite
from onnx_decoder import assert_like_stock
from phi_exports import export_with_torch
from rewrite_models import save

STEPS = ((3, 0, 1), (3, 9, 1), (2, 0, 6), (1, 9, 4), (1, 300, 1))
# In operator set 23 torch writes a RotaryEmbedding that ONNX Runtime takes for one sequence only.
EXPORTS = {("phi-2", 23): ((12,),), ("phi-4", 24): ((12,), (12, 12), (12, 5, 9))}


@pytest.mark.parametrize("made", EXPORTS, ids=str)
def test_exports_of_torch_give_stocks_tokens(made: tuple[str, int], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra 'genai'")
    stock = export_with_torch(*made, tmp_path / "stock.onnx")
    lean = tmp_path / "lean.onnx"
    result = rewrite(stock, lean)
    assert (len(result.replaced), result.left) == (2, ())
    nodes = onnx.load(lean, load_external_data=False).graph.node
    ops = [node.op_type for node in nodes]
    assert ops.count("LeanGroupQueryAttention") == 2
    assert "Attention" not in ops
    # Caches are appended to by the operator alone.
    assert not [n for n in nodes if n.op_type == "Concat" and "past" in n.input[0]]
    for lengths in EXPORTS[made]:
        assert_like_stock(stock, lean, lengths=lengths)


# Nodes made by hand

INPUTS = (
    "float[B,S,64] query, float[B,S,32] key, float[B,S,32] value, float[B,2,P,16] past_key, "
    "float[B,2,P,16] past_value, int64[B,T] attention_mask"
)
OUTPUTS = "float[B,S,64] output, float[B,2,T,16] present_key, float[B,2,T,16] present_value"
HEADS_APART = """
    of_queries = Constant <value_ints = [0, 0, 4, 16]> ()
    of_keys = Constant <value_ints = [0, 0, 2, 16]> ()
    q_apart = Reshape (query, of_queries)
    k_apart = Reshape (key, of_keys)
    v_apart = Reshape (value, of_keys)
    q = Transpose <perm = [0, 2, 1, 3]> (q_apart)
    k = Transpose <perm = [0, 2, 1, 3]> (k_apart)
    v = Transpose <perm = [0, 2, 1, 3]> (v_apart)
"""
HEADS_TOGETHER = """
    y_apart = Transpose <perm = [0, 2, 1, 3]> (y)
    flat_heads = Constant <value_ints = [0, 0, 64]> ()
    output = Reshape (y_apart, flat_heads)
"""
NODE = (
    "y, present_key, present_value = Attention <scale = 0.3 {attributes}> "
    '(q, k, v, "{mask}", past_key, past_value)'
)
HEADS = ", q_num_heads = 4, kv_num_heads = 2"
CAUSAL = ", is_causal = 1"


def node(attributes: str = "", mask: str = "") -> str:
    return HEADS_APART + NODE.format(attributes=attributes, mask=mask) + HEADS_TOGETHER


def outside(nodes: str, reads: str, attributes: str = "") -> str:
    """An Attention node over a cache that the graph appends to before it."""
    return f"""{HEADS_APART}
        present_key = Concat <axis = 2> (past_key, k)
        present_value = Concat <axis = -2> (past_value, v)
        {nodes}
        y = Attention <scale = 0.3 {attributes}> (q, {reads})
        {HEADS_TOGETHER}"""


REPEAT = """
    twice = Constant <value_ints = [1, 1, 2, 1, 1]> ()
    two = Constant <value_ints = [2]> ()
    flat = Constant <value_ints = [0, 4, -1, 16]> ()
    k5 = Unsqueeze (present_key, two)
    v5 = Unsqueeze (present_value, two)
    k_tiled = Tile (k5, twice)
    v_tiled = Tile (v5, twice)
    k4 = Reshape (k_tiled, flat)
    v4 = Reshape (v_tiled, flat)
"""
# Head 0, head 1, head 0, head 1: another order than that of query groups.
INTERLEAVE = REPEAT.replace("ints = [1, 1, 2, 1, 1]", "ints = [1, 2, 1, 1, 1]")
MASKED = {
    "boolean mask": mask_nodes() + node(mask="seen_keys"),
    "mask of floats": mask_nodes() + node(", softcap = 2.0", "bias"),
    "cache outside": mask_nodes() + outside("", "present_key, present_value, seen_keys"),
    "heads repeated outside": mask_nodes() + outside(REPEAT, "k4, v4, bias"),
}
UNMASKED = {
    "causal": node(CAUSAL),
    "mask of two dimensions": mask_nodes() + node(mask="causal"),
    "heads in one dimension": NODE.format(attributes=CAUSAL + HEADS, mask="")
    .replace("y, present", "output, present", 1)
    .replace("(q, k, v", "(query, key, value"),
}


@pytest.mark.parametrize("name", [*MASKED, *UNMASKED])
def test_nodes_made_by_hand_say_the_same(name: str, tmp_path: Path) -> None:
    made = parsed((MASKED | UNMASKED)[name], INPUTS, OUTPUTS)
    stock, lean = save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx"
    assert len(rewrite(stock, lean).replaced) == 1
    for step in STEPS:
        assert_same(stock, lean, feeds(made, *step))
        if name in MASKED:
            assert_same(stock, lean, feeds(made, *step, padded=True))


def test_a_cache_that_others_read_stays_for_them(tmp_path: Path) -> None:
    nodes = "present_shape = Shape (present_key)"
    body = mask_nodes() + outside(nodes, "present_key, present_value, seen_keys")
    made = parsed(body, INPUTS, f"{OUTPUTS}, int64[4] present_shape")
    stock, lean = save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx"
    assert len(rewrite(stock, lean).replaced) == 1
    assert_same(stock, lean, feeds(made, 2, 5, 1))


LEFT = {
    "shows a token those after it": mask_nodes("GreaterOrEqual") + node(mask="seen_keys"),
    "attends in both directions": node(),
    "a cache that it does not know of": outside("", "present_key, present_value", CAUSAL),
    "reads no cache": mask_nodes() + outside(INTERLEAVE, "k4, v4, bias"),
    "cache is written before it": node(CAUSAL).replace("past_value)", "past_value, lengths)"),
    "outputs its scores": node(CAUSAL).replace("present_value =", "present_value, scores ="),
    "softmax is computed in double": node(f"{CAUSAL}, softmax_precision = 11"),
    "has the shape": mask_nodes()
    + "less = Sub (t, last) axis = Constant <value_ints = [3]> ()"
    + "short = Slice (seen_keys, none, less, axis)"
    + node(mask="short"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_has_no_form_in_ours_is_left_with_the_reason(reason: str, tmp_path: Path) -> None:
    made = parsed(LEFT[reason], f"{INPUTS}, int64[B] lengths", OUTPUTS)
    made.opset_import[0].version = 24
    with pytest.raises(LeanAttentionError, match=reason):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")
