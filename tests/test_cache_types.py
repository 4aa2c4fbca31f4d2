"""bfloat16, and caches of 8-bit and 4-bit integers, against the reference and the stock one."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gqa_node import (
    Case,
    assert_matches_reference,
    assert_matches_stock,
    make_case,
    needs_stock,
    run_session,
)
from reference import CacheFormat

SCHEDULES = ("auto", "lean", "fixed_split", "direct")

FORMATS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": ml_dtypes.bfloat16},
    "int8 per tensor": {"cache": "int8"},
    "int8 per channel": {"cache": "int8", "quantisation": "PER_CHANNEL"},
    "int4 per tensor": {"cache": "int4"},
    "int4 per channel": {"cache": "int4", "quantisation": "PER_CHANNEL"},
    "float16, int8 per tensor": {"cache": "int8", "dtype": np.float16},
    "float16, int8 per channel": {
        "cache": "int8",
        "quantisation": "PER_CHANNEL",
        "dtype": np.float16,
    },
    "float16, int4 per tensor": {"cache": "int4", "dtype": np.float16},
    "float16, int4 per channel": {
        "cache": "int4",
        "quantisation": "PER_CHANNEL",
        "dtype": np.float16,
    },
}
INTEGERS = [name for name in FORMATS if name != "bfloat16"]

FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rotary": {"rotary_half": 32},
    "partial interleaved rotary, packed": {"rotary_half": 8, "interleaved": True, "packed": True},
    "window of 1": {"local_window_size": 1},
    "window of 300": {"local_window_size": 300},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": 3 * np.random.default_rng(1).standard_normal((1, 6, 1, 701))},
    "head_sink": {"sink": np.linspace(-2, 3, 6)},
    "smooth_softmax": {"smooth_softmax": 1},
    "scale": {"scale": 0.3},
    "all": {
        "rotary_half": 16,
        "local_window_size": 400,
        "softcap": 5.0,
        "bias": np.random.default_rng(2).standard_normal((3, 1, 1, 701)),
        "sink": np.linspace(3, -2, 6),
    },
}


def ragged_case(name: str, **changes: Any) -> Case:
    shape = {"num_heads": 6, "kv_num_heads": 2, "head_size": 64}
    lengths = {"seqlens_k": [0, 280, 700], "capacity": 705}
    return make_case(**{**shape, **lengths, **FORMATS[name], **changes})


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("name", FORMATS)
def test_head_sizes_and_groups_match_the_reference(name: str, group: int, size: int) -> None:
    case = ragged_case(
        name,
        num_heads=2 * group,
        head_size=size,
        rotary_half=8,
        seqlens_k=[150, 3],
        capacity=160,
    )
    assert_matches_reference(case, case.node.run(case.feeds, shared=True))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", FORMATS)
def test_features_match_the_reference(name: str, feature: str) -> None:
    case = ragged_case(name, **FEATURES[feature])
    separate = case.node.run(case.feeds)
    assert_matches_reference(case, separate)
    assert case.node.run(case.feeds, shared=True)[0].tobytes() == separate[0].tobytes()


@needs_stock(1, 32)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", INTEGERS)
def test_features_match_stock(name: str, feature: str, shared: bool) -> None:
    case = ragged_case(name, **FEATURES[feature])
    assert_matches_stock(case, case.node.run(case.feeds, shared=shared), shared=shared)


@needs_stock(1, 32)
@pytest.mark.parametrize("name", INTEGERS)
def test_a_cache_that_grows_matches_stock(name: str) -> None:
    case = ragged_case(name, seqlens_k=[700, 700], capacity=700, poison=False)
    ours = case.node.run(case.feeds)
    assert ours[1].shape[2] == 701
    assert_matches_stock(case, ours)


@needs_stock(1, 32)
@pytest.mark.parametrize("name", INTEGERS)
def test_a_right_padded_prompt_equals_stock(name: str) -> None:
    case = ragged_case(name, tokens=12, seqlens_k=[11, 4, 0], rotary_half=32)
    ours = case.node.run(case.feeds, shared=True)
    assert_matches_reference(case, ours)
    assert_matches_stock(case, ours, shared=True)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_past_the_end_are_neither_read_nor_kept(name: str) -> None:
    poisoned, clean = (ragged_case(name, rotary_half=16, poison=poison) for poison in (True, False))
    separate, other = (case.node.run(case.feeds) for case in (poisoned, clean))
    for found, wanted in zip(separate, other, strict=True):
        assert found.tobytes() == wanted.tobytes()
    shared = poisoned.node.run(poisoned.feeds, shared=True)
    for i, kind in ((1, "past_key"), (2, "past_value")):
        for b, length in enumerate(poisoned.step.lengths):
            assert not separate[i][b, :, length:].view(np.uint8).any()
            tail = poisoned.feeds[kind][b, :, length:]
            assert shared[i][b, :, length:].tobytes() == tail.tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_neighbours_do_not_change_a_sequence(name: str) -> None:
    case = ragged_case(name, rotary_half=16)
    together = case.node.run(case.feeds, shared=True)
    shared_inputs = ("cos_cache", "sin_cache", "k_scale", "v_scale")
    for b, length in enumerate(case.step.lengths):
        single = {
            key: array if key in shared_inputs else array[b : b + 1]
            for key, array in case.feeds.items()
            if key != "total_sequence_length"
        } | {"total_sequence_length": np.array(length, np.int32)}
        for found, wanted in zip(case.node.run(single, shared=True), together, strict=True):
            assert found.tobytes() == wanted[b].tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_pools_and_schedules_give_the_same_bits(name: str) -> None:
    results = set()
    for schedule in SCHEDULES:
        case = ragged_case(
            name, seqlens_k=[0, 5, 1000, 2999], capacity=3000, rotary_half=16, schedule=schedule
        )
        for threads in (1, 2, 3, 8):
            session = case.node.session(case.feeds, threads=threads)
            for shared in (True, False):
                results.add(run_session(session, case.feeds, shared=shared)[0].tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("name", INTEGERS)
def test_new_rows_round_to_even_and_saturate(name: str) -> None:
    case = ragged_case(name, seqlens_k=[0], capacity=1, head_size=16)
    largest = 127 if "int8" in name else 7
    row = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -0.0, largest + 0.4, largest + 0.5, 1e4, -largest])
    row = np.concatenate([row, [-largest - 1, -largest - 1.5, -1e4, np.inf, -np.inf, 0.501]])
    for part in ("key", "value"):
        case.feeds[f"{part[0]}_scale"][...] = 1
        case.feeds[part][...] = np.tile(row, 2)
    _, key, value = case.node.run(case.feeds)
    wanted = [0, 2, 2, 0, -2, 0, largest, largest, largest, -largest]
    wanted += [-largest - 1, -largest - 1, -largest - 1, largest, -largest - 1, 1]
    codes = np.array(wanted, np.int8)
    if "int4" in name:
        codes = (codes[0::2] + 8 | codes[1::2] + 8 << 4).astype(np.uint8)
    for present in (key, value):
        np.testing.assert_array_equal(present, np.broadcast_to(codes, present.shape))


@pytest.mark.parametrize("name", INTEGERS)
def test_new_rows_on_the_verge_of_two_steps_match_the_reference(name: str) -> None:
    case = ragged_case(name, seqlens_k=[0] * 20, capacity=1, dtype=np.float32)
    rng = np.random.default_rng(3)
    for part, stored in (("key", case.step.key_format), ("value", case.step.value_format)):
        halves = rng.integers(-9, 9, (20, 1, 2, 64)) + np.float32(0.5)
        on_the_verge = (halves * stored.scale).astype(np.float32)
        getattr(case.step, part)[...] = on_the_verge
        case.feeds[part][...] = on_the_verge.reshape(20, 1, 128)
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("name", INTEGERS)
def test_a_new_nan_is_stored_as_the_largest_integer(name: str, part: str) -> None:
    case = ragged_case(name)
    case.feeds[part][0, 0, 3] = getattr(case.step, part)[0, 0, 0, 3] = np.nan
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("name", FORMATS)
def test_a_nan_in_a_query_is_not_hidden(name: str) -> None:
    case = ragged_case(name)
    case.feeds["query"][2, 0, :64] = np.nan
    output = case.node.run(case.feeds)[0].reshape(3, 6, 64).astype(np.float32)
    assert np.isnan(output[2, 0]).all()
    output[2, 0] = 0
    assert np.isfinite(output).all()


@pytest.mark.parametrize("last", [0, 50])
def test_a_nan_in_a_bfloat16_row_is_not_hidden(last: int) -> None:
    for kind in ("key", "value"):
        case = ragged_case("bfloat16", seqlens_k=[50], capacity=64)
        if last:
            case.feeds[f"past_{kind}"][0, 0, 20, 5] = np.nan
        else:
            case.feeds[kind][0, 0, 5] = np.nan
        output = case.node.run(case.feeds)[0].reshape(6, 64).astype(np.float32)
        assert np.isnan(output[:3, 5]).all()
        assert np.isfinite(output[3:]).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_every_integer_is_read_as_itself(name: str) -> None:
    """One valid row, so that the output is that row."""
    case = ragged_case(name, seqlens_k=[1] * 16, capacity=2, local_window_size=2)
    feeds = case.feeds
    feeds["k_scale"][...] = 0
    feeds["v_scale"][...] = 1
    feeds["value"][...] = 0
    rows = feeds["past_value"][:, :, :1]
    codes = np.resize(np.arange(256, dtype=np.uint8), rows.shape)
    rows[...] = codes.view(rows.dtype)
    numbers = codes.view(np.int8).astype(np.float32)
    if "int4" in name:
        numbers = np.stack([codes & 15, codes >> 4], axis=-1).reshape(16, 2, 1, 64) - np.float32(8)
    output = case.node.run(feeds)[0].reshape(16, 2, 3, 64)
    np.testing.assert_array_equal(2 * output, np.broadcast_to(numbers, output.shape))


@needs_stock(1, 32)
@pytest.mark.parametrize("scale", [0.0, -0.02, 1e-30, 1e-40])
@pytest.mark.parametrize("kind", ["k_scale", "v_scale"])
@pytest.mark.parametrize("name", INTEGERS[:4])
def test_odd_scales_match_stock(name: str, kind: str, scale: float) -> None:
    case = ragged_case(name)
    case.feeds[kind].reshape(-1)[0] = scale
    assert_matches_stock(case, case.node.run(case.feeds))


@pytest.mark.parametrize("kind", ["k_scale", "v_scale"])
@pytest.mark.parametrize("name", ["int8 per tensor", "int4 per channel"])
def test_scales_of_any_shape_with_their_count_agree(name: str, kind: str) -> None:
    case = ragged_case(name)
    expected = case.node.run(case.feeds)
    shapes: list[tuple[int, ...]] = [(2, 64), (128,), (2, 1, 64)]
    if "per tensor" in name:
        shapes = [(), (1, 1), (1, 1, 1, 1)]
    for shape in shapes:
        feeds = case.feeds | {kind: case.feeds[kind].reshape(shape)}
        for found, wanted in zip(case.node.run(feeds), expected, strict=True):
            assert found.tobytes() == wanted.tobytes()


def _scales(count: int) -> dict[str, Any]:
    return {"k_scale": np.full(count, 0.02, np.float32)}


# What is changed of an int8 per-channel case, and a name that the error must tell.
BAD_CACHES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no scale of keys": ({"k_scale": None}, {}, "k_scale"),
    "no scale of values": ({"v_scale": None}, {}, "v_scale"),
    "one scale for all channels": (_scales(1), {}, "k_scale"),
    "scales for one head": (_scales(64), {}, "k_scale"),
    "scales for three heads": (_scales(192), {}, "k_scale"),
    "no scales": (_scales(0), {}, "k_scale"),
    "value scales for one head": ({"v_scale": np.ones((1, 1, 1, 64), np.float32)}, {}, "v_scale"),
    "a scale for each channel of one tensor": (
        {},
        {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
        "k_scale",
    ),
    "no bit width": ({}, {"kv_cache_bit_width": 0}, "kv_cache_bit_width"),
    "a bit width of 2": ({}, {"kv_cache_bit_width": 2}, "kv_cache_bit_width"),
    "a bit width of 16": ({}, {"kv_cache_bit_width": 16}, "kv_cache_bit_width"),
    "int8 said to hold 4 bits": ({}, {"kv_cache_bit_width": 4}, "kv_cache_bit_width|past_key"),
    "an unknown type": ({}, {"k_quant_type": "PER_TOKEN"}, "k_quant_type"),
    "keys and values unlike": ({}, {"v_quant_type": "PER_TENSOR"}, "k_quant_type|v_quant_type"),
    "keys alone": ({}, {"v_quant_type": "NONE"}, "k_quant_type|v_quant_type"),
    "values alone": ({}, {"k_quant_type": "NONE"}, "k_quant_type|v_quant_type"),
    "integers said to be numbers": (
        {},
        {"k_quant_type": "NONE", "v_quant_type": "NONE", "kv_cache_bit_width": 0},
        "k_quant_type|past_key",
    ),
    "numbers said to be integers": (
        {name: np.zeros((3, 2, 705, 64), np.float32) for name in ("past_key", "past_value")},
        {},
        "k_quant_type|past_key",
    ),
    "rows of another width": (
        {name: np.zeros((3, 2, 705, 32), np.int8) for name in ("past_key", "past_value")},
        {},
        "past_key",
    ),
    "uint8 said to hold 8 bits": (
        {name: np.zeros((3, 2, 705, 64), np.uint8) for name in ("past_key", "past_value")},
        {},
        "kv_cache_bit_width|past_key",
    ),
    "4 bits in rows of 8": (
        {name: np.zeros((3, 2, 705, 64), np.uint8) for name in ("past_key", "past_value")},
        {"kv_cache_bit_width": 4},
        "past_key",
    ),
}


@pytest.mark.parametrize("name", BAD_CACHES)
def test_bad_caches_are_refused_by_name(name: str) -> None:
    inputs, attributes, named = BAD_CACHES[name]
    case = ragged_case("int8 per channel")
    feeds = {key: array for key, array in (case.feeds | inputs).items() if array is not None}
    case.node.attributes.update(attributes)
    with pytest.raises(Exception, match=named) as refusal:
        case.node.run(feeds)
    message = str(refusal.value)
    assert "attention: " in message
    assert "\n" not in message.strip()


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
            st.lists(st.integers(0, capacity - 1), min_size=1, max_size=4), label="seqlens_k"
        ),
        capacity=capacity,
        packed=data.draw(st.booleans(), label="packed"),
        rotary_half=data.draw(st.integers(1, half_size), label="pairs / 8") * 8 if rotary else 0,
        interleaved=data.draw(st.booleans(), label="interleaved"),
        local_window_size=data.draw(st.sampled_from([-1, 1, 7, 200]), label="window"),
        softcap=data.draw(st.sampled_from([0.0, 5.0]), label="softcap"),
        schedule=data.draw(st.sampled_from(SCHEDULES), label="schedule"),
        seed=data.draw(st.integers(0, 2**32 - 1), label="seed"),
        **FORMATS[data.draw(st.sampled_from(sorted(FORMATS)), label="format")],
    )
    session = case.node.session(case.feeds)
    separate = run_session(session, case.feeds)
    assert_matches_reference(case, separate)
    together = run_session(session, case.feeds, shared=True)
    assert separate[0].tobytes() == together[0].tobytes()


@pytest.mark.parametrize("dtype,unit", [(np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)])
def test_the_reference_rounds_rows_to_float32_and_then_to_16_bits(dtype: type, unit: float) -> None:
    """As the kernel does: what is a tie in float32 goes to the even neighbour."""
    stored = CacheFormat(np.dtype(dtype)).store(np.array([[1 + unit + 2.0**-30, 1 + 3 * unit]]))
    assert stored.tolist() == [[1, 1 + 4 * unit]]
