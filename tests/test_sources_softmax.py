"""Attention written out as MatMul, Softmax, MatMul: torch.onnx before operator set 23."""

import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from hand_made_attention import assert_same, feeds, mask_nodes, parsed
from lean_attention import LeanAttentionError, rewrite
from lean_attention.rewrite.patterns import BUILDER, describe
from onnx_decoder import assert_like_stock
from phi_exports import export_with_torch
from rewrite_models import save
from test_sources_onnx import HEADS_APART, HEADS_TOGETHER, INPUTS, OUTPUTS, STEPS


def test_exports_of_torch_give_stocks_tokens(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra 'genai'")
    stock = export_with_torch("phi-4", 18, tmp_path / "stock.onnx")
    lean = tmp_path / "lean.onnx"
    result = rewrite(stock, lean)
    assert (len(result.replaced), result.left) == (2, ())
    nodes = onnx.load(lean, load_external_data=False).graph.node
    assert "Softmax" not in [node.op_type for node in nodes]
    # Caches are appended to by the operator alone.
    assert not [n for n in nodes if n.op_type == "Concat" and "past" in n.input[0]]
    for lengths in ((12,), (12, 12), (12, 5, 9)):
        assert_like_stock(stock, lean, lengths=lengths)
    fused = tmp_path / "fused.onnx"
    result = rewrite(stock, fused, fuse=True)
    assert len(result.replaced) == 2
    assert "com.microsoft::SkipSimplifiedLayerNormalization" not in result.before
    assert result.after["com.microsoft::SkipSimplifiedLayerNormalization"] == 4
    assert_like_stock(stock, fused, lengths=(12, 12))


def test_without_onnxscript_fusing_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = save(parsed(SAME["plain"], INPUTS, OUTPUTS), tmp_path / "stock.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript.rewriter.ort_fusions.erfgelu", None)
    with pytest.raises(LeanAttentionError, match=r"pip install 'lean-attention\[genai\]'"):
        rewrite(stock, tmp_path / "lean.onnx", fuse=True)
    assert not (tmp_path / "lean.onnx").exists()


# Nodes made by hand

CACHES = """
    present_key = Concat <axis = 2> (past_key, k)
    present_value = Concat <axis = 2> (past_value, v)
    two = Constant <value_ints = [2]> ()
    twice = Constant <value_ints = [1, 1, 2, 1, 1]> ()
    flat = Constant <value_ints = [0, 4, -1, 16]> ()
    k5 = Unsqueeze (present_key, two)
    v5 = Unsqueeze (present_value, two)
    k_tiled = Tile (k5, twice)
    v_tiled = Tile (v5, twice)
    k4 = Reshape (k_tiled, flat)
    v4 = Reshape (v_tiled, flat)
"""
# Scores must be a product with a mask added: here the scale stands before it, on the queries.
SCALED = """
    half = Constant <value_float = 0.3> ()
    q_scaled = Mul (q, half)
    keys_transposed = Transpose <perm = [0, 1, 3, 2]> (k4)
    product = MatMul (q_scaled, keys_transposed)
    scores = Add (product, bias)
    likely = Softmax <axis = -1> (scores)
"""
PLAIN = "y = MatMul (likely, v4)"
ZEROED = """
    unseen = IsNaN (likely)
    nothing = Constant <value_float = 0.0> ()
    weights = Where (unseen, nothing, likely)
    y = MatMul (weights, v4)
"""


def body(scores: str = SCALED, product: str = PLAIN, mask: str = "", caches: str = CACHES) -> str:
    return (mask or mask_nodes()) + HEADS_APART + caches + scores + product + HEADS_TOGETHER


# A mask as long as the keys that it reads the shape of.
OF_THE_KEYS = """
    key_shape = Shape (k4)
    from_2 = Constant <value_ints = [2]> ()
    to_3 = Constant <value_ints = [3]> ()
    key_rows = Slice (key_shape, from_2, to_3)
    axis_3 = Constant <value_ints = [3]> ()
    cut = Slice (bias, none, key_rows, axis_3)
"""
SAME = {
    "plain": body(),
    "rows without keys are zero": body(product=ZEROED),
    "divided": body(SCALED.replace("Mul (q, half)", "Div (q, half)")),
    "mask first": body(SCALED.replace("Add (product, bias)", "Add (bias, product)")),
    "mask reads the keys' shape": body(
        OF_THE_KEYS + SCALED.replace("(product, bias)", "(product, cut)")
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_nodes_made_by_hand_say_the_same(name: str, tmp_path: Path) -> None:
    made = parsed(SAME[name], INPUTS, OUTPUTS)
    stock, lean = save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx"
    assert len(rewrite(stock, lean).replaced) == 1
    assert not [n for n in onnx.load(lean).graph.node if n.op_type in ("Softmax", "Tile")]
    for step in STEPS:
        assert_same(stock, lean, feeds(made, *step))
        assert_same(stock, lean, feeds(made, *step, padded=True))


LEFT = {
    "shows a token those after it": body(mask=mask_nodes("GreaterOrEqual")),
    "attends in both directions": body(SCALED.replace("Add (product, bias)", "Identity (product)"))
    .replace("scores = Identity (product)", "")
    .replace("(scores)", "(product)"),
    "not over the keys": body(SCALED.replace("axis = -1", "axis = 2")),
    "not the product of queries and keys": body(
        SCALED.replace(
            "keys_transposed = Transpose <perm = [0, 1, 3, 2]> (k4)",
            "other = Constant <value_ints = [0, 0, 16, -1]> () "
            "keys_transposed = Reshape (k4, other)",
        )
    ),
    "reads no cache": body(caches=CACHES.replace("[1, 1, 2, 1, 1]", "[1, 2, 1, 1, 1]")),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_has_no_form_in_ours_is_left_with_the_reason(reason: str, tmp_path: Path) -> None:
    made = parsed(LEFT[reason], INPUTS, OUTPUTS)
    with pytest.raises(LeanAttentionError, match=reason):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")


HALF = ZEROED.replace("value_float = 0.0", "value_float = 0.5")
OTHER_USES = {
    "read by another node": (PLAIN + " more = Identity (likely)", "more"),
    "an output of the model": (PLAIN, "likely"),
    "rows without keys are a half": (HALF, ""),
}


@pytest.mark.parametrize("use", OTHER_USES)
def test_a_softmax_of_another_use_is_left(use: str, tmp_path: Path) -> None:
    product, output = OTHER_USES[use]
    outputs = f"{OUTPUTS}, float[a,b,c,d] {output}" if output else OUTPUTS
    made = parsed(body(product=product), INPUTS, outputs)
    with pytest.raises(LeanAttentionError, match=r"1 x MatMul → Add → Softmax → .*as optimum"):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")


CAST = PLAIN.replace("y = MatMul (likely", "cast = Cast <to = 1> (likely) y = MatMul (cast")
SHAPES = {
    "2 x MatMul → Add → Softmax → MatMul": body()
    + "".join(
        f"{line.replace('scores', 'scores2').replace('likely', 'likely2')}\n"
        for line in ("scores = Add (product, bias)", "likely = Softmax (scores)")
    )
    + "z = MatMul (likely2, v4)",
    "1 x MatMul → Add → Softmax → Where → MatMul": body(product=HALF),
    "1 x MatMul → Add → Softmax → Cast → MatMul": body(product=CAST),
    "1 x MatMul → Softmax → MatMul": body().replace(
        "Softmax <axis = -1> (scores)", "Softmax <axis = -1> (product)"
    ),
}


@pytest.mark.parametrize("line", SHAPES)
def test_attention_written_out_is_named_with_a_better_export(line: str) -> None:
    (found,) = describe(ir.from_proto(parsed(SHAPES[line], INPUTS, OUTPUTS)))
    assert found.startswith(f"{line}, as optimum's exporter")
    assert "without a cache" not in found
    assert found.endswith(f"to have GroupQueryAttention instead: {BUILDER}")


def test_a_model_without_caches_is_said_to_need_them() -> None:
    made = parsed(
        "p = MatMul (query, k) s = Softmax (p) output = MatMul (s, v)",
        "float[S,8] query, float[8,S] k, float[S,8] v",
        "float[S,8] output",
    )
    (found,) = describe(ir.from_proto(made))
    assert "; without a cache, which a model that generates needs; to have" in found


def test_the_advice_is_a_command_of_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")
    from onnxruntime_genai.models import builder

    monkeypatch.setattr("sys.argv", BUILDER.split()[2:])
    read = builder.get_args()
    assert (read.input, read.output, read.precision) == ("MODEL", "FOLDER", "int4")
    assert read.execution_provider == "cpu"
    assert read.extra_options == ["windowed_kv_cache=false"]


def test_a_router_is_no_attention() -> None:
    made = parsed(
        "p = MatMul (query, k) s = Softmax (p) output = Identity (s)",
        "float[S,8] query, float[8,S] k",
        "float[S,S] output",
    )
    assert describe(ir.from_proto(made)) == []
