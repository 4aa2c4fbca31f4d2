"""Fixtures of the rewriter's file tests: a model, its folder, and a refusal."""

from pathlib import Path

import pytest

import rewrite_models as models
from lean_attention import LeanAttentionError, get_library_path, rewrite
from rewrite_disk import listing, write_json


@pytest.fixture
def model(tmp_path) -> Path:
    """A model file whose weights are in ``weights.bin`` beside it."""
    return models.save(models.decoder(), tmp_path / "source" / "model.onnx", data="weights.bin")


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """The operator library as a file of another name, which these tests copy and may remove."""
    path = tmp_path / "elsewhere" / "some_build.so"
    path.parent.mkdir()
    path.write_bytes(get_library_path().read_bytes())
    monkeypatch.setenv("LEAN_ATTENTION_LIBRARY", str(path))
    return path


@pytest.fixture
def folder(model, library) -> Path:
    """A model folder of onnxruntime-genai, as far as the rewriter reads it."""
    source = model.parent
    options = {"log_id": "onnxruntime-genai", "provider_options": []}
    decoder = {"session_options": options, "filename": "model.onnx", "head_size": 16}
    config = {"model": {"type": "phi3", "decoder": decoder, "e": 1e-05}, "search": {"top_k": 50}}
    write_json(source / "genai_config.json", config)
    write_json(source / "tokenizer.json", {"version": "1.0"})
    (source / "extra").mkdir()
    (source / "extra" / "template.jinja").write_text("{{ x }}")
    return source


@pytest.fixture
def refused(tmp_path):
    """Asserts that a rewrite ends with one clear line, and that nothing changed on the disk."""

    def check(source: Path, destination: Path, message: str) -> None:
        before = listing(tmp_path)
        with pytest.raises(LeanAttentionError, match=message) as caught:
            rewrite(source, destination)
        assert "\n" not in str(caught.value)
        assert listing(tmp_path) == before

    return check
