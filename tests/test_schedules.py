"""The same bits whatever the schedule, the number of workers, their order and the neighbours."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gqa_node import Case, make_case, run_session
from lean_attention.errors import LeanAttentionError
from lean_attention.kernels import Schedule, decode
from reference import attention

WORKERS = (1, 2, 3, 8, 16, 132)
# The tile of these head sizes is 256 keys: lengths around one, two and many tiles.
LENGTHS = (1, 255, 256, 257, 513, 5000)


def run_kernel(case: Case, **how: Any) -> NDArray[Any]:
    """The kernel without ONNX Runtime, on copies of a case's caches; [B, S, N, H]."""
    step, feeds = case.step, case.feeds
    batch, tokens, heads, size = step.query.shape
    kv_heads = step.key.shape[2]
    return decode(
        feeds["query"].reshape(batch, tokens, heads, size),
        feeds["key"].reshape(batch, tokens, kv_heads, size),
        feeds["value"].reshape(batch, tokens, kv_heads, size),
        feeds["past_key"].copy(),
        feeds["past_value"].copy(),
        feeds["seqlens_k"],
        cos_cache=feeds.get("cos_cache"),
        sin_cache=feeds.get("sin_cache"),
        local_window_size=step.window,
        head_sink=feeds.get("head_sink"),
        softcap=step.softcap,
        **how,
    )


def ragged_case(dtype: type = np.float32, **changes: Any) -> Case:
    return make_case(
        **{
            "num_heads": 6,
            "kv_num_heads": 2,
            "head_size": 40,
            "seqlens_k": [0, 1, 63, 64, 500],
            "capacity": 512,
            "rotary_half": 16,
            "dtype": dtype,
            **changes,
        }
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("length", LENGTHS)
def test_tile_edges_match_the_reference_and_each_other(length: int, dtype: type) -> None:
    case = ragged_case(dtype, seqlens_k=[length - 1], capacity=length)
    expected = attention(case.step).output
    first = run_kernel(case)
    tolerance = 2e-6 if dtype == np.float32 else 4e-3
    np.testing.assert_allclose(first.reshape(expected.shape), expected, rtol=0, atol=tolerance)
    for schedule in Schedule:
        for amount in WORKERS:
            found = run_kernel(case, schedule=schedule, amount=amount, order_seed=amount)
            assert found.tobytes() == first.tobytes(), (schedule, amount)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seqlens_k": [0, 1, 63, 64, 500], "capacity": 501},
        {"local_window_size": 100},
        {"sink": np.arange(6) / 3},
        {"softcap": 3.0},
    ],
    ids=str,
)
def test_fifty_orders_of_arrival_give_the_same_bits(changes: dict[str, Any]) -> None:
    case = ragged_case(**{"seqlens_k": [0, 1, 300, 1024, 3000], "capacity": 3001, **changes})
    expected = run_kernel(case)
    for workers in WORKERS:
        for seed in range(1, 51):
            found = run_kernel(case, amount=workers, order_seed=seed)
            assert found.tobytes() == expected.tobytes(), (workers, seed)


@pytest.mark.parametrize("schedule", Schedule)
def test_neighbours_do_not_change_a_sequence(schedule: Schedule) -> None:
    case = ragged_case(seqlens_k=[0, 1, 300, 1024, 3000], capacity=3001)
    together = run_kernel(case, schedule=schedule, amount=3)
    for b in range(5):
        row = slice(b, b + 1)
        alone = decode(
            case.feeds["query"][row].reshape(1, 1, 6, 40),
            case.feeds["key"][row].reshape(1, 1, 2, 40),
            case.feeds["value"][row].reshape(1, 1, 2, 40),
            case.feeds["past_key"][row].copy(),
            case.feeds["past_value"][row].copy(),
            case.feeds["seqlens_k"][row].copy(),
            cos_cache=case.feeds["cos_cache"],
            sin_cache=case.feeds["sin_cache"],
        )
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize("tokens", [1, 2, 5, 8])
def test_several_query_tokens_match_the_reference(tokens: int) -> None:
    case = ragged_case(
        tokens=tokens, seqlens_k=[7, 260, 600], capacity=620, local_window_size=250, rotary_half=0
    )
    expected = attention(case.step).output
    first = run_kernel(case)
    np.testing.assert_allclose(first.reshape(expected.shape), expected, rtol=0, atol=2e-6)
    for schedule in Schedule:
        found = run_kernel(case, schedule=schedule, amount=5, order_seed=1)
        assert found.tobytes() == first.tobytes()


def test_pools_and_schedules_of_sessions_give_the_same_bits() -> None:
    results = set()
    for schedule in ("auto", "lean", "fixed_split", "direct"):
        case = ragged_case(seqlens_k=[0, 5, 3000, 7999], capacity=8000, schedule=schedule)
        for threads in (1, 2, 3, 8):
            session = case.node.session(case.feeds, threads=threads)
            for shared in (True, False):
                results.add(run_session(session, case.feeds, shared=shared)[0].tobytes())
    assert len(results) == 1


def test_eight_threads_share_one_session() -> None:
    cases = [
        ragged_case(seqlens_k=[700 * i, 4000 - 100 * i], capacity=5000, seed=i) for i in range(8)
    ]
    session = cases[0].node.session(cases[0].feeds, threads=3)
    expected = [run_session(session, case.feeds)[0].tobytes() for case in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = list(pool.map(lambda case: run_session(session, case.feeds)[0], cases))
            assert [output.tobytes() for output in found] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": 0},
        {"amount": -1},
        {"amount": 2**40},
        {"schedule": 3},
        {"local_window_size": 2**32 + 4},
        {"scale": float("nan")},
        {"softcap": -1.0},
    ],
    ids=str,
)
def test_the_c_function_refuses_bad_numbers(changes: dict[str, Any]) -> None:
    case = ragged_case()
    how = {"local_window_size": -1, **changes}
    with pytest.raises(LeanAttentionError, match="invalid argument"):
        decode(
            case.feeds["query"].reshape(5, 1, 6, 40),
            case.feeds["key"].reshape(5, 1, 2, 40),
            case.feeds["value"].reshape(5, 1, 2, 40),
            case.feeds["past_key"].copy(),
            case.feeds["past_value"].copy(),
            case.feeds["seqlens_k"],
            **how,
        )


@pytest.mark.parametrize("seqlens_k", [[-1, 0, 0, 0, 0], [0, 0, 512, 0, 0]], ids=str)
def test_the_c_function_refuses_bad_lengths(seqlens_k: list[int]) -> None:
    case = ragged_case()
    case.feeds["seqlens_k"] = np.array(seqlens_k, np.int32)
    with pytest.raises(LeanAttentionError, match="invalid argument"):
        run_kernel(case)


def test_arrays_of_other_shapes_are_refused_by_name() -> None:
    case = ragged_case()
    case.feeds["past_value"] = case.feeds["past_value"][:, :, :100]
    with pytest.raises(LeanAttentionError, match="value_cache"):
        run_kernel(case)


def bytes_as_array(shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(bytes(4 * int(np.prod(shape))), np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_cache": bytes_as_array((1, 1, 4, 8))}, "key_cache is read-only"),
        ({"value_cache": bytes_as_array((1, 1, 4, 8))}, "value_cache is read-only"),
        ({"query": np.zeros((1, 1, 2, 8), ">f4")}, "query is >f4.*native"),
        ({"query": None}, "query is NoneType"),
        ({"key": [[1.0]]}, "key is list"),
        ({"query": np.zeros((1, 1, 2, 0), np.float32)}, "query has the shape"),
        ({"cos_cache": np.ones(4, np.float32)}, "cos_cache has the shape"),
        ({"amount": 2**64 + 1}, "amount is"),
        ({"key_cache": np.zeros((1, 1, 4, 8), np.int8)}, "key_cache|value_cache"),
        (
            {
                "key_cache": np.zeros((1, 1, 4, 8), np.int8),
                "value_cache": np.zeros((1, 1, 4, 8), np.int8),
            },
            "invalid argument",
        ),
        (
            {
                "key_cache": np.zeros((1, 1, 4, 8), np.int8),
                "value_cache": np.zeros((1, 1, 4, 8), np.int8),
                "k_scale": [1.0],
            },
            "k_scale is list",
        ),
    ],
    ids=str,
)
def test_what_is_no_array_of_the_kind_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {
        "query": np.zeros((1, 1, 2, 8), np.float32),
        "key": np.zeros((1, 1, 1, 8), np.float32),
        "value": np.zeros((1, 1, 1, 8), np.float32),
        "key_cache": np.zeros((1, 1, 4, 8), np.float32),
        "value_cache": np.zeros((1, 1, 4, 8), np.float32),
        "seqlens_k": np.zeros(1, np.int32),
    }
    with pytest.raises(LeanAttentionError, match=message):
        decode(**(arguments | changes))


@pytest.mark.parametrize("keys", [1, 3, 8, 9, 13])
@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [1.0, 1e-38, 1e-40])
def test_every_key_and_nothing_else_is_weighed(keys: int, heads: int, scale: float) -> None:
    ones = np.ones((1, 1, 1, 8), np.float32)
    caches = [np.ones((1, 1, keys, 8), np.float32) for _ in range(2)]
    lengths = np.array([keys - 1], np.int32)
    query = np.ones((1, 1, heads, 8), np.float32)
    found = decode(query, ones, ones, *caches, lengths, scale=scale)
    np.testing.assert_allclose(found, 1, rtol=0, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_a_score_of_minus_infinity_weighs_nothing_and_a_nan_stays_one(heads: int) -> None:
    rng = np.random.default_rng(0)
    query = np.abs(rng.standard_normal((1, 1, heads, 8))).astype(np.float32)
    key, value = (rng.standard_normal((1, 1, 1, 8)).astype(np.float32) for _ in range(2))
    past = [rng.standard_normal((1, 1, 30, 8)).astype(np.float32) for _ in range(2)]
    lengths = np.array([29], np.int32)
    past[0][0, 0, 3] = -np.inf
    found = decode(query, key, value, past[0].copy(), past[1].copy(), lengths)
    past[0][0, 0, 3] = -1e30 * np.sign(query[0, 0, 0])
    expected = decode(query, key, value, past[0].copy(), past[1].copy(), lengths)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)
    past[0][0, 0, 3] = np.nan
    assert np.isnan(decode(query, key, value, past[0].copy(), past[1].copy(), lengths)).all()


def test_tiny_scales_of_int4_keep_their_channels() -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 1, 1, 16)).astype(np.float32) for _ in range(3))
    caches = [rng.integers(0, 256, (1, 1, 20, 8)).astype(np.uint8) for _ in range(2)]
    lengths = np.array([19], np.int32)

    def run(v_scale: float) -> NDArray[Any]:
        return decode(
            query,
            key,
            value * np.float32(v_scale),
            *(cache.copy() for cache in caches),
            lengths,
            k_scale=np.array([0.1], np.float32),
            v_scale=np.array([v_scale], np.float32),
        )

    np.testing.assert_allclose(run(1e-36) / np.float32(1e-36), run(1.0), rtol=1e-5, atol=1e-6)
