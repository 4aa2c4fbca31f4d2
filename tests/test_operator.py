"""The operator against the stock one and the float64 reference, on inputs that broke others."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gqa_node import STOCK, Case, Node, make_case, needs_stock, run_session
from reference import attention

# A few units in the last place of the type, at the size of the values that are averaged (up to 4).
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float16): 4e-3}


def assert_matches(case: Case, results: list[NDArray[Any]], *, rows: bool = True) -> None:
    """Compares with the reference: the output, and every valid row of the caches."""
    expected = attention(case.step)
    dtype = case.feeds["query"].dtype
    tolerance = TOLERANCE[dtype]
    assert results[0].dtype == dtype
    np.testing.assert_allclose(results[0], expected.output, rtol=0, atol=tolerance)
    if not rows:
        return
    for present, wanted in zip(
        results[1:], (expected.present_key, expected.present_value), strict=True
    ):
        for b, length in enumerate(case.step.lengths):
            np.testing.assert_allclose(
                present[b, :, :length], wanted[b, :, :length], rtol=0, atol=4 * tolerance
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shared", [True, False])
def test_ragged_decode_with_poisoned_tails(dtype: type, shared: bool) -> None:
    case = make_case(
        num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[0, 4, 15], capacity=16, dtype=dtype
    )
    together = case.node.run(case.feeds, shared=shared)
    assert_matches(case, together)
    for b, length in enumerate(case.step.lengths):
        single = {
            name: array[b : b + 1]
            for name, array in case.feeds.items()
            if name != "total_sequence_length"
        } | {"total_sequence_length": np.array(length, np.int32)}
        alone = case.node.run(single, shared=shared)
        assert alone[0].tobytes() == together[0][b].tobytes()
        for name, present in zip(("past_key", "past_value"), together[1:], strict=True):
            past = case.feeds[name]
            untouched = present[b].copy()
            untouched[:, length - 1] = past[b, :, length - 1]
            if shared:
                assert untouched.tobytes() == past[b].tobytes()
            else:
                assert untouched[:, :length].tobytes() == past[b, :, :length].tobytes()
                assert not present[b, :, length:].any()


@pytest.mark.parametrize("shape,total_shape", [((3,), ()), ((3, 1), (1,)), ((1, 3), ())], ids=str)
def test_accepted_shapes_of_lengths_agree(
    shape: tuple[int, ...], total_shape: tuple[int, ...]
) -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[0, 4, 15], capacity=16)
    expected = case.node.run(case.feeds)
    feeds = case.feeds | {
        "seqlens_k": case.feeds["seqlens_k"].reshape(shape),
        "total_sequence_length": case.feeds["total_sequence_length"].reshape(total_shape),
    }
    for wanted, found in zip(expected, case.node.run(feeds), strict=True):
        assert wanted.tobytes() == found.tobytes()


def _int32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_right_padded_prompt_equals_stock(packed: bool, interleaved: bool) -> None:
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[11, 11, 11],
        capacity=12,
        tokens=12,
        rotary_half=8,
        packed=packed,
        interleaved=interleaved,
        poison=False,
    )
    feeds = case.feeds | {"seqlens_k": _int32(11, 2, 0)}
    for name in ("past_key", "past_value"):
        feeds[name] = feeds[name][:, :, :0]
    ours, stock = case.node.run(feeds), case.node.run(feeds, op=STOCK)
    for b, valid in enumerate((12, 3, 1)):
        assert not ours[0][b, valid:].any()
        assert ours[0][b, :valid].tobytes() == stock[0][b, :valid].tobytes()
        for i in (1, 2):
            assert ours[i][b, :, :valid].tobytes() == stock[i][b, :, :valid].tobytes()


PHI_SHAPES = {
    "phi-2": (32, 32, 80, 16),
    "phi-3-mini": (32, 32, 96, 48),
    "phi-4-mini": (24, 8, 128, 48),
    "phi-3-medium": (40, 10, 128, 64),
    "phi-3-small": (32, 8, 128, 64),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", PHI_SHAPES)
def test_phi_shapes_match_stock_and_reference(name: str, dtype: type) -> None:
    heads, kv_heads, size, half = PHI_SHAPES[name]
    case = make_case(
        num_heads=heads,
        kv_num_heads=kv_heads,
        head_size=size,
        seqlens_k=[4, 12],
        capacity=16,
        dtype=dtype,
        packed=True,
        rotary_half=half,
    )
    ours = case.node.run(case.feeds)
    assert_matches(case, ours)
    stock = case.node.run(case.feeds, op=STOCK)
    np.testing.assert_allclose(ours[0], stock[0], rtol=0, atol=2 * TOLERANCE[np.dtype(dtype)])


@pytest.mark.parametrize("window", [1, 2, 4, 16, 300])
@pytest.mark.parametrize("last", [9, 700])
def test_windows_match(window: int, last: int) -> None:
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[last],
        capacity=last + 3,
        local_window_size=window,
    )
    ours = case.node.run(case.feeds)
    assert_matches(case, ours)
    if window == 1:
        newest = np.repeat(case.feeds["value"].reshape(2, 16), 2, axis=0).reshape(1, 1, 64)
        np.testing.assert_array_equal(ours[0], newest)


@pytest.mark.parametrize("shape", [(1, 1, 1, 10), (3, 4, 1, 10), (3, 1, 1, 10), (1, 4, 1, 10)])
def test_softcap_comes_before_bias(shape: tuple[int, ...]) -> None:
    bias = 3 * np.random.default_rng(1).standard_normal(shape)
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[9, 0, 4],
        capacity=10,
        bias=bias,
        softcap=2.0,
    )
    assert_matches(case, case.node.run(case.feeds))


@pytest.mark.parametrize(
    "masked",
    [slice(None), slice(0, 3), slice(0, 256), slice(256, 512), slice(512, None)],
    ids=str,
)
@pytest.mark.parametrize("mask", [-np.inf, np.finfo(np.float32).min], ids=str)
def test_masked_keys_and_whole_tiles_leave_no_nan(mask: float, masked: slice) -> None:
    bias = np.zeros((1, 1, 1, 700))
    bias[..., masked] = mask
    case = make_case(
        num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[699], capacity=700, bias=bias
    )
    ours = case.node.run(case.feeds)
    assert_matches(case, ours)
    if masked == slice(None):
        assert not ours[0].any()


# Until 1.23 the stock operator had no head_sink and did not count a token into its own window.
@needs_stock(1, 23)
@pytest.mark.parametrize("last", [9, 900])
@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("sink", ["head_sink", "smooth_softmax"])
def test_sinks_count_once(sink: str, window: int, last: int) -> None:
    case = make_case(
        num_heads=4,
        kv_num_heads=2,
        head_size=16,
        seqlens_k=[last],
        capacity=last + 1,
        local_window_size=window,
        **({"sink": np.array([0.5, -1, 2, 0])} if sink == "head_sink" else {"smooth_softmax": 1}),
    )
    ours = case.node.run(case.feeds)
    assert_matches(case, ours)
    stock = case.node.run(case.feeds, op=STOCK)
    np.testing.assert_allclose(ours[0], stock[0], rtol=0, atol=4e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("group", [1, 3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("size", [8, 16, 24, 40, 64, 72, 80, 96, 128, 256])
def test_head_sizes_and_groups(size: int, group: int, dtype: type) -> None:
    case = make_case(
        num_heads=2 * group,
        kv_num_heads=2,
        head_size=size,
        seqlens_k=[150, 3],
        capacity=160,
        dtype=dtype,
    )
    assert_matches(case, case.node.run(case.feeds, shared=True))


@pytest.mark.parametrize("size", [1, 4, 12, 20, 60, 100])
def test_head_sizes_that_fill_no_vector(size: int) -> None:
    case = make_case(num_heads=6, kv_num_heads=2, head_size=size, seqlens_k=[90, 3], capacity=91)
    assert_matches(case, case.node.run(case.feeds))


def test_fp16_scores_far_past_its_range() -> None:
    case = make_case(
        num_heads=2,
        kv_num_heads=1,
        head_size=16,
        seqlens_k=[9],
        capacity=10,
        dtype=np.float16,
        scale=1.0,
    )
    feeds = case.feeds
    feeds["query"] = np.full_like(feeds["query"], 200)
    feeds["key"] = np.full_like(feeds["key"], 200)
    feeds["past_key"][:, :, :9] = 200
    output = case.node.run(feeds)[0]
    values = np.concatenate([feeds["past_value"][0, 0, :9], feeds["value"].reshape(1, 16)])
    mean = values.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(output.reshape(2, 16), np.stack([mean, mean]), rtol=0, atol=1e-3)


def test_fp16_scores_from_minus_to_plus_60000() -> None:
    case = make_case(
        num_heads=1,
        kv_num_heads=1,
        head_size=16,
        seqlens_k=[299],
        capacity=300,
        dtype=np.float16,
        scale=1.0,
    )
    feeds = case.feeds
    feeds["query"] = np.full_like(feeds["query"], 60)
    ramp = np.linspace(-62, 62, 300).astype(np.float16)
    feeds["past_key"][0, 0] = ramp[:, None]
    feeds["key"] = np.full_like(feeds["key"], ramp[299])
    output = case.node.run(feeds)[0]
    assert output.tobytes() == feeds["value"].tobytes()


def test_nan_in_a_valid_row_is_not_hidden() -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[50], capacity=64)
    for name in ("past_key", "past_value"):
        feeds = {key: array.copy() for key, array in case.feeds.items()}
        feeds[name][0, 0, 20] = np.nan
        output = case.node.run(feeds)[0].reshape(4, 16)
        assert np.isnan(output[:2]).all()
        assert np.isfinite(output[2:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_is_not_hidden(bad: float) -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[300], capacity=301)
    case.feeds["query"][0, 0, :16] = bad
    output = case.node.run(case.feeds)[0].reshape(4, 16)
    assert np.isnan(output[0]).all()
    assert np.isfinite(output[1:]).all()


@pytest.mark.parametrize("where", [slice(None), slice(7, 8)], ids=str)
def test_a_nan_in_the_bias_is_not_hidden(where: slice) -> None:
    bias = np.zeros((1, 4, 1, 301))
    bias[0, 0, 0, where] = np.nan
    case = make_case(
        num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[300], capacity=301, bias=bias
    )
    output = case.node.run(case.feeds)[0].reshape(4, 16)
    assert np.isnan(output[0]).all()
    assert np.isfinite(output[1:]).all()


def test_sessions_give_their_memory_back() -> None:
    case = make_case(num_heads=8, kv_num_heads=4, head_size=64, seqlens_k=[999], capacity=1000)

    def use_sessions(count: int) -> int:
        """Creates, runs and drops sessions; returns the process's resident bytes afterwards."""
        for _ in range(count):
            case.node.run(case.feeds)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = use_sessions(20)
    # Each holds an arena with caches of 2 MB.
    assert use_sessions(60) - before < 30e6


def test_position_ids_choose_the_rotary_rows() -> None:
    case = make_case(
        num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[4, 9], capacity=16, rotary_half=8
    )
    feeds = case.feeds | {"position_ids": np.array([[4], [9]], np.int64)}
    plain = case.node.run(case.feeds)
    assert case.node.run(feeds)[0].tobytes() == plain[0].tobytes()
    moved = feeds | {"position_ids": np.array([[5], [9]], np.int64)}
    found = case.node.run(moved)[0]
    assert found[0].tobytes() != plain[0][0].tobytes()
    assert found[1].tobytes() == plain[0][1].tobytes()
    stock = case.node.run(moved, op=STOCK)[0]
    np.testing.assert_allclose(found, stock, rtol=0, atol=4e-6)


def test_first_token_needs_no_past() -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[0], capacity=1)
    feeds = {name: a for name, a in case.feeds.items() if not name.startswith("past_")}
    ours = case.node.run(feeds)
    np.testing.assert_allclose(ours[0], case.node.run(feeds, op=STOCK)[0], rtol=0, atol=1e-6)
    assert ours[1].shape == (1, 2, 1, 16)


def test_a_cache_that_grows_is_copied_whole() -> None:
    case = make_case(num_heads=4, kv_num_heads=2, head_size=16, seqlens_k=[700], capacity=701)
    feeds = case.feeds | {name: case.feeds[name][:, :, :700] for name in ("past_key", "past_value")}
    windowed = Node(4, 2, {"local_window_size": 5})
    for node in (case.node, windowed):
        ours = node.run(feeds)
        for found, name in zip(ours[1:], ("key", "value"), strict=True):
            assert found.shape == (1, 2, 701, 16)
            assert found[:, :, :700].tobytes() == feeds[f"past_{name}"].tobytes()
            assert found[0, :, 700].tobytes() == feeds[name].tobytes()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_drawn_steps_match(data: st.DataObject) -> None:
    kv_heads = data.draw(st.integers(1, 3), label="kv_num_heads")
    half_size = data.draw(st.integers(1, 10), label="head_size / 16")
    capacity = data.draw(st.sampled_from([1, 5, 64, 300, 520]), label="capacity")
    rotary = data.draw(st.booleans(), label="rotary")
    case = make_case(
        num_heads=kv_heads * data.draw(st.integers(1, 9), label="group"),
        kv_num_heads=kv_heads,
        head_size=16 * half_size,
        seqlens_k=data.draw(
            st.lists(st.integers(0, capacity - 1), min_size=1, max_size=5), label="seqlens_k"
        ),
        capacity=capacity,
        dtype=data.draw(st.sampled_from([np.float32, np.float16]), label="dtype"),
        packed=data.draw(st.booleans(), label="packed"),
        rotary_half=data.draw(st.integers(1, half_size), label="pairs / 8") * 8 if rotary else 0,
        interleaved=data.draw(st.booleans(), label="interleaved"),
        local_window_size=data.draw(st.sampled_from([-1, 1, 7, 200]), label="window"),
        softcap=data.draw(st.sampled_from([0.0, 5.0]), label="softcap"),
        schedule=data.draw(
            st.sampled_from(["auto", "lean", "fixed_split", "direct"]), label="schedule"
        ),
        seed=data.draw(st.integers(0, 2**32 - 1), label="seed"),
    )
    session = case.node.session(case.feeds)
    separate = run_session(session, case.feeds)
    assert_matches(case, separate)
    together = run_session(session, case.feeds, shared=True)
    assert separate[0].tobytes() == together[0].tobytes()
