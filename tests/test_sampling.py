"""The sampler draws from the distribution that its settings describe."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime import Sampler, Sampling

DRAWS = 20_000


def expected(logits: npt.NDArray[np.float32], sampling: Sampling) -> npt.NDArray[np.float64]:
    """The probabilities [V] by the definition: temperature, then top-k, then top-p."""
    scaled = logits.astype(np.float64) / sampling.temperature
    probabilities: npt.NDArray[np.float64] = np.exp(scaled - scaled.max())
    order = np.argsort(-probabilities, kind="stable")
    if sampling.top_k:
        probabilities[order[sampling.top_k :]] = 0
    probabilities /= probabilities.sum()
    if sampling.top_p < 1:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= sampling.top_p]] = 0
    probabilities /= probabilities.sum()
    return probabilities


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.6, seed=2),
        Sampling(temperature=1.7, seed=3),
        Sampling(temperature=1.0, top_k=5, seed=4),
        Sampling(temperature=1.0, top_p=0.7, seed=5),
        Sampling(temperature=1.3, top_k=12, top_p=0.9, seed=6),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    logits = np.random.default_rng(0).normal(size=24).astype(np.float32)
    probabilities = expected(logits, sampling)
    sampler = Sampler(sampling, 1)
    counts = np.bincount([sampler(logits[None])[0] for _ in range(DRAWS)], minlength=24)
    assert not counts[probabilities == 0].any()
    likely = probabilities > 0
    wanted = DRAWS * probabilities[likely]
    statistic = float(((counts[likely] - wanted) ** 2 / wanted).sum())
    freedom = int(likely.sum()) - 1
    # Four standard deviations above the mean of the chi-square distribution.
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 7, 1500, 5000]),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1.0),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
)
def test_no_token_outside_the_nucleus_is_drawn(
    seed: int, size: int, top_k: int, top_p: float, spread: float
) -> None:
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=top_p, seed=seed)
    logits = np.random.default_rng(seed).normal(size=size, scale=spread).astype(np.float32)
    allowed = expected(logits, sampling)
    # The sums of both sides round differently, so one token at the edge may be either side of it.
    allowed += expected(logits, Sampling(1.0, top_k, min(top_p * (1 + 1e-9), 1.0)))
    sampler = Sampler(sampling, 1)
    for _ in range(5):
        assert allowed[sampler(logits[None])[0]] > 0


def test_greedy_and_top_k_of_one_take_the_first_of_the_likeliest() -> None:
    logits = np.array([[0, 3, 3, 1], [5, 4, 5, 5]], np.float32)
    assert Sampler(Sampling(), 2)(logits) == [1, 0]
    assert Sampler(Sampling(temperature=2.0, top_k=1, seed=0), 2)(logits) == [1, 0]


def test_a_seed_repeats_and_rows_draw_independently() -> None:
    logits = np.zeros((4, 1000), np.float32)
    sampling = Sampling(temperature=1.0, seed=7)
    first, second = (Sampler(sampling, 4)(logits) for _ in range(2))
    assert first == second
    assert len(set(first)) > 1
    assert Sampler(sampling, 1)(logits[:1]) == first[:1]
    assert Sampler(Sampling(temperature=1.0, seed=8), 4)(logits) != first


def test_huge_logits_and_masked_tokens_are_handled() -> None:
    logits = np.array([[3e38, 3e38, -np.inf, -3e38]], np.float32)
    sampler = Sampler(Sampling(temperature=0.01, top_p=0.99, seed=0), 1)
    assert {sampler(logits)[0] for _ in range(50)} == {0, 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error_that_names_the_row(
    temperature: float, bad: float
) -> None:
    logits = np.zeros((3, 8), np.float32)
    logits[1, 5] = bad
    with pytest.raises(LeanAttentionError, match="row 2"):
        Sampler(Sampling(temperature, seed=0), 3)(logits)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LeanAttentionError, match="must be"):
        Sampling(**wrong)  # type: ignore[arg-type]
