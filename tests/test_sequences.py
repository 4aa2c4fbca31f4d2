"""Sequences that differ in more than their length, and layers that share a cache; q/k norm."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gqa_node import (
    OURS,
    STOCK,
    Case,
    Feeds,
    assert_matches_reference,
    assert_matches_stock,
    make_case,
    needs_stock,
    run_session,
)
from test_query_rows import FORMATS, STOCK_FORMATS

# What stands beside the lengths; `total` is 304.
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rotary": {"rotary_half": 32},
    "partial interleaved rotary": {"rotary_half": 8, "interleaved": True},
    "window of 3": {"local_window_size": 3},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": 3 * np.random.default_rng(0).standard_normal((4, 6, 5, 304))},
    "head_sink": {"sink": np.linspace(-2, 3, 6)},
}
QUERIES = {"ragged": [5, 2, 4, 1], "some idle": [0, 5, 0, 3], "all idle": [0, 0, 0, 0]}
NORM_FORMATS = [name for name in FORMATS if "int" not in name]


def sequences_case(name: str, **changes: Any) -> Case:
    """Four sequences of 5 query tokens each, some of which are padding."""
    shape = {
        "num_heads": 6,
        "kv_num_heads": 2,
        "head_size": 64,
        "tokens": 5,
        "queries": [5, 2, 4, 1],
    }
    lengths = {"seqlens_k": [303, 255, 40, 7], "capacity": 310}
    return make_case(**{**shape, **lengths, **FORMATS[name], **changes})


def shared_case(name: str, **changes: Any) -> Case:
    """One sequence whose keys and values are in the cache before the call."""
    only = {"seqlens_k": [303], "queries": None, "new_rows": False, "tokens": 5}
    bias = changes.get("bias")
    return sequences_case(name, **only | changes | ({} if bias is None else {"bias": bias[:1]}))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", FORMATS)
def test_ragged_chunks_match_the_reference(
    name: str, feature: str, queries: str, packed: bool
) -> None:
    case = sequences_case(name, queries=QUERIES[queries], packed=packed, **FEATURES[feature])
    separate = case.node.run(case.feeds)
    assert_matches_reference(case, separate)
    assert case.node.run(case.feeds, shared=True)[0].tobytes() == separate[0].tobytes()


@needs_stock(1, 32)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", STOCK_FORMATS)
def test_ragged_chunks_match_stock(name: str, feature: str, queries: str, shared: bool) -> None:
    case = sequences_case(name, queries=QUERIES[queries], **FEATURES[feature])
    assert_matches_stock(case, case.node.run(case.feeds, shared=shared), shared=shared)


@needs_stock(1, 32)
@pytest.mark.parametrize("name", ["float32", "float16", "int8"])
def test_long_ragged_chunks_are_stocks_with_zeros_for_padding(name: str) -> None:
    case = sequences_case(name, tokens=12, queries=[12, 0, 7, 1], rotary_half=32)
    ours, stock = (case.node.run(case.feeds, op=op) for op in (OURS, STOCK))
    assert_matches_reference(case, ours)
    for b, count in enumerate(case.step.queries):
        assert ours[0][b, :count].tobytes() == stock[0][b, :count].tobytes()


def test_a_padded_sequence_has_the_bits_of_one_without_padding() -> None:
    """Whatever its neighbours are, and whatever the padding holds."""
    case = sequences_case("float32", rotary_half=32)
    together = case.node.run(case.feeds)[0]
    for b, count in enumerate(case.step.queries):
        feeds: Feeds = {}
        for name, array in case.feeds.items():
            alone = array if array.ndim == 0 or "cos sin".find(name[:3]) >= 0 else array[b : b + 1]
            feeds[name] = alone[:, :count] if name in ("query", "key", "value") else alone
        feeds["total_sequence_length"] = np.array(case.step.lengths[b], np.int32)
        assert case.node.run(feeds)[0].tobytes() == together[b, :count].tobytes()
    for name in ("query", "key", "value"):
        case.feeds[name][1, 2:] = np.nan
    assert case.node.run(case.feeds)[0].tobytes() == together.tobytes()


def test_each_token_of_a_ragged_chunk_is_rotated_by_its_own_position() -> None:
    """And those of padding are nobody's: they need be no rows of the tables."""
    ids = [[9, 0, 7, 3, 4], [5, 6, -1, 2**40, -9], [1, 1, 1, 1, 310], [0, 999, 999, 999, 999]]
    case = sequences_case("float32", rotary_half=32, position_ids=ids)
    assert_matches_reference(case, case.node.run(case.feeds))


@needs_stock(1, 32)
@pytest.mark.parametrize(
    "changes,message",
    [
        ({"query_seqlens": [6, 2, 4, 1]}, r"input query_seqlens\[0\] is 6; .* between 0 and 5"),
        ({"query_seqlens": [5, -1, 4, 1]}, r"input query_seqlens\[1\] is -1"),
        ({"query_seqlens": [5, 2, 4]}, r"input query_seqlens has shape \[3\]; expected \[4\]"),
        ({"query_seqlens": [[5, 2, 4, 1]]}, "input query_seqlens has shape"),
        ({"seqlens_k": [303, 255, 40, -1]}, r"input seqlens_k\[3\] is -1"),
        ({"seqlens_k": [303, 304, 40, 7]}, r"input seqlens_k\[1\] is 304"),
        ({"seqlens_k": [303, 255, 40, 0], "query_seqlens": [5, 2, 4, 2]}, r"query_seqlens\[3\]"),
        ({"seqlens_k": [309] * 4, "total_sequence_length": 310}, r"query_seqlens\[1\] leave 308"),
        ({"total_sequence_length": 4}, "total_sequence_length"),
    ],
    ids=str,
)
def test_bad_numbers_of_query_tokens_are_refused_as_by_stock(
    changes: dict[str, Any], message: str
) -> None:
    case = sequences_case("float32")
    feeds = case.feeds | {name: np.array(value, np.int32) for name, value in changes.items()}
    with pytest.raises(Exception, match=f"attention: .*{message}"):
        case.node.run(feeds)
    with pytest.raises(Exception, match="GroupQueryAttention"):
        case.node.run(feeds, op=STOCK)


def test_numbers_of_query_tokens_need_a_past() -> None:
    case = sequences_case("float32")
    feeds = {name: array for name, array in case.feeds.items() if not name.startswith("past")}
    with pytest.raises(Exception, match=r"attention: .*query_seqlens.*past"):
        case.node.run(feeds)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("name", FORMATS)
def test_layers_that_share_a_cache_match_the_reference(
    name: str, tokens: int, feature: str
) -> None:
    changes = dict(FEATURES[feature])
    if "bias" in changes:
        changes["bias"] = changes["bias"][:, :, :tokens]
    case = shared_case(name, tokens=tokens, **changes)
    separate = case.node.run(case.feeds)
    assert_matches_reference(case, separate)
    together = case.node.run(case.feeds, shared=True)
    assert together[0].tobytes() == separate[0].tobytes()
    for kind, present in zip(("key", "value"), together[1:], strict=True):
        assert present.tobytes() == case.feeds[f"past_{kind}"].tobytes()


@needs_stock(1, 32)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokens", [1, 5, 12])
@pytest.mark.parametrize("feature", [name for name in FEATURES if name != "bias"])
@pytest.mark.parametrize("name", STOCK_FORMATS)
def test_layers_that_share_a_cache_match_stock(
    name: str, feature: str, tokens: int, shared: bool
) -> None:
    case = shared_case(name, tokens=tokens, **FEATURES[feature])
    assert_matches_stock(case, case.node.run(case.feeds, shared=shared), shared=shared)


def test_a_batch_of_sharing_layers_decodes() -> None:
    case = sequences_case("float32", tokens=1, queries=None, new_rows=False, rotary_half=32)
    assert_matches_reference(case, case.node.run(case.feeds))


@needs_stock(1, 32)
def test_rows_that_a_shared_cache_has_not_are_refused_as_by_stock() -> None:
    case = shared_case("float32")
    feeds = case.feeds | {"total_sequence_length": np.array(311, np.int32)}
    for op in (OURS, STOCK):
        with pytest.raises(Exception, match="total_sequence_length"):
            case.node.run(feeds, op=op)


@pytest.mark.parametrize("tokens", [1, 5, 20])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [{}, {"rotary_half": 8}, {"rotary_half": 32}], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_normalised_heads_match_the_reference(
    name: str, rotary: dict[str, Any], packed: bool, tokens: int
) -> None:
    """Long prompts as well, for which the stock CPU operator has no norm."""
    queries = [min(tokens, count) for count in (20, 3, 0, 5)]
    case = sequences_case(
        name, norm=True, tokens=tokens, queries=queries, packed=packed, seed=1, **rotary
    )
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("tokens", [6, 40])
def test_first_prompts_may_be_normalised(tokens: int) -> None:
    case = sequences_case(
        "float32", norm=True, tokens=tokens, queries=None, seqlens_k=[tokens - 1, 2, 0, 4]
    )
    assert_matches_reference(case, case.node.run(case.feeds))


@pytest.mark.parametrize("missing", ["q_norm_weight", "k_norm_weight"])
def test_queries_or_keys_alone_are_not_normalised(missing: str) -> None:
    case = sequences_case("float32", norm=True)
    del case.feeds[missing]
    with pytest.raises(Exception, match=f"attention: .*{missing}.* must be given together"):
        case.node.run(case.feeds)


@pytest.mark.parametrize(
    "attributes,epsilons",
    [
        ({}, (1e-6, 1e-6)),
        ({"qk_norm_epsilon": 0.5}, (0.5, 0.5)),
        ({"qk_norm_epsilon": 0.5, "k_norm_epsilon": 2.0}, (0.5, 2.0)),
        ({"q_norm_epsilon": 3.0}, (3.0, 1e-6)),
    ],
    ids=str,
)
def test_each_epsilon_is_its_own(
    attributes: dict[str, float], epsilons: tuple[float, float]
) -> None:
    case = sequences_case("float32", norm=True, magnitude=0.3, **attributes)
    step = replace(case.step, q_norm_epsilon=epsilons[0], k_norm_epsilon=epsilons[1])
    assert_matches_reference(replace(case, step=step), case.node.run(case.feeds))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon"])
def test_an_epsilon_that_is_not_positive_is_refused(name: str, epsilon: float) -> None:
    case = sequences_case("float32", norm=True, **{name: epsilon})
    with pytest.raises(Exception, match=f"attention: .*{name}"):
        case.node.session(case.feeds)


@pytest.mark.parametrize("name", ["q_norm_weight", "k_norm_weight"])
def test_a_norm_of_another_size_is_refused(name: str) -> None:
    case = sequences_case("float32", norm=True)
    for weight in (np.ones(63, np.float32), np.ones((1, 64), np.float32)):
        with pytest.raises(Exception, match=f"attention: input {name} has shape .*expected"):
            case.node.run(case.feeds | {name: weight})


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_pools_and_schedules_give_the_same_bits(name: str, norm: bool) -> None:
    results = set()
    for schedule in ("auto", "lean", "fixed_split", "direct"):
        case = sequences_case(
            name, seqlens_k=[3003, 255, 900, 7], capacity=3010, norm=norm, schedule=schedule
        )
        for threads in (1, 2, 3):
            session = case.node.session(case.feeds, threads=threads)
            results.add(run_session(session, case.feeds)[0].tobytes())
    assert len(results) == 1
