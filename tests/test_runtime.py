"""The runtime generates what the model says: alone, in batches, in turns."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime import (
    DecoderModel,
    DecodeSession,
    Generation,
    Sampling,
    Tokenizer,
    cache_bytes,
    decode,
    generate,
    session,
    stream_text,
)

NEW = 40


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> DecoderModel:
    return DecoderModel.load(tiny_model, threads=1)


@pytest.fixture(scope="module")
def tiny_fp16(tiny_model_fp16: Path) -> DecoderModel:
    return DecoderModel.load(tiny_model_fp16, threads=1)


def prompts_of(*lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(sum(lengths))
    return [generator.integers(3, 500, length).tolist() for length in lengths]


def greedy(model: DecoderModel, prompts: Sequence[Sequence[int]], new: int = NEW) -> Any:
    return generate(model, prompts, max_new_tokens=new, ignore_eos=True).tokens


def genai_greedy(folder: Path, prompt: list[int], new: int) -> list[int]:
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + new, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


def edited(source: Path, target: Path, edit: Any) -> Path:
    """Copies a model folder and changes the structure of its model by ``edit``."""
    shutil.copytree(source, target)
    model = onnx.load(target / "model.onnx", load_external_data=False)
    edit(model)
    (target / "model.onnx").write_bytes(model.SerializeToString())
    return target


@pytest.mark.parametrize("length", [1, 17, 100])
def test_greedy_tokens_are_those_of_transformers_and_genai(tiny: DecoderModel, length: int) -> None:
    import torch
    import transformers

    (prompt,) = prompts_of(length)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tiny.folder.parent / "source", dtype=torch.float32
    )
    output = reference.generate(
        torch.tensor([prompt]),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    (tokens,) = greedy(tiny, [prompt])
    assert len(set(tokens)) > 10
    assert tokens == output[0, length:].tolist()
    assert tokens == genai_greedy(tiny.folder, prompt, NEW)


@pytest.mark.parametrize("kind", ["tiny", "tiny_fp16"])
@pytest.mark.parametrize("one_run", [True, False], ids=["padded", "row by row"])
def test_rows_of_a_ragged_batch_get_the_tokens_they_get_alone(
    kind: str, one_run: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = request.getfixturevalue(kind)
    prompts = prompts_of(23, 1, 90, 5)
    alone = [greedy(model, [prompt])[0] for prompt in prompts]
    if not one_run:
        monkeypatch.setattr(session, "PREFILL_LOGITS_BYTES", 0)
    assert greedy(model, prompts) == alone


def test_rows_that_have_finished_leave_the_others_alone(tiny: DecoderModel) -> None:
    prompts = prompts_of(9, 30, 4)
    free = greedy(tiny, prompts)
    stop = free[1][3]
    result = generate(tiny, prompts, max_new_tokens=NEW, stop_tokens=[stop])
    for row, tokens in enumerate(free):
        stopped = stop in tokens
        kept = tokens.index(stop) + 1 if stopped else NEW
        assert result.tokens[row] == tokens[:kept]
        assert result.finish_reasons[row] == ("stop" if stopped else "length")
    assert result.finish_reasons[1] == "stop"
    assert len(result.tokens[1]) <= 4


def test_a_prompt_in_several_runs_equals_one_run(
    tiny: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (prompt,) = prompts_of(200)
    whole = greedy(tiny, [prompt])
    monkeypatch.setattr(session, "PREFILL_LOGITS_BYTES", 0)
    assert greedy(tiny, [prompt]) == whole


def test_turns_of_3_4_and_5_tokens_equal_one_prompt(tiny: DecoderModel) -> None:
    (prompt,) = prompts_of(12)
    whole = DecodeSession(tiny, 1, 64)
    expected = whole.prefill([prompt]).copy()
    turns = DecodeSession(tiny, 1, 64)
    for start, end in ((0, 3), (3, 7), (7, 12)):
        logits = turns.extend(prompt[start:end])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert turns.lengths == [12]
    # Another continuation, then back and the first again.
    turns.rewind(7)
    turns.extend([9] * 20)
    turns.rewind(7)
    np.testing.assert_allclose(turns.extend(prompt[7:]), expected, rtol=1e-4, atol=1e-4)


def test_a_conversation_goes_on_after_an_answer(tiny: DecoderModel) -> None:
    first, second = prompts_of(10, 6)
    talk = DecodeSession(tiny, 1, 128)
    answer = Generation([10], [[]], ["length"])
    for _ in decode(talk, talk.extend(first), answer, max_new_tokens=8):
        pass
    # The last token was chosen, not fed.
    assert talk.lengths == [10 + 8 - 1]
    logits = talk.extend([answer.tokens[0][-1], *second])
    fresh = DecodeSession(tiny, 1, 128).prefill([[*first, *answer.tokens[0], *second]])
    np.testing.assert_allclose(logits, fresh, rtol=1e-4, atol=1e-4)


def test_the_cache_is_appended_to_in_place_and_stale_rows_are_never_read(
    tiny: DecoderModel,
) -> None:
    prompts = prompts_of(5, 11)
    clean = DecodeSession(tiny, 2, 32)
    expected = clean.prefill(prompts).copy()
    expected_step = clean.step([7, 8]).copy()

    poisoned = DecodeSession(tiny, 2, 32)
    for buffer in poisoned.cache.buffers.values():
        buffer.update_inplace(np.full((2, 2, 32, 16), np.nan, np.float32))
    assert np.isnan(next(iter(poisoned.cache.buffers.values())).numpy()).all()
    np.testing.assert_array_equal(poisoned.prefill(prompts), expected)
    np.testing.assert_array_equal(poisoned.step([7, 8]), expected_step)
    for buffer in poisoned.cache.buffers.values():
        rows = buffer.numpy()
        assert np.isfinite(rows[0, :, :6]).all()
        assert np.isfinite(rows[1, :, :12]).all()
        assert np.isnan(rows[:, :, 12:]).all()


def test_position_ids_are_each_rows_own(tiny: DecoderModel, tmp_path: Path) -> None:
    def add_position_ids(model: onnx.ModelProto) -> None:
        shape = ["batch_size", "sequence_length"]
        model.graph.input.append(
            onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, shape)
        )
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[9] = "position_ids"

    folder = edited(tiny.folder, tmp_path / "positions", add_position_ids)
    model = DecoderModel.load(folder, threads=1)
    assert model.takes_position_ids
    prompts = prompts_of(6, 25, 2)
    assert greedy(model, prompts) == greedy(tiny, prompts)


def test_logits_of_the_last_position_alone_suffice(tiny: DecoderModel, tmp_path: Path) -> None:
    def prune(model: onnx.ModelProto) -> None:
        (head,) = (node for node in model.graph.node if "logits" in node.output)
        last = onnx.helper.make_tensor("last", onnx.TensorProto.INT64, [1], [-1])
        model.graph.initializer.append(last)
        gather = onnx.helper.make_node("Gather", [head.input[0], "last"], ["pruned"], axis=1)
        head.input[0] = "pruned"
        model.graph.node.insert(len(model.graph.node) - 1, gather)
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1

    folder = edited(tiny.folder, tmp_path / "pruned", prune)
    model = DecoderModel.load(folder, threads=1)
    assert model.last_logits_only
    prompts = prompts_of(6, 25, 2)
    assert greedy(model, prompts) == greedy(tiny, prompts)


def test_window_sized_caches_are_given_room_for_everything(
    tiny: DecoderModel, tmp_path: Path
) -> None:
    def window(size: int, resident: int) -> Any:
        def edit(model: onnx.ModelProto) -> None:
            for node in model.graph.node:
                for attribute in node.attribute:
                    if attribute.name == "local_window_size":
                        attribute.i = size
                if node.op_type == "GroupQueryAttention":
                    node.attribute.append(
                        onnx.helper.make_attribute("sliding_window_cache", resident)
                    )

        return edit

    prompts = prompts_of(30, 3)
    masked, sized = (
        DecoderModel.load(edited(tiny.folder, tmp_path / str(flag), window(20, flag)), threads=1)
        for flag in (0, 1)
    )
    assert sized.window_rows == 20
    assert greedy(sized, prompts) == greedy(masked, prompts) != greedy(tiny, prompts)
    # Fewer tokens than the window: the buffers still have its rows.
    assert greedy(sized, [[5, 6]], 3) == greedy(tiny, [[5, 6]], 3)


def test_sampling_repeats_with_a_seed_and_top_k_of_one_is_greedy(tiny: DecoderModel) -> None:
    prompts = prompts_of(8, 8)

    def draw(sampling: Sampling, rows: int = 2) -> list[list[int]]:
        return generate(
            tiny, prompts[:rows], max_new_tokens=NEW, ignore_eos=True, sampling=sampling
        ).tokens

    warm = Sampling(temperature=1.5, top_p=0.95, seed=11)
    assert draw(warm) == draw(warm) != greedy(tiny, prompts)
    assert draw(warm, 1) == draw(warm)[:1]
    assert draw(warm) != draw(Sampling(temperature=1.5, top_p=0.95, seed=12))
    assert draw(Sampling(temperature=1.5, top_k=1, seed=11)) == greedy(tiny, prompts)


def test_streamed_text_never_holds_a_part_of_a_character(tiny: DecoderModel) -> None:
    tokenizer = Tokenizer(tiny.folder)
    text = "naïve 東京 🌍👩‍🚀 end"
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)
    # An answer that is cut inside a character shows that it was.
    cut = tokenizer.stream()
    tokens = tokenizer.encode("ok🌍")[:-1]
    assert "".join(cut.push(token) for token in tokens) == "ok"
    assert cut.finish() == "\ufffd" == cut.text[2:]


@pytest.fixture(scope="module")
def real(real_model_fp32: Path) -> DecoderModel:
    return DecoderModel.load(real_model_fp32, threads=2, spin_between_runs=False)


def test_text_is_the_same_streamed_or_in_a_batch(real: DecoderModel) -> None:
    tokenizer = Tokenizer(real.folder)
    chats = [tokenizer.encode_chat(text) for text in ("Say 東京 🌍 please.", "Count to 5.")]
    batch = generate(real, chats, max_new_tokens=16, tokenizer=tokenizer)
    for chat, text in zip(chats, batch.texts, strict=True):
        assert "".join(stream_text(real, tokenizer, chat, max_new_tokens=16)) == text
        assert len(text) > 10


def test_the_real_model_answers_as_in_genai_and_stops(real: DecoderModel) -> None:
    tokenizer = Tokenizer(real.folder)
    prompt = tokenizer.encode_chat("What is the capital of France?")
    answer = generate(real, [prompt], max_new_tokens=24, tokenizer=tokenizer)
    assert answer.texts == ["The capital of France is Paris."]
    assert answer.finish_reasons == ["stop"]
    # genai leaves the stop token out.
    assert answer.tokens == [[*genai_greedy(real.folder, prompt, 24), *real.stop_tokens]]


def test_the_real_int4_model_gives_genais_tokens(real_model_int4: Path) -> None:
    model = DecoderModel.load(real_model_int4, threads=2, spin_between_runs=False)
    prompt = Tokenizer(real_model_int4).encode_chat("Explain why the sky is blue.")
    answer = generate(model, [prompt], max_new_tokens=64)
    # genai leaves out the stop token that ends an answer.
    found = [token for token in answer.tokens[0] if token not in model.stop_tokens]
    assert len(found) > 5
    assert found == genai_greedy(real_model_int4, prompt, 64)


def test_times_cover_the_whole_generation(tiny: DecoderModel) -> None:
    steps: list[int] = []
    result = generate(
        tiny,
        prompts_of(5, 9),
        max_new_tokens=6,
        ignore_eos=True,
        on_step=lambda new: steps.append(len(new)),
    )
    assert steps == [2] * 6
    assert len(result.step_seconds) == 5
    assert result.prefill_seconds > 0
    assert result.num_tokens == 12
    seconds = sum(result.step_seconds)
    assert result.decode_tokens_per_second == pytest.approx(10 / seconds)
    assert result.seconds_per_step == pytest.approx(seconds / 5)


def test_a_synthetic_context_decodes_to_its_capacity(tiny: DecoderModel) -> None:
    noise = DecodeSession(tiny, 3, 40)
    noise.synthesise([38, 1, 17])
    assert np.isfinite(noise.step([5, 6, 7])).all()
    assert np.isfinite(noise.step([5, 6, 7], [True, False, True])).all()
    assert noise.lengths == [40, 2, 19]
    with pytest.raises(LeanAttentionError, match="all 40 tokens"):
        noise.step([5, 6, 7])
    noise.synthesise([1, 1, 1])
    with pytest.raises(LeanAttentionError, match="the step has something else"):
        noise.step([5, 6, 2**70])
    with pytest.raises(LeanAttentionError, match=r"cannot run .*model\.onnx"):
        noise.step([5, 6, 2**20])


@pytest.mark.parametrize(
    ("prompts", "new", "message"),
    [
        ([], 5, "no prompt"),
        ([[]], 5, "the prompt is empty"),
        ([[4], []], 5, "prompt 2 is empty"),
        ([[4] * 300], 5, "300 tokens, the model's context 256"),
        ([[4] * 250], 20, "250 tokens and 20 new ones .* 256; ask for at most 6"),
        ([[4]], 0, "at least one new token"),
        ([[4, 512]], 5, "token id 512, the model's are 0 to 511"),
        ([[-1, 4]], 5, "token id -1"),
        ([[2**63]], 5, "token id 9223372036854775808"),
        ([[2**70, 4]], 5, "something else than a token id"),
        ([["4"]], 5, "something else than a token id"),
        ([[4, [5, 6]]], 5, "something else than a token id"),
    ],
)
def test_prompts_that_cannot_be_run_are_refused_with_the_numbers(
    tiny: DecoderModel, prompts: list[list[int]], new: int, message: str
) -> None:
    with pytest.raises(LeanAttentionError, match=message):
        generate(tiny, prompts, max_new_tokens=new)


def test_sessions_refuse_what_does_not_fit(tiny: DecoderModel) -> None:
    small = DecodeSession(tiny, 1, 8)
    for wrong, message in (
        (lambda: DecodeSession(tiny, 1, 257), "257 tokens was asked for; .* 256"),
        (lambda: DecodeSession(tiny, 0), "at least one row"),
        (lambda: small.step([5]), "no tokens yet"),
        (lambda: small.prefill([[5] * 9]), "9 tokens, its cache holds 8"),
        (lambda: small.prefill([[5], [6]]), "2 prompts for a batch of 1"),
        (lambda: small.rewind(1), "cannot rewind to 1"),
        (lambda: small.synthesise([9]), "up to 8"),
        (lambda: DecodeSession(tiny, 2, 8).extend([5]), "only a batch of one"),
    ):
        with pytest.raises(LeanAttentionError, match=message):
            wrong()


def test_caches_beyond_the_memory_are_refused_before_they_are_allocated(
    tiny: DecoderModel,
) -> None:
    rows = 2**40 // cache_bytes(tiny, 1, 256) * 64
    with pytest.raises(LeanAttentionError, match=f"{rows} x 256 tokens needs 70,368,744,177,664"):
        DecodeSession(tiny, rows, 256)


def test_files_that_are_not_a_decoder_are_refused_by_name(tiny_model: Path, tmp_path: Path) -> None:
    def without_a_layer(model: onnx.ModelProto) -> None:
        names = [value.name for value in model.graph.output]
        del model.graph.output[names.index("present.1.value")]

    def other_attention(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                old = node.input[3]
                node.input[3] = "copied"
                copy = onnx.helper.make_node("Identity", [old], ["copied"])
        model.graph.node.insert(0, copy)

    plain = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[1] x) => (float[1] y) { y = Abs(x) }'
    )
    (tmp_path / "plain.onnx").write_bytes(plain.SerializeToString())
    (tmp_path / "noise.onnx").write_bytes(b"\xff" * 100)
    (tmp_path / "empty").mkdir()
    shutil.copytree(tiny_model, tmp_path / "lost")
    (tmp_path / "lost" / "model.onnx.data").unlink()
    shutil.copytree(tiny_model, tmp_path / "config")
    (tmp_path / "config" / "genai_config.json").write_text("{}")
    for path, message in (
        (tmp_path / "absent", "there is no model at"),
        (tmp_path / "plain.onnx", "no input input_ids, input attention_mask, .* and 3 more"),
        (tmp_path / "noise.onnx", "not a readable ONNX model"),
        (tmp_path / "empty", "no genai_config.json"),
        (tmp_path / "lost", "cannot load .*model.onnx.data"),
        (tmp_path / "config", "not a configuration"),
        (edited(tiny_model, tmp_path / "layer", without_a_layer), "no output present.1.value"),
        (
            edited(tiny_model, tmp_path / "other", other_attention),
            r"past_key_values\.0\.key .* not",
        ),
    ):
        with pytest.raises(LeanAttentionError, match=message) as error:
            DecoderModel.load(path)
        assert "\n" not in str(error.value)


def test_a_bare_model_file_takes_its_limits_from_the_graph_or_the_caller(
    tiny: DecoderModel, tmp_path: Path
) -> None:
    shutil.copytree(tiny.folder, tmp_path / "bare")
    (tmp_path / "bare" / "genai_config.json").unlink()
    file = tmp_path / "bare" / "model.onnx"
    model = DecoderModel.load(file, stop_tokens=[9])
    assert (model.context_length, model.head_size, model.stop_tokens) == (256, 16, (9,))
    assert DecoderModel.load(file, context_length=100).context_length == 100
    with pytest.raises(LeanAttentionError, match="257 tokens is beyond the 256 rows"):
        DecoderModel.load(file, context_length=257)


def test_options_reach_the_session(tiny_model: Path) -> None:
    seen: list[Any] = []
    model = DecoderModel.load(tiny_model, threads=2, spin_between_runs=False, configure=seen.append)
    options = model.session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert len(seen) == 1
    for wrong, message in (
        ({"threads": 0}, "threads"),
        ({"threads": 10**10}, "threads must be 1 to 1024"),
        ({"provider": "tpu"}, "'tpu'"),
    ):
        with pytest.raises(LeanAttentionError, match=message):
            DecoderModel.load(tiny_model, **wrong)
