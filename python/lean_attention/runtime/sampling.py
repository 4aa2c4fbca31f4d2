"""Choosing the next token from logits."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lean_attention.errors import LeanAttentionError

__all__ = ["Sampler", "Sampling"]

Logits = npt.NDArray[np.float32]

# A nucleus rarely needs more candidates than this; selecting them is much cheaper than sorting a
# vocabulary of 200,000.
FIRST_CANDIDATES = 1024

SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. The default is greedy.

    Attributes:
        temperature: Divides the logits; 0, and what is below the normal numbers of float32, is
            greedy.
        top_k: Only the k most likely tokens are drawn; 0 means all.
        top_p: Only the most likely tokens are drawn whose probabilities together just reach this
            (after ``top_k``), in (0, 1].
        seed: Of the random numbers; None draws a new one each time. Row b of a batch uses a stream
            of its own, made of the seed and b.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not 0 <= self.temperature < float("inf"):
            raise LeanAttentionError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise LeanAttentionError(f"top-k must be 0 (all tokens) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise LeanAttentionError(f"top-p must be in (0, 1], not {self.top_p}")
        if self.seed is not None and self.seed < 0:
            raise LeanAttentionError(f"seed must be 0 or more, not {self.seed}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        # Differences of float32 logits over anything smaller would overflow.
        return self.temperature < SMALLEST_TEMPERATURE or self.top_k == 1


class Sampler:
    """Draws one token per row, each row with random numbers of its own."""

    def __init__(self, sampling: Sampling, batch_size: int) -> None:
        """Seeds the generators.

        Args:
            sampling: The settings.
            batch_size: Rows B.
        """
        self._sampling = sampling
        root = np.random.SeedSequence(sampling.seed)
        self._generators = [np.random.default_rng(child) for child in root.spawn(batch_size)]

    def __call__(self, logits: Logits) -> list[int]:
        """Chooses a token for each row.

        Args:
            logits: [B, V].

        Returns:
            Token ids, [B].

        Raises:
            LeanAttentionError: A logit is NaN, or all of a row are -inf.
        """
        tokens = []
        for row, (scores, generator) in enumerate(zip(logits, self._generators, strict=True)):
            token = int(scores.argmax())
            # argmax returns the first NaN where there is one.
            best = float(scores[token])
            if not math.isfinite(best):
                raise LeanAttentionError(
                    f"the model's logits of row {row + 1} are not finite ({best}); its weights or "
                    "its cache are damaged"
                )
            if not self._sampling.greedy:
                token = self._draw(scores, best, generator)
            tokens.append(token)
        return tokens

    def _draw(self, logits: Logits, best: float, generator: np.random.Generator) -> int:
        """Draws one token from one row, [V]."""
        # Weights relative to the most likely token: none overflows.
        weights = np.exp((logits.astype(np.float64) - best) / self._sampling.temperature)
        candidates = np.arange(len(weights))
        if 0 < self._sampling.top_k < len(weights):
            candidates = _most_likely(weights, self._sampling.top_k)
        if self._sampling.top_p < 1:
            candidates = _nucleus(weights, candidates, self._sampling.top_p)
        cumulative = np.cumsum(weights[candidates])
        choice = np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right")
        return int(candidates[min(int(choice), len(candidates) - 1)])


def _most_likely(weights: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Returns the indices of the largest weights, largest first; equal ones by index."""
    # A partition picks any of several equal weights, so take all that equal the last one.
    smallest = np.partition(weights, len(weights) - count)[len(weights) - count]
    chosen = np.flatnonzero(weights >= smallest)
    order: npt.NDArray[np.int64] = chosen[np.argsort(-weights[chosen], kind="stable")][:count]
    return order


def _nucleus(
    weights: npt.NDArray[np.float64], candidates: npt.NDArray[np.int64], top_p: float
) -> npt.NDArray[np.int64]:
    """Returns the fewest candidates whose weights reach ``top_p`` of all candidates' weight."""
    inner = weights[candidates]
    needed = top_p * inner.sum()
    for count in (min(FIRST_CANDIDATES, len(inner)), len(inner)):
        order = _most_likely(inner, count)
        cumulative = np.cumsum(inner[order])
        if cumulative[-1] >= needed:
            break
    size = int(np.searchsorted(cumulative, needed, side="left")) + 1
    return candidates[order[:size]]
