"""A conversation, each turn over the cache of those before, in a session of its own."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import lean_attention

ANSWER = 4  # tokens after each turn
TURNS = (3, 4, 5)
ROWS = 64  # of a shared buffer
KV_HEADS, HEAD_SIZE = 2, 16  # of the tiny model


def talk(folder: Path, turns: list[list[int]], *, shared: bool) -> list[int]:
    """Returns all tokens of a conversation, the model's own greedily.

    Args:
        folder: Of a model.
        turns: Its tokens.
        shared: Whether one buffer is past and present, or the caches grow from call to call.
    """
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    pasts = [i.name for i in session.get_inputs() if i.name.startswith("past_")]
    empty = np.zeros((1, KV_HEADS, ROWS * shared, HEAD_SIZE), np.float32)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(empty.copy()) for name in pasts}
    tokens: list[int] = []

    def run(new: list[int]) -> int:
        """Appends tokens; returns the one that follows."""
        tokens.extend(new)
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([new]))
        binding.bind_cpu_input("attention_mask", np.ones((1, len(tokens)), np.int64))
        binding.bind_output("logits")
        presents = [name.replace("past_key_values", "present") for name in values]
        for present, (past, value) in zip(presents, values.items(), strict=True):
            binding.bind_ortvalue_input(past, value)
            if shared:
                binding.bind_ortvalue_output(present, value)
            else:
                binding.bind_output(present)
        session.run_with_iobinding(binding)
        logits, *caches = binding.get_outputs()
        if not shared:
            values.update(zip(list(values), caches, strict=True))
        return int(logits.numpy()[0, -1].argmax())

    for turn in turns:
        token = run(turn)
        for _ in range(ANSWER):
            token = run([token])
    return tokens


@pytest.fixture(scope="module")
def lean_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("turns") / "lean"
    assert not lean_attention.rewrite(tiny_model, folder).left
    return folder


@pytest.mark.parametrize("shared", [False, True])
def test_turns_of_3_4_and_5_tokens_get_stocks_tokens(
    tiny_model: Path, lean_model: Path, shared: bool
) -> None:
    rng = np.random.default_rng(0)
    turns = [rng.integers(3, 250, count).tolist() for count in TURNS]
    expected = talk(tiny_model, turns, shared=False)
    assert len(expected) == sum(TURNS) + len(TURNS) * ANSWER
    assert talk(lean_model, turns, shared=shared) == expected
    assert talk(tiny_model, turns, shared=shared) == expected
