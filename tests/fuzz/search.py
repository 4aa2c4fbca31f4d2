"""Draws calls and checks each; one that fails is shrunk to a small one."""

from collections import Counter
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.call import Call
from fuzz.oracle import check
from fuzz.spoil import spoiled
from fuzz.strategy import valid_calls

SCHEDULES = ("auto", "lean", "fixed_split", "direct")
# How many of the examples keep to the contract, by what became of them.
Tally = Counter[str]


def _name(accepted: tuple[bool, bool]) -> str:
    names = {(True, True): "both", (True, False): "ours", (False, True): "stock"}
    return names.get(accepted, "neither")


def search(
    examples: int,
    *,
    number: int | None = None,
    shrinks: bool = True,
    on_call: Callable[[Call], None] = lambda call: None,
) -> Tally:
    """Checks random calls, two valid ones to one with something odd.

    Args:
        examples: How many.
        number: The seed; None: the same calls each time.
        shrinks: Whether a call that fails is made small.
        on_call: Is told of each call before it runs.

    Returns:
        How many calls were accepted by ``both``, ``ours`` alone, ``stock`` alone or ``neither``.

    Raises:
        DisagreementError: A call on which ours fails, the smallest that was found.
    """
    tally: Tally = Counter()
    calls = valid_calls()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=number is None,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.one_of(calls, calls.map(lambda call: call), spoiled(calls)),
        st.sampled_from(SCHEDULES),
        st.integers(1, 3),
    )
    def attempt(call: Call, other_schedule: str, other_threads: int) -> None:
        on_call(call)
        accepted = check(call, other_schedule=other_schedule, other_threads=other_threads)
        tally[_name(accepted)] += 1

    if number is not None:
        attempt = seed(number)(attempt)
    attempt()
    return tally
