"""Models that optimum's exporter writes, rewritten: in optimum's environment, see the Makefile."""

from pathlib import Path

import onnx
import pytest

pytest.importorskip("optimum.exporters.onnx", reason="runs in `make test-optimum`")

from optimum.exporters.onnx import main_export

from lean_attention import rewrite
from lean_attention.export.tokenizer import byte_tokenizer
from onnx_decoder import assert_like_stock
from phi_exports import VOCABULARY, phi_model

pytestmark = pytest.mark.optimum


@pytest.mark.parametrize("name", ["phi-2", "phi-3.5", "phi-4"])
def test_exports_of_optimum_give_stocks_tokens(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    phi_model(name).save_pretrained(source)
    byte_tokenizer(VOCABULARY).save_pretrained(source)
    main_export(
        str(source),
        tmp_path / "stock",
        task="text-generation-with-past",
        library_name="transformers",
        do_validation=False,
    )
    stock, lean = tmp_path / "stock" / "model.onnx", tmp_path / "lean.onnx"
    result = rewrite(stock, lean)
    assert (len(result.replaced), result.left) == (2, ())
    nodes = onnx.load(lean, load_external_data=False).graph.node
    assert "Softmax" not in [node.op_type for node in nodes]
    # Caches are appended to by the operator alone.
    assert not [n for n in nodes if n.op_type == "Concat" and "past" in n.input[0]]
    for lengths in ((12,), (12, 12), (12, 5, 9)):
        assert_like_stock(stock, lean, lengths=lengths)
