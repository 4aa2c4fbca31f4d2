"""The operator inside ONNX Runtime's CUDA execution provider, on a machine without a GPU.

The provider is the real one. What it calls of CUDA is a stand-in (tests/cuda_stand_in), whose
device memory the host cannot touch; our kernel runs on the emulator; the stock kernels do
nothing. So this shows that the provider takes the operator, what it is given and what it may do,
and says nothing of a GPU.
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from gqa_node import STOCK, Case, assert_matches_reference, make_case, run_session
from lean_attention.operator_library import get_library_path

PROVIDER = "CUDAExecutionProvider"
FORMATS: dict[str, dict[str, Any]] = {
    "float16": {"dtype": np.float16},
    "bfloat16": {"dtype": ml_dtypes.bfloat16},
    "float16, int8 per channel": {
        "dtype": np.float16,
        "cache": "int8",
        "quantisation": "PER_CHANNEL",
    },
    "bfloat16, float8": {"dtype": ml_dtypes.bfloat16, "cache": "float8"},
}
LEFT_FORMATS = {"float16, int4": {"dtype": np.float16, "cache": "int4"}}
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rotary, packed": {"rotary_half": 32, "packed": True},
    "position_ids": {"rotary_half": 8, "position_ids": [[5], [0], [300]]},
    "window": {"local_window_size": 150},
    "bias": {"bias": np.random.default_rng(1).standard_normal((3, 6, 1, 301))},
    "head_sink": {"sink": np.linspace(-2, 3, 6)},
}


@pytest.fixture(scope="module", autouse=True)
def stand_in() -> ctypes.CDLL:
    """Returns the stand-in's library, which counts the kernels of others and captured graphs."""
    assert "emulated_cuda" in get_library_path().name, "run this with that library"
    case = ragged_case("float16")
    assert PROVIDER in case.node.session(case.feeds, provider=PROVIDER).get_providers(), (
        "the stand-in's libraries must be in LD_LIBRARY_PATH"
    )
    return ctypes.CDLL("libcudart.so.13")


def ragged_case(name: str, **changes: Any) -> Case:
    shape = {"num_heads": 6, "kv_num_heads": 2, "head_size": 64}
    lengths = {"seqlens_k": [0, 140, 300], "capacity": 305}
    return make_case(**{**shape, **lengths, **(FORMATS | LEFT_FORMATS)[name], **changes})


def run(case: Case) -> list[NDArray[Any]]:
    return run_session(case.node.session(case.feeds, provider=PROVIDER), case.feeds)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_step_matches_the_reference(name: str, feature: str) -> None:
    case = ragged_case(name, **FEATURES[feature])
    assert_matches_reference(case, run(case), rounds_weights=True)


def test_a_cache_that_grows_matches_the_reference() -> None:
    case = ragged_case("float16", capacity=301)
    past = {name: case.feeds[name][:, :, :300] for name in ("past_key", "past_value")}
    session = case.node.session(case.feeds, provider=PROVIDER)
    results = run_session(session, case.feeds | past)
    assert_matches_reference(case, results, rounds_weights=True)


def test_empty_rotary_tables_are_refused() -> None:
    case = ragged_case("float16", rotary_half=8)
    empty = {name: case.feeds[name][:0] for name in ("cos_cache", "sin_cache")}
    session = case.node.session(case.feeds, provider=PROVIDER)
    with pytest.raises(Exception, match=r"cos_cache has shape \[0, 8\]; expected \[at least 301"):
        run_session(session, case.feeds | empty)


def bound(session: onnxruntime.InferenceSession, case: Case, *, shared: bool) -> Any:
    """Binds a case's inputs in device memory, but for the one that the host reads."""
    binding = session.io_binding()
    values = {}
    for name, array in case.feeds.items():
        device = "cpu" if name == "total_sequence_length" else "cuda"
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array.copy(), device, 0)
        binding.bind_ortvalue_input(name, values[name])
    binding.bind_output("output", "cuda")
    for kind in ("key", "value"):
        if shared:
            binding.bind_ortvalue_output(f"present_{kind}", values[f"past_{kind}"])
        else:
            binding.bind_output(f"present_{kind}", "cuda")
    return binding


@pytest.mark.parametrize("name", ["float16", "float16, int8 per channel"])
def test_one_buffer_is_past_and_present(name: str) -> None:
    case = ragged_case(name, rotary_half=16)
    session = case.node.session(case.feeds, provider=PROVIDER)
    results = []
    for shared in (True, False):
        binding = bound(session, case, shared=shared)
        session.run_with_iobinding(binding)
        results.append(binding.copy_outputs_to_cpu())
    assert_matches_reference(case, results[0], rounds_weights=True)
    assert results[0][0].tobytes() == results[1][0].tobytes()
    past = case.feeds["past_key"].copy()
    for b, length in enumerate(case.step.lengths):
        past[b, :, length - 1] = results[0][1][b, :, length - 1]
    assert past.tobytes() == results[0][1].tobytes()


def test_eight_threads_run_one_session() -> None:
    cases = [ragged_case("float16", seqlens_k=[300, 3, 30 * i], seed=i) for i in range(1, 9)]
    expected = [run(case)[0].tobytes() for case in cases]
    session = cases[0].node.session(cases[0].feeds, provider=PROVIDER)

    def is_right(i: int) -> bool:
        return run_session(session, cases[i % 8].feeds)[0].tobytes() == expected[i % 8]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(64)))


def test_a_graph_may_be_captured(stand_in: ctypes.CDLL) -> None:
    case = ragged_case("float16")
    before = stand_in.stand_in_graphs()
    session = case.node.session(
        case.feeds, provider=PROVIDER, provider_options={"enable_cuda_graph": "1"}
    )
    binding = bound(session, case, shared=True)
    for _ in range(4):  # some runs, the one that is captured, and replays
        session.run_with_iobinding(binding)
    assert stand_in.stand_in_graphs() == before + 1
    results = binding.copy_outputs_to_cpu()
    assert_matches_reference(case, results, rounds_weights=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": 12, "seqlens_k": [11, 4, 0], "rotary_half": 32},
        {"tokens": 9, "seqlens_k": [300]},
        {"head_size": 32},
        {"schedule": "stock"},
    ],
    ids=["prompt", "long chunk", "head size", "asked for"],
)
@pytest.mark.parametrize("name", [*FORMATS, *LEFT_FORMATS])
def test_what_is_left_to_stock_launches_its_kernels(
    name: str, changes: dict[str, Any], stand_in: ctypes.CDLL
) -> None:
    case = ragged_case(name, **changes)
    launched = []
    for op in (("LeanGroupQueryAttention", "com.leanattention"), STOCK):
        session = case.node.session(case.feeds, op=op, provider=PROVIDER)
        before = stand_in.stand_in_kernels()
        run_session(session, case.feeds)
        launched.append(stand_in.stand_in_kernels() - before)
    assert launched[0] == launched[1] > 0
