"""The operator of GPUs inside ONNX Runtime, on the emulator: see tests/cpp/emulated_launcher.cc.

Its kernel runs thread for thread on the host, as an operator of the CPU execution provider; all
that lies between it and ONNX Runtime is what runs on a GPU. The library is named by
LEAN_ATTENTION_LIBRARY.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lean_attention
from conftest import build_tiny_model
from gqa_node import (
    Case,
    assert_matches_reference,
    assert_matches_stock,
    make_case,
    run_session,
)
from lean_attention import gpu
from lean_attention.runtime import DecoderModel, generate

FORMATS: dict[str, dict[str, Any]] = {
    "float16": {"dtype": np.float16},
    "bfloat16": {"dtype": ml_dtypes.bfloat16},
    "float16, int8": {"dtype": np.float16, "cache": "int8"},
    "float16, int8 per channel": {
        "dtype": np.float16,
        "cache": "int8",
        "quantisation": "PER_CHANNEL",
    },
    "bfloat16, int8 per channel": {
        "dtype": ml_dtypes.bfloat16,
        "cache": "int8",
        "quantisation": "PER_CHANNEL",
    },
    "float16, float8": {"dtype": np.float16, "cache": "float8"},
    "bfloat16, float8 per channel": {
        "dtype": ml_dtypes.bfloat16,
        "cache": "float8",
        "quantisation": "PER_CHANNEL",
    },
}
BIAS = np.random.default_rng(1).standard_normal((3, 6, 1, 301))
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rotary": {"rotary_half": 32},
    "partial interleaved rotary, packed": {"rotary_half": 8, "interleaved": True, "packed": True},
    "position_ids": {"rotary_half": 8, "position_ids": [[5], [0], [300]]},
    "window of 1": {"local_window_size": 1},
    "window of 150": {"local_window_size": 150},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": BIAS},
    "bias for all": {"bias": BIAS[:1, :1]},
    "head_sink": {"sink": np.linspace(-2, 3, 6)},
    "smooth_softmax": {"smooth_softmax": 1},
    "scale": {"scale": 0.3},
    "norm": {"norm": True, "rotary_half": 32, "packed": True},
    "ragged chunks": {"tokens": 5, "queries": [1, 2, 5], "rotary_half": 32, "norm": True},
    "idle": {"tokens": 2, "queries": [0, 0, 2], "packed": True},
    "a shared cache": {"new_rows": False, "rotary_half": 32},
}


@pytest.fixture(scope="module", autouse=True)
def _is_emulated() -> None:
    assert gpu.backend() == "emulator", "run this with the emulated library"


def ragged_case(name: str, **changes: Any) -> Case:
    shape = {"num_heads": 6, "kv_num_heads": 2, "head_size": 64}
    lengths = {"seqlens_k": [0, 140, 300], "capacity": 305}
    return make_case(**{**shape, **lengths, **FORMATS[name], **changes})


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", FORMATS)
def test_features_match_the_reference(name: str, feature: str) -> None:
    case = ragged_case(name, **FEATURES[feature])
    separate = case.node.run(case.feeds)
    assert_matches_reference(case, separate, rounds_weights=True)
    shared = case.node.run(case.feeds, shared=True)
    assert shared[0].tobytes() == separate[0].tobytes()


@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 5, 16])
@pytest.mark.parametrize("name", FORMATS)
def test_head_sizes_and_groups_match_the_reference(name: str, group: int, size: int) -> None:
    case = ragged_case(
        name, num_heads=2 * group, head_size=size, seqlens_k=[150, 3], capacity=160, rotary_half=8
    )
    results = case.node.run(case.feeds, shared=True)
    assert_matches_reference(case, results, rounds_weights=True)


@pytest.mark.parametrize("name", FORMATS)
def test_a_cache_that_grows_matches_the_reference(name: str) -> None:
    case = ragged_case(name, capacity=301)
    past = {n: case.feeds[n][:, :, :300] for n in ("past_key", "past_value")}
    results = case.node.run(case.feeds | past)
    assert results[1].shape[2] == 301
    assert_matches_reference(case, results, rounds_weights=True)


def test_rows_past_the_longest_sequence_are_zeros_in_a_separate_cache() -> None:
    case = ragged_case("float16", seqlens_k=[0, 140, 200])
    _, *presents = case.node.run(case.feeds)
    for present in presents:
        assert present.shape[2] == 305
        assert not present[:, :, 201:].any()


def test_rows_that_are_nobodys_are_left_alone() -> None:
    case = ragged_case("float16")
    _, *presents = case.node.run(case.feeds, shared=True)
    for name, present in zip(("past_key", "past_value"), presents, strict=True):
        past = case.feeds[name].copy()
        for b, length in enumerate(case.step.lengths):
            past[b, :, length - 1] = present[b, :, length - 1]
        assert past.tobytes() == present.tobytes()


@pytest.mark.parametrize("schedule", ["auto", "lean", "fixed_split", "direct"])
def test_schedules_give_the_same_bits(schedule: str) -> None:
    case = ragged_case("float16", seqlens_k=[2000, 3, 700], capacity=2001)
    expected = case.node.run(case.feeds)
    case.node.attributes["schedule"] = schedule
    for _ in range(3):
        found = case.node.run(case.feeds)
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


@pytest.mark.parametrize("tokens", [2, 5, 8])
def test_a_few_tokens_of_one_sequence_match_the_reference(tokens: int) -> None:
    changes = {"tokens": tokens, "seqlens_k": [300], "rotary_half": 16}
    case = ragged_case("float16", **changes)
    assert_matches_reference(case, case.node.run(case.feeds), rounds_weights=True)


@pytest.mark.parametrize("lengths", [[19, 19, 19], [19, 7, 0]], ids=str)
def test_prompts_with_a_bias_match_the_reference(lengths: list[int]) -> None:
    bias = np.random.default_rng(1).standard_normal((3, 1, 20, 20))
    bias[1, :, 3] = -np.inf
    case = ragged_case("float16", tokens=20, seqlens_k=lengths, bias=bias, rotary_half=16)
    assert_matches_reference(case, case.node.run(case.feeds), rounds_weights=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": 12, "seqlens_k": [11, 4, 0], "rotary_half": 32},
        {"tokens": 3, "seqlens_k": [2, 0, 1]},
        {"tokens": 3, "seqlens_k": [1]},
        {"tokens": 9, "seqlens_k": [300]},
        {"schedule": "stock"},
    ],
    ids=["prompt", "short prompt", "short padded prompt", "long chunk", "asked for"],
)
def test_what_is_left_to_stock_has_its_bits(changes: dict[str, Any]) -> None:
    case = ragged_case("float16", **changes)
    ours = case.node.run(case.feeds, shared=True)
    assert_matches_stock(case, ours, shared=True)


@pytest.mark.parametrize("size", [40, 72])
def test_a_head_size_that_is_not_built_is_left_to_stock(size: int) -> None:
    case = ragged_case("float16", head_size=size)
    assert_matches_stock(case, case.node.run(case.feeds, shared=True), shared=True)


def test_a_cache_of_int4_is_left_to_stock() -> None:
    case = ragged_case("float16", cache="int4")
    assert_matches_stock(case, case.node.run(case.feeds, shared=True), shared=True)


def test_prompts_that_stock_has_not_are_refused_by_name() -> None:
    case = ragged_case("bfloat16", tokens=12, seqlens_k=[11, 4, 0])
    with pytest.raises(Exception, match=r"attention: .* leaves to .* prompts, .* bfloat16"):
        case.node.run(case.feeds)
    case = ragged_case("bfloat16", head_size=72)
    with pytest.raises(Exception, match="attention: head_size is 72; built for GPUs are 64, 80"):
        case.node.run(case.feeds)


def test_what_the_host_sees_is_refused_by_name() -> None:
    case = ragged_case("float16", rotary_half=8)
    short = {name: case.feeds[name][:300] for name in ("cos_cache", "sin_cache")}
    with pytest.raises(
        Exception, match=r"input cos_cache has shape \[300, 8\]; expected \[at least 301"
    ):
        case.node.run(case.feeds | short)
    empty = {name: case.feeds[name][:0] for name in ("cos_cache", "sin_cache")}
    with pytest.raises(
        Exception, match=r"input cos_cache has shape \[0, 8\]; expected \[at least 301"
    ):
        case.node.run(case.feeds | empty)
    with pytest.raises(Exception, match="attention: input seqlens_k has shape"):
        case.node.run(case.feeds | {"seqlens_k": np.zeros(2, np.int32)})


@pytest.mark.parametrize("lengths", [[-7, 140, 2**31 - 1], [300, -(2**31), 5000]])
def test_lengths_that_only_the_device_sees_are_bounded(lengths: list[int]) -> None:
    case = ragged_case("float16")
    wrong = case.feeds | {"seqlens_k": np.array(lengths, np.int32)}
    right = case.feeds | {"seqlens_k": np.clip(lengths, 0, 300).astype(np.int32)}
    found, expected = (case.node.run(feeds, shared=True) for feeds in (wrong, right))
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_eight_threads_on_one_session_and_two_sessions_share_a_stream() -> None:
    cases = [
        ragged_case("float16", seqlens_k=[1500, 3, 40 * i], capacity=1501, seed=i)
        for i in range(1, 9)
    ]
    expected = [case.node.run(case.feeds)[0].tobytes() for case in cases]
    sessions = [cases[0].node.session(cases[0].feeds) for _ in range(2)]

    def run(i: int) -> bool:
        found = run_session(sessions[i % 2], cases[i % 8].feeds)
        return found[0].tobytes() == expected[i % 8]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(64)))


def test_a_longer_call_and_then_a_shorter_one_share_the_workspace() -> None:
    short, long = (
        ragged_case("float16", seqlens_k=[length, 3, 700], capacity=4096) for length in (700, 4000)
    )
    session = short.node.session(short.feeds)
    for case in (short, long, short, long):
        assert_matches_reference(case, run_session(session, case.feeds), rounds_weights=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A Phi-3 of two layers in fp16, as it is and rewritten."""
    place = tmp_path_factory.mktemp("tiny-64")
    stock = build_tiny_model(place / "model", "fp16", head_size=64)
    # The tests below compare them, and the emulator is slow.
    result = lean_attention.rewrite(stock, place / "lean", verify=False)
    assert len(result.replaced) == 2
    return [stock, place / "lean"]


def test_a_rewritten_model_gives_stocks_tokens(folders: list[Path]) -> None:
    prompts = [list(range(3, 40)), list(range(60, 70)), list(range(100, 220))]
    stock, lean = (
        generate(DecoderModel.load(folder, threads=1), prompts, max_new_tokens=30, ignore_eos=True)
        for folder in folders
    )
    assert lean.tokens == stock.tokens


def test_decisions_are_explained() -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from test_gpu_operator import ragged_case, run_session
case = ragged_case("float16", seqlens_k=[2000, 3, 700], capacity=2001)
run_session(case.node.session(case.feeds, log_severity_level=2), case.feeds)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        env=os.environ | {"LEAN_ATTENTION_EXPLAIN": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "attention: lean in 6 shares on 6 resident blocks" in done.stderr
