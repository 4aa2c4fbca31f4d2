"""Models of onnxruntime-genai's builder, rewritten: every Phi, in every precision it makes."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from lean_attention import LeanAttentionError, rewrite
from lean_attention.runtime import DecoderModel, generate
from onnx_decoder import assert_like_stock
from phi_exports import build

pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")

# Activations stay floats: quantised to int8 they would amplify the last bit.
QUANTISED = ("accuracy_level=1",)
PHIS = ("phi-2", "phi-3", "phi-3.5", "phi-4", "phi-4-mini")
RUNNABLE = [
    *((name, "fp32", "cpu") for name in PHIS),
    *((name, "fp16", "cuda") for name in PHIS),
    ("phi-2", "int4", "cpu"),
    ("phi-4-mini", "int4", "cpu"),
    ("phi-4-mini", "int4", "cuda"),
    ("phi-4-mini", "int8", "cpu"),
]
# ONNX Runtime's CPU provider lacks bfloat16's MatMul, and PhiMoE's experts (QMoE with three
# weights): of these the graph alone is checked.
NOT_RUNNABLE = [
    ("phi-2", "bf16", "cuda"),
    ("phi-4-mini", "bf16", "cuda"),
    ("phi-moe", "int4", "cuda"),
]


def exported(name: str, precision: str, provider: str, folder: Path, *more: str) -> Path:
    options = [*more, *(QUANTISED if precision.startswith("int") else ())]
    return build(name, precision, provider, folder, "windowed_kv_cache=false", *options)


def attention_ops(folder: Path) -> list[str]:
    nodes = onnx.load(folder / "model.onnx", load_external_data=False).graph.node
    return [node.op_type for node in nodes if "Attention" in node.op_type]


@pytest.mark.parametrize("made", RUNNABLE, ids="-".join)
def test_rewritten_exports_give_stocks_tokens(made: tuple[str, str, str], tmp_path: Path) -> None:
    stock = exported(*made, tmp_path)
    result = rewrite(stock, tmp_path / "lean")
    assert (len(result.replaced), result.left) == (2, ())
    assert attention_ops(tmp_path / "lean") == ["LeanGroupQueryAttention"] * 2
    for lengths in ((12,), (12, 12)):
        assert_like_stock(stock / "model.onnx", tmp_path / "lean" / "model.onnx", lengths=lengths)


@pytest.mark.parametrize("name", ["phi-3.5", "phi-4-mini"])
def test_tokens_stay_stocks_across_the_switch_of_long_rope(name: str, tmp_path: Path) -> None:
    stock = exported(name, "fp32", "cpu", tmp_path)
    rewrite(stock, tmp_path / "lean")
    prompts = [np.random.default_rng(n).integers(3, 300, n).tolist() for n in (25, 7)]
    tokens = [
        generate(
            DecoderModel.load(folder, threads=1), prompts, max_new_tokens=20, ignore_eos=True
        ).tokens
        for folder in (stock, tmp_path / "lean")
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("made", NOT_RUNNABLE, ids="-".join)
def test_attention_alone_changes_in_a_graph(made: tuple[str, str, str], tmp_path: Path) -> None:
    stock = exported(*made, tmp_path)
    result = rewrite(stock, tmp_path / "lean")
    assert (len(result.replaced), result.left) == (2, ())
    before, after = (
        onnx.load(folder / "model.onnx", load_external_data=False).graph
        for folder in (stock, tmp_path / "lean")
    )
    for old, new in zip(before.node, after.node, strict=True):
        if old.op_type == "GroupQueryAttention":
            old.op_type, old.domain = "LeanGroupQueryAttention", "com.leanattention"
        assert list(old.input) == list(new.input)
        assert list(old.output) == list(new.output)
        assert (old.op_type, old.domain) == (new.op_type, new.domain)
        assert {a.name: a for a in old.attribute} == {a.name: a for a in new.attribute}


def test_caches_of_the_windows_size_are_left_stock(tmp_path: Path) -> None:
    stock = build("phi-3", "fp32", "cpu", tmp_path)
    with pytest.raises(LeanAttentionError, match="cache holds a sliding window only"):
        rewrite(stock, tmp_path / "lean")
