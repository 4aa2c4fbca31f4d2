"""Several query tokens in one call: chunks after a past, and short prompts."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gqa_node import (
    OURS,
    STOCK,
    Case,
    Feeds,
    assert_matches_others,
    assert_matches_reference,
    assert_matches_stock,
    make_case,
    needs_stock,
    run_session,
)

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"dtype": np.float16},
    "bfloat16": {"dtype": ml_dtypes.bfloat16},
    "int8": {"cache": "int8", "quantisation": "PER_CHANNEL"},
    "int4": {"cache": "int4"},
    "float16, int8": {"cache": "int8", "dtype": np.float16},
}
# Those that the stock operator has. Until 1.23 it did not count a token into its own window.
STOCK_FORMATS = [
    pytest.param(name, marks=needs_stock(1, 32 if "int" in name else 23))
    for name in FORMATS
    if name != "bfloat16"
]


def _bias(tokens: int, total: int) -> Any:
    return 3 * np.random.default_rng(tokens).standard_normal((1, 6, tokens, total))


# Of the tokens and the total, which the shape of a bias depends on.
FEATURES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "nothing": lambda tokens, total: {},
    "rotary": lambda tokens, total: {"rotary_half": 32},
    "partial interleaved rotary, packed": lambda tokens, total: {
        "rotary_half": 8,
        "interleaved": True,
        "packed": True,
    },
    "window of 1": lambda tokens, total: {"local_window_size": 1},
    "window of 3": lambda tokens, total: {"local_window_size": 3},
    "window of 290": lambda tokens, total: {"local_window_size": 290},
    "softcap": lambda tokens, total: {"softcap": 2.0},
    "bias": lambda tokens, total: {"bias": _bias(tokens, total)},
    "head_sink": lambda tokens, total: {"sink": np.linspace(-2, 3, 6)},
    "smooth_softmax": lambda tokens, total: {"smooth_softmax": 1},
    "all": lambda tokens, total: {
        "rotary_half": 16,
        "local_window_size": 400,
        "softcap": 5.0,
        "bias": _bias(tokens, total)[:, :1],
        "sink": np.linspace(3, -2, 6),
    },
}


def chunk_case(name: str, tokens: int, past: int, **changes: Any) -> Case:
    total = past + tokens
    shape = {"num_heads": 6, "kv_num_heads": 2, "head_size": 64, "tokens": tokens}
    lengths = {"seqlens_k": [total - 1], "capacity": total + 2}
    return make_case(**{**shape, **lengths, **FORMATS[name], **changes})


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("past", [20, 600])
@pytest.mark.parametrize("tokens", range(1, 9))
def test_chunks_match_the_reference(tokens: int, past: int, feature: str) -> None:
    case = chunk_case("float32", tokens, past, **FEATURES[feature](tokens, past + tokens))
    separate = case.node.run(case.feeds)
    assert_matches_reference(case, separate)
    assert case.node.run(case.feeds, shared=True)[0].tobytes() == separate[0].tobytes()


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("tokens", [2, 5, 8])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "float32"])
def test_chunks_of_other_types_match_the_reference(name: str, tokens: int, feature: str) -> None:
    case = chunk_case(name, tokens, 300, **FEATURES[feature](tokens, 300 + tokens))
    assert_matches_reference(case, case.node.run(case.feeds, shared=True))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("tokens", [2, 4, 8])
@pytest.mark.parametrize("name", STOCK_FORMATS)
def test_chunks_match_stock(name: str, tokens: int, feature: str, shared: bool) -> None:
    case = chunk_case(name, tokens, 300, **FEATURES[feature](tokens, 300 + tokens))
    ours = case.node.run(case.feeds, shared=shared)
    assert_matches_stock(case, ours, shared=shared)


def part_of(case: Case, start: int, end: int) -> Feeds:
    """Returns the feeds of a call with some of a chunk's tokens, after those before them."""
    total = int(case.feeds["seqlens_k"][0]) + 1 - case.feeds["query"].shape[1] + end
    feeds = dict(case.feeds)
    for name in ("query", "key", "value"):
        if name in feeds:
            feeds[name] = feeds[name][:, start:end]
    if "attention_bias" in feeds:
        feeds["attention_bias"] = feeds["attention_bias"][:, :, start:end, :total].copy()
    feeds["seqlens_k"] = np.array([total - 1], np.int32)
    feeds["total_sequence_length"] = np.array(total, np.int32)
    return feeds


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", STOCK_FORMATS)
def test_turns_of_3_4_and_5_tokens_match_stock(name: str, feature: str, shared: bool) -> None:
    """In one buffer with room to spare, or in caches that begin empty and grow."""
    case = chunk_case(name, 12, 0, **FEATURES[feature](12, 12))
    results = []
    for op in (OURS, STOCK):
        caches = [case.feeds[kind][:, :, : 14 * shared] for kind in ("past_key", "past_value")]
        outputs = []
        for start, end in ((0, 3), (3, 7), (7, 12)):
            feeds = part_of(case, start, end) | {"past_key": caches[0], "past_value": caches[1]}
            output, *caches = case.node.run(feeds, op=op, shared=shared)
            outputs.append(output)
        results.append([np.concatenate(outputs, axis=1), *caches])
    assert_matches_others(case, *results)


@pytest.mark.parametrize("past", [0, 1, 247, 248, 254, 255, 256, 504, 511, 513])
@pytest.mark.parametrize("tokens", [2, 8])
def test_chunks_around_tile_edges_match_the_reference(tokens: int, past: int) -> None:
    for window in (-1, 4, 256):
        case = chunk_case("float32", tokens, past, local_window_size=window)
        # A total of its own, so that a chunk without a past is no prompt.
        case.feeds["total_sequence_length"][...] = past + tokens + 2
        assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("name", FORMATS)
def test_head_sizes_and_groups_match_the_reference(name: str, group: int, size: int) -> None:
    heads = {"num_heads": 2 * group, "head_size": size, "rotary_half": 8}
    for tokens in (3, 8):
        case = chunk_case(name, tokens, 50, **heads)
        assert_matches_reference(case, case.node.run(case.feeds, shared=True))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", FORMATS)
def test_chunks_equal_single_steps(name: str, feature: str) -> None:
    tokens, past = 8, 300
    case = chunk_case(name, tokens, past, **FEATURES[feature](tokens, past + tokens))
    together = case.node.run(case.feeds)
    caches = {kind: case.feeds[kind] for kind in ("past_key", "past_value")}
    outputs = []
    for s in range(tokens):
        output, *presents = case.node.run(part_of(case, s, s + 1) | caches, shared=True)
        caches = dict(zip(caches, presents, strict=True))
        outputs.append(output)
    assert_matches_reference(case, [np.concatenate(outputs, axis=1), *together[1:]])
    valid = past + tokens
    for i, kind in ((1, "past_key"), (2, "past_value")):
        assert together[i][:, :, :valid].tobytes() == caches[kind][:, :, :valid].tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_pools_and_schedules_give_the_same_bits(name: str) -> None:
    for tokens in (2, 8):
        results = set()
        for schedule in ("auto", "lean", "fixed_split", "direct"):
            case = chunk_case(name, tokens, 3000, rotary_half=16, schedule=schedule)
            for threads in (1, 2, 3, 8):
                session = case.node.session(case.feeds, threads=threads)
                for shared in (True, False):
                    results.add(run_session(session, case.feeds, shared=shared)[0].tobytes())
        assert len(results) == 1


@pytest.mark.parametrize("past", [20, 600])
@pytest.mark.parametrize("name", FORMATS)
def test_later_tokens_do_not_reach_earlier_rows(name: str, past: int) -> None:
    case = chunk_case(name, 6, past)
    expected = case.node.run(case.feeds)[0]
    for last in range(1, 6):
        feeds = {key: array.copy() for key, array in case.feeds.items()}
        for part in ("query", "key", "value"):
            feeds[part][:, last:] = 3 * feeds[part][:, last:][:, ::-1]
        found = case.node.run(feeds)[0]
        assert found[:, :last].tobytes() == expected[:, :last].tobytes()
        assert (found[:, last:] != expected[:, last:]).any()


def test_a_token_whose_bias_masks_all_gives_zeros() -> None:
    for mask in (-np.inf, np.finfo(np.float32).min):
        bias = np.zeros((1, 1, 4, 304))
        bias[..., 2, :] = mask
        case = chunk_case("float32", 4, 300, bias=bias)
        output = case.node.run(case.feeds)[0]
        assert not output[0, 2].any()
        assert output[0, [0, 1, 3]].all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", [12, 70])
def test_long_prompts_with_a_bias_match_the_reference(tokens: int, name: str) -> None:
    """Also where it masks all keys of a token, of which the stock operator makes NaN."""
    bias = _bias(tokens, tokens)
    bias[:, :, tokens // 2] = -np.inf
    case = chunk_case(name, tokens, 0, bias=bias, rotary_half=16, softcap=5.0)
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("name", FORMATS)
def test_a_cache_that_grows_by_a_chunk(name: str) -> None:
    case = chunk_case(name, 5, 300, capacity=305)
    whole = case.node.run(case.feeds)
    feeds = case.feeds | {kind: case.feeds[kind][:, :, :300] for kind in ("past_key", "past_value")}
    for found, wanted in zip(case.node.run(feeds), whole, strict=True):
        assert found.tobytes() == wanted.tobytes()


POSITIONS = ([5, 6, 7, 8], [9, 0, 7, 3], [4, 4, 4, 4])


@pytest.mark.parametrize("ids", POSITIONS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_each_token_of_a_chunk_is_rotated_by_its_own_position(name: str, ids: list[int]) -> None:
    """Which keys it sees depends on its row alone."""
    case = chunk_case(name, 4, 20, rotary_half=32, position_ids=[ids])
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("ids", POSITIONS, ids=str)
@pytest.mark.parametrize("name", STOCK_FORMATS)
def test_positions_of_a_chunk_match_stock(name: str, ids: list[int]) -> None:
    case = chunk_case(name, 4, 20, rotary_half=32, position_ids=[ids])
    assert_matches_stock(case, case.node.run(case.feeds))


@pytest.mark.parametrize(
    "changes",
    [
        {"position_ids": np.full((1, 4), 26, np.int64)},
        {"position_ids": np.full((1, 4), -1, np.int64)},
        {"position_ids": np.zeros((1, 1), np.int64)},
        {"position_ids": np.zeros(1, np.int64)},
        {"seqlens_k": np.array([2], np.int32)},
        {"seqlens_k": np.array([26], np.int32)},
        {"total_sequence_length": np.array(3, np.int32)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["float32", "int8"])
def test_bad_chunks_are_refused_by_name(name: str, changes: Feeds) -> None:
    case = chunk_case(name, 4, 20, rotary_half=32)
    with pytest.raises(Exception, match=next(iter(changes))):
        case.node.run(case.feeds | changes)


@needs_stock(1, 32)
@pytest.mark.parametrize("tokens", [2, 8, 9])
@pytest.mark.parametrize("name", ["float32", "int8", "int4"])
def test_chunks_of_a_batch_without_query_seqlens_are_refused(name: str, tokens: int) -> None:
    case = chunk_case(name, tokens, 20, seqlens_k=[20 + tokens, 9 + tokens], capacity=40)
    for op, message in (
        (STOCK, "batch_size must be 1 when sequence_length > 1"),
        (OURS, f"input query_seqlens is missing; a batch of 2 with {tokens} tokens each after a"),
    ):
        with pytest.raises(Exception, match=message):
            case.node.run(case.feeds, op=op)


PROMPTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rotary": {"rotary_half": 32},
    "interleaved, packed": {"rotary_half": 8, "interleaved": True, "packed": True},
    "positions": {"rotary_half": 32, "position_ids": [[3] + [0] * 5, [1] * 6, [8] * 6]},
    "window of 2": {"local_window_size": 2},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": _bias(6, 6)},
    "head_sink": {"sink": np.linspace(-2, 3, 6)},
}


def prompt_case(name: str, feature: str, capacity: int, valid: tuple[int, int, int]) -> Case:
    return make_case(
        num_heads=6,
        kv_num_heads=2,
        head_size=64,
        tokens=6,
        seqlens_k=[length - 1 for length in valid],
        capacity=capacity,
        **FORMATS[name],
        **PROMPTS[feature],
    )


@pytest.mark.parametrize("valid", [(6, 6, 6), (6, 3, 1)], ids=str)
@pytest.mark.parametrize("capacity", [9, 20])
@pytest.mark.parametrize("feature", PROMPTS)
@pytest.mark.parametrize("name", FORMATS)
def test_short_prompts_match_the_reference(
    name: str, feature: str, capacity: int, valid: tuple[int, int, int]
) -> None:
    """With padding on the right, whose output is zero, and without."""
    case = prompt_case(name, feature, capacity, valid)
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("tokens", [9, 40])
def test_long_prompts_in_bfloat16_match_the_reference(tokens: int) -> None:
    case = make_case(
        num_heads=6,
        kv_num_heads=2,
        head_size=64,
        tokens=tokens,
        seqlens_k=[tokens - 1] * 2,
        capacity=50,
        rotary_half=32,
        **FORMATS["bfloat16"],
    )
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("feature", PROMPTS)
@pytest.mark.parametrize("name", STOCK_FORMATS)
def test_short_right_padded_prompts_match_stock(name: str, feature: str, shared: bool) -> None:
    case = prompt_case(name, feature, 20, valid=(6, 3, 1))
    assert_matches_stock(case, case.node.run(case.feeds, shared=shared), shared=shared)
