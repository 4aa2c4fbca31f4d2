"""What a call must leave in the caches."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.call import Call
from fuzz.truth import Rows, new_rows
from reference import CacheFormat


def _as_numbers(rows: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """Stored rows such that a larger number was stored for a larger one: no scales."""
    if bits == 4:
        rows = np.stack([rows & 15, rows >> 4], axis=-1).reshape(
            *rows.shape[:-1], 2 * rows.shape[-1]
        )
    return rows.astype(np.float64)


def _sign_of_scale(stored: CacheFormat) -> NDArray[np.float64]:
    return np.where(np.asarray(1 if stored.scale is None else stored.scale) < 0, -1.0, 1.0)


def _holds_new_rows(call: Call, kind: str, present: NDArray[Any], rows: Rows, b: int) -> bool:
    """Whether each of a sequence's new rows is stored as a number within the slack would be."""
    stored = call.cache_format(kind)
    first, length = int(call.first_rows[b]), int(call.lengths[b])
    count = min(call.tokens, length - first) if call.appends else 0
    numbers, slack = rows.numbers[b, :count], rows.slack[b, :count]
    found = present[:, first : first + count].swapaxes(0, 1)
    lowest, highest = (
        _as_numbers(stored.store(numbers + sign * slack * _sign_of_scale(stored)), stored.bits)
        for sign in (-1, 1)
    )
    held = _as_numbers(found, stored.bits)
    return bool(((lowest <= held) & (held <= highest)).all())


def _find_touched_rows(
    call: Call, present: NDArray[Any], past: NDArray[Any] | None, first: int, end: int
) -> str:
    """Compares one sequence's rows [K, rows, H] before the new ones and after them."""
    if past is not None and present[:, :first].tobytes() != past[:, :first].tobytes():
        return f"rows before {first} differ from the past's"
    if not (call.shared and past is not None):
        return f"rows past {end} are not zero" if any(present[:, end:].tobytes()) else ""
    return (
        f"rows past {end} were written"
        if present[:, end:].tobytes() != past[:, end:].tobytes()
        else ""
    )


def find_wrong_caches(call: Call, presents: list[NDArray[Any]], *, stores_padding: bool) -> str:
    """Returns what is wrong with the caches that a call left, or nothing.

    New rows must be there; cached ones, and of a shared buffer those past the new ones, keep their
    bits, whatever they are. A separate buffer that holds more rows has zeros there.

    Args:
        call: A valid call.
        presents: present_key and present_value.
        stores_padding: Whether rows of padding may follow the new ones, as the stock operator
            leaves them.
    """
    rows = new_rows(call)
    for kind, present in zip(("key", "value"), presents, strict=True):
        past = call.feeds.get(f"past_{kind}")
        if present.shape[2] != max(call.total, call.past_rows):
            return f"present_{kind} has shape {present.shape}"
        for b in range(call.batch):
            first, length = int(call.first_rows[b]), int(call.lengths[b])
            end = max(length, first + call.tokens * call.appends) if stores_padding else length
            before = None if past is None else past[b]
            wrong = _find_touched_rows(call, present[b], before, first, end)
            if not wrong and not _holds_new_rows(call, kind, present[b], rows[kind], b):
                wrong = f"rows {first} to {length} are not the new ones"
            if wrong:
                return f"present_{kind}[{b}]: {wrong}"
    return ""
