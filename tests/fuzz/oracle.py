"""What is asked of every call: the same acceptance, right numbers, caches, and the same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.caches import find_wrong_caches
from fuzz.call import OURS, STOCK, Call, Outcome, run
from fuzz.differences import is_deliberate, kills_stock
from fuzz.script import as_script
from fuzz.truth import wanted_output


class Disagreement(AssertionError):
    """A call on which ours fails; its text ends with a program that shows it."""

    def __init__(self, call: Call, what: str) -> None:
        super().__init__(f"{what}\n\n{as_script(call)}")


def find_wrong(call: Call, results: list[NDArray[Any]]) -> str:
    """Returns what is wrong with the results of a valid call, or nothing."""
    output, *presents = results
    wrong = find_wrong_caches(call, presents)
    if wrong:
        return wrong
    wanted = wanted_output(call, presents)
    found = output.astype(np.float64).reshape(wanted.output.shape)
    error = np.abs(found - wanted.output)[wanted.valid]
    if not (error <= wanted.tolerance).all():
        return f"the output is off by {error.max():.3g}, tolerance {wanted.tolerance:.3g}"
    return ""


def check(call: Call, *, other_schedule: str, other_threads: int) -> tuple[bool, bool]:
    """Runs a call by ours and by the stock operator, and compares.

    Args:
        call: Valid or not.
        other_schedule: One that must give the same bits.
        other_threads: In a pool of this many threads.

    Returns:
        Whether ours and the stock operator accepted the call.

    Raises:
        Disagreement: Something is not as it must be.
    """
    stock = Outcome(error="not run") if kills_stock(call) else run(call, STOCK)
    ours = run(call, OURS)
    if ours.accepted != stock.accepted and not is_deliberate(call, by_stock=stock.accepted):
        who = "stock" if stock.accepted else "ours"
        raise Disagreement(call, f"only {who} accepts this: {ours.error or stock.error}")
    for name, outcome in (("ours", ours), ("stock", stock)):
        if ours.accepted and outcome.accepted:
            wrong = find_wrong(call, outcome.results)
            if wrong:
                raise Disagreement(call, f"{name}: {wrong}")
    if ours.accepted:
        other = replace(call.with_attributes(schedule=other_schedule), threads=other_threads)
        valid = np.arange(call.tokens) < call.query_lengths[:, None]
        outputs = [outcome.results[0][valid].tobytes() for outcome in (ours, run(other, OURS))]
        if outputs[0] != outputs[1]:
            raise Disagreement(
                other, f"with {other_threads} threads other bits than with {call.threads}"
            )
    return ours.accepted, stock.accepted
