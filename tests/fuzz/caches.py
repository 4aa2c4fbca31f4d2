"""What a call must leave in the caches."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.call import Call
from fuzz.truth import Rows, new_rows


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)


def _as_numbers(rows: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """Stored rows such that a larger number was stored for a larger one: no scales."""
    if bits == 4:
        rows = np.stack([rows & 15, rows >> 4], axis=-1).reshape(
            *rows.shape[:-1], 2 * rows.shape[-1]
        )
    return rows.astype(np.float64)


def _find_wrong_rows(call: Call, kind: str, present: NDArray[Any], rows: Rows, b: int) -> str:
    """Compares one sequence's new rows: each must be stored as a number within the slack is."""
    stored = call.cache_format(kind)
    first, length = int(call.first_rows[b]), int(call.lengths[b])
    count = min(call.tokens, length - first) if call.appends else 0
    numbers, slack = rows.numbers[b, :count], rows.slack[b, :count]
    found = present[b, :, first : first + count].swapaxes(0, 1)
    lowest, highest = (
        _as_numbers(stored.store(numbers + sign * slack * _sign_of_scale(stored)), stored.bits)
        for sign in (-1, 1)
    )
    held = _as_numbers(found, stored.bits)
    if not ((lowest <= held) & (held <= highest)).all():
        return f"present_{kind}[{b}] does not hold the new rows"
    return ""


def _sign_of_scale(stored: Any) -> Any:
    return 1 if stored.scale is None else np.where(stored.scale < 0, -1.0, 1.0)


def find_wrong_caches(call: Call, presents: list[NDArray[Any]]) -> str:
    """Returns what is wrong with the caches that a call left, or nothing.

    New rows must be there; cached ones, and of a shared buffer those past the new ones, keep their
    bits, whatever they are. Padding may have been stored right after the new rows. A separate
    buffer that holds more rows has zeros there.

    Args:
        call: A valid call.
        presents: present_key and present_value.
    """
    rows = new_rows(call)
    for kind, present in zip(("key", "value"), presents, strict=True):
        past = call.feeds.get(f"past_{kind}")
        if present.shape[2] != max(call.total, call.past_rows):
            return f"present_{kind} has shape {present.shape}"
        for b in range(call.batch):
            first, length = int(call.first_rows[b]), int(call.lengths[b])
            written = first + call.tokens if call.appends else length
            if past is not None and (
                _bytes(present[b, :, :first]).tobytes() != _bytes(past[b, :, :first]).tobytes()
            ):
                return f"rows of present_{kind}[{b}] before {first} differ from the past's"
            after = _bytes(present[b, :, max(written, length) :])
            if call.shared and past is not None:
                if after.tobytes() != _bytes(past[b, :, max(written, length) :]).tobytes():
                    return f"rows of present_{kind}[{b}] past {written} were written"
            elif after.any():
                return f"rows of present_{kind}[{b}] past {written} are not zero"
            wrong = _find_wrong_rows(call, kind, present, rows[kind], b)
            if wrong:
                return wrong
    return ""
