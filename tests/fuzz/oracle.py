"""What is asked of every call: the same acceptance, right numbers, caches, and the same bits."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fuzz.caches import find_wrong_caches
from fuzz.call import OURS, STOCK, Call, Outcome, run
from fuzz.differences import is_deliberate, kills_stock
from fuzz.script import as_script
from fuzz.truth import wanted_output


class DisagreementError(AssertionError):
    """A call on which ours fails; its text ends with a program that shows it."""

    def __init__(self, call: Call, what: str) -> None:
        """Keeps the call and what is wrong with it."""
        super().__init__(what)
        self.call = call
        self.what = what

    def __str__(self) -> str:
        """What is wrong, an empty line, the program."""
        return f"{self.what}\n\n{as_script(self.call)}"


def _find_wrong_numbers(call: Call, outcome: Outcome, *, is_stock: bool) -> str:
    """Compares results with the truth.

    Of padding, and of rows all of whose keys are masked, the stock operator returns anything.
    """
    output, *presents = outcome.results
    wrong = find_wrong_caches(call, presents)
    if wrong:
        return wrong
    wanted = wanted_output(call, presents)
    with np.errstate(invalid="ignore"):
        error = np.abs(output.astype(np.float64).reshape(wanted.output.shape) - wanted.output)
    tolerance = wanted.tolerance_of_stock if is_stock else wanted.tolerance
    if is_stock:
        error = error[wanted.sighted]
    elif error[~wanted.sighted].any():
        return "rows of padding, or whose keys are all masked, are not zero"
    if not (error <= tolerance).all():
        return f"the output is off by {error.max():.3g}, tolerance {tolerance:.3g}"
    return ""


def _find_changed_inputs(call: Call, outcome: Outcome) -> str:
    """A call leaves its inputs as they are, but for a cache that it accepts to append to."""
    may_change = {"past_key", "past_value"} if call.shared and outcome.accepted else set()
    wrong = sorted(set(outcome.changed) - may_change)
    return f"the call changed {wrong}" if wrong else ""


def _find_other_bits(one: Outcome, other: Outcome, valid: NDArray[np.bool_]) -> str:
    """Compares all bits, but of the output's rows those that are valid alone."""
    if other.error:
        return f"only one of the two is accepted: {other.error}"
    names = ("output", "present_key", "present_value")
    for name, *pair in zip(names, one.results, other.results, strict=True):
        if name == "output":
            pair = [output[valid] for output in pair]
        if pair[0].tobytes() != pair[1].tobytes():
            return f"other bits in {name}"
    return ""


def _find_padding(call: Call, outcome: Outcome) -> str:
    padding = np.arange(call.tokens) >= call.query_lengths[:, None]
    return "the output of padding is not zero" if outcome.results[0][padding].any() else ""


def _require(call: Call, who: str, wrong: str) -> None:
    if wrong:
        raise DisagreementError(call, f"{who}: {wrong}")


def _check_refusal(call: Call, ours: Outcome, stock: Outcome) -> None:
    """A refusal of ours names the node; of types and memory it is ONNX Runtime's own.

    Of a prompt it may be the stock operator's.
    """
    parts = ("tensor(", "no kernel def matches", "Failed to allocate memory", "pre-allocated")
    is_runtimes = any(part in ours.error for part in parts)
    is_stocks = call.is_handed_over and stock.error[-60:] in ours.error
    if not ("attention: " in ours.error or is_runtimes or is_stocks):
        raise DisagreementError(call, f"ours refuses without a reason of its own: {ours.error}")


def check(call: Call, *, other_schedule: str, other_threads: int) -> tuple[bool, bool]:
    """Runs a call by ours and by the stock operator, and compares.

    Args:
        call: Valid or not.
        other_schedule: One that must give the same bits.
        other_threads: In a pool of this many threads.

    Returns:
        Whether ours and the stock operator accepted the call.

    Raises:
        DisagreementError: Something is not as it must be.
    """
    stock = Outcome(error="not run") if kills_stock(call) else run(call, STOCK)
    ours = run(call, OURS)
    if ours.accepted != stock.accepted and not is_deliberate(call, by_stock=stock.accepted):
        who = "stock" if stock.accepted else "ours"
        raise DisagreementError(call, f"only {who} accepts this: {ours.error or stock.error}")
    _require(call, "ours", _find_changed_inputs(call, ours))
    if not ours.accepted:
        _check_refusal(call, ours, stock)
        return False, stock.accepted
    if stock.accepted:
        _require(call, "stock", _find_wrong_numbers(call, stock, is_stock=True))
    if call.is_handed_over and stock.accepted:
        # Masked rows are then the stock operator's as well.
        valid = np.arange(call.tokens) < call.query_lengths[:, None]
        _require(call, "ours against stock", _find_other_bits(ours, stock, valid))
        _require(call, "ours", _find_padding(call, ours))
    else:
        _require(call, "ours", _find_wrong_numbers(call, ours, is_stock=False))
    other = replace(call.with_attributes(schedule=other_schedule), threads=other_threads)
    every = np.ones((call.batch, call.tokens), np.bool_)
    how = f"schedule {other_schedule} with {other_threads} threads, not {call.threads}"
    _require(other, how, _find_other_bits(ours, run(other, OURS), every))
    return True, stock.accepted
