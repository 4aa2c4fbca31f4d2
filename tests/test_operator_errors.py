"""What the operator refuses: a clear error that names the input or attribute, never a crash."""

import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from gqa_node import Feeds, Node, make_case


def _int32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


BAD_INPUTS = {
    "scalar lengths": ({"seqlens_k": np.array(3, np.int32)}, "seqlens_k"),
    "lengths of another rank": ({"seqlens_k": np.full((3, 2), 1, np.int32)}, "seqlens_k"),
    "too few lengths": ({"seqlens_k": _int32(1, 2)}, "seqlens_k"),
    "a negative length": ({"seqlens_k": _int32(3, -1, 2)}, "seqlens_k[1]"),
    "a length past the capacity": ({"seqlens_k": _int32(3, 16, 2)}, "seqlens_k[1]"),
    "the largest length": ({"seqlens_k": _int32(3, 2**31 - 1, 2)}, "seqlens_k[1]"),
    "no total": ({"total_sequence_length": _int32(0)}, "total_sequence_length"),
    "several totals": ({"total_sequence_length": _int32(16, 16)}, "total_sequence_length"),
    "a key of another width": ({"key": np.zeros((3, 1, 24), np.float32)}, "key"),
    "a value of another batch": ({"value": np.zeros((2, 1, 32), np.float32)}, "value"),
    "a query of no whole heads": ({"query": np.zeros((3, 1, 63), np.float32)}, "query"),
    "an empty batch": ({"query": np.zeros((0, 1, 64), np.float32)}, "query"),
    "no tokens": ({"query": np.zeros((3, 0, 64), np.float32)}, "query"),
    "a past of other heads": ({"past_key": np.zeros((3, 1, 16, 16), np.float32)}, "past_key"),
    "a past value of another length": (
        {"past_value": np.zeros((3, 2, 15, 16), np.float32)},
        "past_value",
    ),
    "a past of another head size": ({"past_key": np.zeros((3, 2, 16, 8), np.float32)}, "past_key"),
    "rotary tables that are too short": ({"cos_cache": np.zeros((15, 8), np.float32)}, "cos_cache"),
    "rotary tables that are too wide": (
        {"cos_cache": np.zeros((16, 9), np.float32), "sin_cache": np.zeros((16, 9), np.float32)},
        "cos_cache",
    ),
    "different rotary tables": ({"sin_cache": np.zeros((16, 4), np.float32)}, "sin_cache"),
    "a bias of 15 keys": ({"attention_bias": np.zeros((1, 1, 1, 15), np.float32)}, "bias"),
    "a bias of 17 keys": ({"attention_bias": np.zeros((1, 1, 1, 17), np.float32)}, "bias"),
    "a bias of 3 heads": ({"attention_bias": np.zeros((1, 3, 1, 16), np.float32)}, "bias"),
    "a bias of 2 sequences": ({"attention_bias": np.zeros((2, 1, 1, 16), np.float32)}, "bias"),
    "a sink of 3 heads": ({"head_sink": np.zeros(3, np.float32)}, "head_sink"),
    "a position past the tables": (
        {"position_ids": np.full((3, 1), 16, np.int64)},
        "position_ids",
    ),
    "a negative position": ({"position_ids": np.full((3, 1), -1, np.int64)}, "position_ids"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
@pytest.mark.parametrize("shared", [True, False])
def test_bad_inputs_are_refused_by_name(name: str, shared: bool) -> None:
    changes, named = BAD_INPUTS[name]
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[0, 4, 15],
        capacity=16,
        rotary_half=8,
    )
    # IO binding turns the status into a plain RuntimeError.
    with pytest.raises(RuntimeError if shared else InvalidArgument) as refusal:
        case.node.run(case.feeds | changes, shared=shared)
    assert "attention: input" in str(refusal.value)
    assert named in str(refusal.value)


@pytest.mark.parametrize("tokens", [1, 12], ids=["a step", "a prompt for the stock operator"])
def test_keys_and_values_in_one_buffer_are_refused_before_they_are_written(tokens: int) -> None:
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[11],
        capacity=12,
        tokens=tokens,
        poison=False,
    )
    session = case.node.session(case.feeds)
    binding = session.io_binding()
    cache = onnxruntime.OrtValue.ortvalue_from_numpy(case.feeds["past_key"])
    before = cache.numpy().copy()
    for name, array in case.feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("output")
    for name in ("present_key", "present_value"):
        binding.bind_ortvalue_output(name, cache)
    with pytest.raises(RuntimeError, match="present_key and present_value are one buffer"):
        session.run_with_iobinding(binding)
    assert np.array_equal(cache.numpy(), before)


BAD_PROMPTS: dict[str, tuple[Feeds, str]] = {
    "positions of one dimension": ({"position_ids": np.zeros(2, np.int64)}, "position_ids"),
    "a scalar position": ({"position_ids": np.array(0, np.int64)}, "position_ids"),
    "positions past the tables": ({"position_ids": np.full((2, 4), 10**7)}, "position_ids"),
    "positions below zero": ({"position_ids": np.full((2, 4), -(10**7))}, "position_ids"),
    "tables of one dimension": (
        {"cos_cache": np.zeros(8, np.float32), "sin_cache": np.zeros(8, np.float32)},
        "cos_cache",
    ),
    "tables shorter than the prompt": (
        {"cos_cache": np.zeros((3, 8), np.float32), "sin_cache": np.zeros((3, 8), np.float32)},
        "cos_cache",
    ),
    "one length for two prompts": ({"seqlens_k": _int32(3)}, "seqlens_k"),
    "a scalar length": ({"seqlens_k": np.array(3, np.int32)}, "seqlens_k"),
    "the smallest length": ({"seqlens_k": _int32(-(2**31), 3)}, "seqlens_k[0]"),
    "the largest length": ({"seqlens_k": _int32(3, 2**31 - 1)}, "seqlens_k[1]"),
    "a length past the prompt": ({"seqlens_k": _int32(5, 3)}, "seqlens_k[0]"),
    "a total past the prompt": ({"total_sequence_length": _int32(6)}, "total_sequence_length"),
    "a total of 2^31 - 1": ({"total_sequence_length": _int32(2**31 - 1)}, "total_sequence"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_bad_prompts_are_refused_before_they_reach_the_stock_operator(name: str) -> None:
    changes, named = BAD_PROMPTS[name]
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[3, 3],
        capacity=4,
        tokens=4,
        rotary_half=8,
        poison=False,
    )
    feeds = {key: array for key, array in case.feeds.items() if not key.startswith("past_")}
    with pytest.raises(InvalidArgument) as refusal:
        case.node.run(feeds | changes)
    assert "attention: input" in str(refusal.value)
    assert named in str(refusal.value)


# By the batch and the input's shape, what is said to be accepted; 4 query heads, a total of 10.
BAD_SHAPES: dict[str, list[tuple[int, tuple[int, ...], str]]] = {
    "attention_bias": [
        (1, (1, 1, 1, 9), "[1, 1 or 4, 1, 10]"),
        (1, (1, 1, 1, 11), "[1, 1 or 4, 1, 10]"),
        (1, (1, 4, 1, 16), "[1, 1 or 4, 1, 10]"),
        (2, (1, 1, 1, 11), "[1 or 2, 1 or 4, 1, 10]"),
        (2, (2, 4, 1, 16), "[1 or 2, 1 or 4, 1, 10]"),
    ],
    "seqlens_k": [
        (4, (2, 2), "[4], [4, 1] or [1, 4]"),
        (1, (1, 1, 1), "[1] or [1, 1]"),
        (1, (2,), "[1] or [1, 1]"),
    ],
}


@pytest.mark.parametrize(
    ("name", "batch", "shape", "accepted"),
    [(name, *row) for name, rows in BAD_SHAPES.items() for row in rows],
)
def test_shapes_are_refused_with_those_that_are_accepted(
    name: str, batch: int, shape: tuple[int, ...], accepted: str
) -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[9] * batch, capacity=16)
    kind = np.float32 if name == "attention_bias" else np.int32
    message = f"input {name} has shape {list(shape)}; expected {accepted}"
    with pytest.raises(InvalidArgument, match=re.escape(message) + "$"):
        case.node.run(case.feeds | {name: np.ones(shape, kind)})


@pytest.mark.parametrize("name", ["seqlens_k", "total_sequence_length"])
def test_lengths_of_another_type_are_refused_with_the_session(name: str) -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[3], capacity=16)
    feeds = case.feeds | {name: case.feeds[name].astype(np.int64)}
    with pytest.raises(Exception, match=name):
        case.node.session(feeds)


BAD_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "schedule": {"schedule": "fastest"},
    "local_window_size": {"local_window_size": 2**32 + 4},
    "scale": {"scale": float("nan")},
    "softcap": {"softcap": -1.0},
    "sliding_window_cache": {"sliding_window_cache": 1, "local_window_size": 4},
    "kv_cache_bit_width": {"kv_cache_bit_width": 8},
    "k_quant_type": {"k_quant_type": "PER_TENSOR"},
    "qk_output": {"qk_output": 1},
    "causal": {"causal": 0},
    "scale is an integer; it must be a float": {"scale": 2},
    "do_rotary is a float; it must be an integer": {"do_rotary": 1.0},
    "softcap is a list; it must be a float": {"softcap": [2.0]},
    "schedule is an integer; it must be a string": {"schedule": 1},
    "sliding_window_cache is a float; it must be an integer": {"sliding_window_cache": 1.0},
    "k_quant_type is an integer; it must be a string": {"k_quant_type": 1},
}


@pytest.mark.parametrize("name", BAD_ATTRIBUTES)
def test_bad_attributes_are_refused_by_name(name: str) -> None:
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[3],
        capacity=16,
        **BAD_ATTRIBUTES[name],
    )
    with pytest.raises(Exception, match=name) as refusal:
        case.node.session(case.feeds)
    assert "attention:" in str(refusal.value)


def test_heads_that_do_not_divide_are_refused() -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[3], capacity=16)
    with pytest.raises(Exception, match="num_heads is 4; it must be a multiple of kv_num_heads, 3"):
        Node(4, 3).session(case.feeds)
