"""Models that optimum's exporter writes, rewritten: in optimum's environment, see the Makefile."""

import shutil
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

pytest.importorskip("optimum.exporters.onnx", reason="runs in `make test-optimum`")

from optimum.exporters.onnx import main_export
from optimum.onnxruntime import ORTModelForCausalLM

from lean_attention import register_custom_ops, rewrite
from lean_attention.export.tokenizer import byte_tokenizer
from onnx_decoder import assert_like_stock
from phi_exports import VOCABULARY, phi_model

pytestmark = pytest.mark.optimum


def exported(name: str, folder: Path) -> Path:
    """What ``optimum-cli export onnx --task text-generation-with-past`` writes: a folder."""
    source = folder / "source"
    phi_model(name).save_pretrained(source)
    byte_tokenizer(VOCABULARY).save_pretrained(source)
    main_export(
        str(source),
        folder / "stock",
        task="text-generation-with-past",
        library_name="transformers",
        do_validation=False,
    )
    return folder / "stock"


@pytest.mark.parametrize("name", ["phi-2", "phi-3.5", "phi-4"])
def test_exports_of_optimum_give_stocks_tokens(name: str, tmp_path: Path) -> None:
    stock, lean = exported(name, tmp_path) / "model.onnx", tmp_path / "lean.onnx"
    result = rewrite(stock, lean)
    assert (len(result.replaced), result.left) == (2, ())
    nodes = onnx.load(lean, load_external_data=False).graph.node
    assert "Softmax" not in [node.op_type for node in nodes]
    # Caches are appended to by the operator alone.
    assert not [n for n in nodes if n.op_type == "Concat" and "past" in n.input[0]]
    for lengths in ((12,), (12, 12), (12, 5, 9)):
        assert_like_stock(stock, lean, lengths=lengths)


def test_optimum_generates_stocks_tokens_with_padding_on_the_left(tmp_path: Path) -> None:
    # Of Phi-3 configurations optimum takes those alone that have as many KV heads as query heads.
    stock, lean = exported("phi-2", tmp_path), tmp_path / "lean"
    shutil.copytree(stock, lean, ignore=shutil.ignore_patterns("*.onnx"))
    rewrite(stock / "model.onnx", lean / "model.onnx")
    prompts = torch.randint(3, 300, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(prompts)
    mask[1, :5] = 0
    tokens = []
    for folder in (stock, lean):
        options = onnxruntime.SessionOptions()
        register_custom_ops(options)
        model = ORTModelForCausalLM.from_pretrained(
            folder, session_options=options, local_files_only=True
        )
        settings = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
        tokens.append(model.generate(prompts, attention_mask=mask, **settings).tolist())
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0][1][12:])) > 3
