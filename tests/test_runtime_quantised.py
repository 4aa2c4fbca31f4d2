"""The runtime and the rewriter on models whose caches onnxruntime-genai's builder quantises."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from lean_attention import rewrite
from lean_attention.runtime import DecoderModel, DecodeSession, cache_bytes, generate
from test_runtime import genai_greedy, prompts_of

LAYERS, CHANNELS = 2, 32
# Scheme, the cache's type, bytes of a head's row, and a scale that few values saturate.
SCHEMES = {
    "int8_per_channel": (np.int8, 16, 0.2),
    "int4_per_tensor": (np.uint8, 8, 3.0),
}


@pytest.fixture(scope="module", params=SCHEMES)
def quantised_model(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """A scheme's name, the tiny model built by it, and its rewritten copy."""
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    folder = tmp_path_factory.mktemp(request.param)
    scale = SCHEMES[request.param][2]
    count = CHANNELS if request.param.endswith("channel") else 1
    rng = np.random.default_rng(5)
    layers = {
        name: (scale * rng.uniform(0.7, 1.3, (LAYERS, count))).tolist()
        for name in ("k_scales", "v_scales")
    }
    (folder / "scales.json").write_text(json.dumps({"scales": layers}))
    options = [
        f"kv_cache_quant_scheme={request.param}",
        f"kv_cache_scale_file={folder / 'scales.json'}",
    ]
    source, stock, lean = tiny_model.parent / "source", folder / "stock", folder / "lean"
    place = ("tiny", str(source), str(stock), "fp32", "cpu", str(folder / "cache"))
    with contextlib.redirect_stdout(io.StringIO()):
        create_model(*place, **parse_extra_options(*place, options))
    assert not rewrite(stock, lean).left
    return request.param, stock, lean


def test_caches_have_the_type_and_the_size_of_the_scheme(quantised_model) -> None:
    scheme, stock, _ = quantised_model
    dtype, width, _ = SCHEMES[scheme]
    model = DecoderModel.load(stock, threads=1)
    assert (model.cache_dtype, model.head_size, model.cache_width) == (dtype, 16, width)
    assert cache_bytes(model, 3, 100) == 2 * LAYERS * 3 * 2 * 100 * width


def test_stock_rewritten_and_genai_choose_the_same_tokens(quantised_model) -> None:
    _, *folders = quantised_model
    stock, lean = (DecoderModel.load(folder, threads=1) for folder in folders)
    for prompt in prompts_of(1, 6, 40):
        expected = genai_greedy(stock.folder, prompt, 20)
        assert len(set(expected)) > 5
        for model in (stock, lean):
            result = generate(model, [prompt], max_new_tokens=20, ignore_eos=True)
            assert result.tokens == [expected]
        assert genai_greedy(lean.folder, prompt, 20) == expected


def test_rows_of_a_batch_and_chunks_get_the_tokens_they_get_alone(quantised_model) -> None:
    model = DecoderModel.load(quantised_model[2], threads=1)
    prompts = prompts_of(23, 1, 5)
    alone = [
        generate(model, [prompt], max_new_tokens=20, ignore_eos=True).tokens[0]
        for prompt in prompts
    ]
    assert generate(model, prompts, max_new_tokens=20, ignore_eos=True).tokens == alone
    session = DecodeSession(model, 1, 60)
    session.prefill([prompts[0][:10]])
    assert int(session.extend(prompts[0][10:15]).argmax()) >= 0
    assert int(session.extend(prompts[0][15:]).argmax()) == alone[0][0]


def test_synthetic_context_fills_quantised_caches(quantised_model) -> None:
    session = DecodeSession(DecoderModel.load(quantised_model[2], threads=1), 2, 50)
    session.synthesise([40, 7])
    assert np.isfinite(session.step([5, 6])).all()
    (buffer, *_) = session.cache.buffers.values()
    assert len(np.unique(buffer.numpy())) > 200
