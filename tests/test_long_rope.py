"""LongRoPE: an ``If`` changes the rotary tables at a length, in stock and in rewritten models."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from lean_attention import rewrite
from lean_attention.errors import LeanAttentionError
from lean_attention.runtime import DecoderModel, DecodeSession
from test_runtime import NEW, greedy, prompts_of


@pytest.fixture(scope="module")
def stock(tiny_long_rope_model: Path) -> DecoderModel:
    return DecoderModel.load(tiny_long_rope_model, threads=1)


@pytest.fixture(scope="module")
def rewritten(tiny_long_rope_model: Path, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    folder = tmp_path_factory.mktemp("long-rope") / "lean"
    assert not rewrite(tiny_long_rope_model, folder).left
    return DecoderModel.load(folder, threads=1)


@pytest.fixture(params=["stock", "rewritten"])
def long_rope(request: pytest.FixtureRequest) -> DecoderModel:
    model: DecoderModel = request.getfixturevalue(request.param)
    return model


def test_the_rewriter_keeps_the_if(stock: DecoderModel, rewritten: DecoderModel) -> None:
    found = []
    for model in (stock, rewritten):
        nodes = onnx.load(model.path, load_external_data=False).graph.node
        found.append([node.SerializeToString() for node in nodes if node.op_type == "If"])
    assert found[0] == found[1] != []


@pytest.mark.parametrize("length", [5, 31, 32, 33, 100])
@pytest.mark.parametrize("short_runs", [False, True])
def test_decoding_equals_a_fresh_prompt_at_every_length(
    long_rope: DecoderModel, length: int, short_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert long_rope.rope_switch == 32
    (prompt,) = prompts_of(length)
    tokens = list(prompt)
    fresh = DecodeSession(long_rope)
    for _ in range(NEW):
        tokens.append(int(fresh.prefill([tokens])[0].argmax()))
    if short_runs:
        monkeypatch.setattr(DecodeSession, "_chunk_tokens", lambda _: 7)
    assert greedy(long_rope, [prompt])[0] == tokens[length:]


@pytest.mark.parametrize("lengths", [(5,), (31,), (32,), (33,), (20, 3, 27), (40, 3, 31)], ids=str)
def test_rewritten_tokens_are_stocks(
    stock: DecoderModel, rewritten: DecoderModel, lengths: tuple[int, ...]
) -> None:
    prompts = prompts_of(*lengths)
    assert greedy(rewritten, prompts) == greedy(stock, prompts)


def test_batches_and_rewinds_across_the_switch(long_rope: DecoderModel) -> None:
    prompts = prompts_of(20, 20, 20)
    assert greedy(long_rope, prompts) == [greedy(long_rope, [p])[0] for p in prompts]
    talk = DecodeSession(long_rope, 1, 128)
    short = talk.prefill([prompts[0]]).copy()
    talk.extend(prompts[1])
    talk.rewind(10)
    np.testing.assert_allclose(talk.extend(prompts[0][10:]), short, rtol=1e-4, atol=1e-4)
    # A synthetic context has no tokens that could be computed again.
    talk.synthesise([32])
    with pytest.raises(LeanAttentionError, match="cannot cross 32"):
        talk.step([5])
