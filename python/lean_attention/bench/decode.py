"""Decode steps of several models, timed turn by turn so that a noisy machine hits all alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime import DecoderModel, DecodeSession

__all__ = ["DecodeTimes", "time_decode"]


@dataclass(frozen=True)
class DecodeTimes:
    """How one model decoded.

    Attributes:
        context: Tokens in the cache before the first step.
        tokens: The tokens that it chose, greedily, one per step.
        rounds: Median seconds of a step in each round, [R].
    """

    context: int
    tokens: tuple[int, ...]
    rounds: NDArray[np.float64]

    @property
    def seconds_per_token(self) -> float:
        """The median over the rounds."""
        return float(np.median(self.rounds))

    def ratio_to(self, other: "DecodeTimes") -> float:
        """How many times as fast this is: the median of the ratios, round by round."""
        return float(np.median(other.rounds / self.rounds))


def time_decode(
    models: Mapping[str, DecoderModel],
    prompt: Sequence[int],
    *,
    rounds: int = 9,
    steps: int = 8,
    on_round: Callable[[], None] | None = None,
) -> dict[str, DecodeTimes]:
    """Lets models continue one prompt, greedily, taking turns of a few steps.

    Load the models with ``spin_between_runs=False``: pools that spin take the cores from whichever
    model comes next. The first steps of a turn are not counted, since the other models' weights
    and caches have just passed through the processor's own caches.

    Args:
        models: The contenders by name.
        prompt: Token ids.
        rounds: Turns of each model, R; their order changes from round to round.
        steps: Counted steps of a turn, after two that are not.
        on_round: Called after each round.

    Returns:
        The times of each, by name.

    Raises:
        LeanAttentionError: The prompt and the steps exceed a model's context.
    """
    warm = 2
    total = len(prompt) + rounds * (steps + warm)
    for name, model in models.items():
        if total > model.context_length:
            raise LeanAttentionError(
                f"{name} has a context of {model.context_length} tokens; {len(prompt)} of prompt "
                f"and {rounds} rounds of {steps + warm} steps need {total}"
            )
    sessions = {name: DecodeSession(model, 1, total) for name, model in models.items()}
    tokens = {name: [int(s.prefill([prompt])[0].argmax())] for name, s in sessions.items()}
    medians: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds):
        names = list(models)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times = []
            for _ in range(warm + steps):
                started = perf_counter()
                logits = sessions[name].step(tokens[name][-1:])
                times.append(perf_counter() - started)
                tokens[name].append(int(logits[0].argmax()))
            medians[name].append(float(np.median(times[warm:])))
        if on_round is not None:
            on_round()
    return {
        name: DecodeTimes(len(prompt), tuple(tokens[name]), np.array(medians[name]))
        for name in models
    }
