"""How far two models' outputs are apart, and how far they may be."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lean_attention.rewrite.verification.scenarios import Step

__all__ = [
    "LARGE",
    "difference",
    "largest",
    "moved",
    "sensitivity",
    "tolerance",
    "unit_roundoff",
    "valid_part",
]

Array = npt.NDArray[Any]
# The largest of one draw of errors seldom passes twice that of another draw; and both models err.
SAFETY = 4
LARGE = 100
"""How many times as large those errors are that find out where a model jumps."""
# What moves so many times as far as the errors grew has jumped.
JUMP = 10
# Of an output itself: each model rounds a sum once, and a rotated key twice.
ROUNDINGS = 4
# Half the distance from 1 to the next number.
ROUNDOFF = {
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """The largest relative error of rounding to a type; of integers 0."""
    return ROUNDOFF.get(dtype, 0.0)


def valid_part(array: Array, step: Step, *, is_cache: bool, bits: int) -> Array:
    """The elements of an output that mean something, as float64, in one dimension.

    Of a cache, [batch, heads, rows, width], the rows of tokens that there are; of what has
    elements per token, [batch, sequence, ...], those of tokens and not of padding; of what has
    elements per sequence, those of sequences without padding.

    Args:
        array: The output of a run.
        step: The run.
        is_cache: Whether it is a cache.
        bits: Of a value of the cache: 4 where a byte holds two; otherwise any other number.
    """
    lengths, new = np.array(step.lengths), np.array(step.new)
    if is_cache and array.ndim == 4 and array.shape[0] == len(lengths):
        array = array.swapaxes(1, 2)[np.arange(array.shape[2]) < lengths[:, None]]
    elif array.ndim >= 2 and array.shape[:2] == (len(new), max(new)):
        array = array[np.arange(max(new)) < new[:, None]]
    elif array.ndim and array.shape[0] == len(new):
        array = array[new == max(new)]
    if is_cache and bits == 4:
        array = np.stack([array & 15, array >> 4])
    return array.astype(np.float64).ravel()


def difference(found: Array, wanted: Array) -> float:
    """The largest absolute difference; infinite where one is a number and the other is none.

    Args:
        found: Elements, as `valid_part` gives them.
        wanted: As many.
    """
    if found.shape != wanted.shape:
        return float("inf")
    finite = np.isfinite(wanted)
    strange = found[~finite], wanted[~finite]
    if not np.array_equal(*strange, equal_nan=True) or not np.isfinite(found[finite]).all():
        return float("inf")
    return moved(found, wanted)


def moved(found: Array, wanted: Array) -> float:
    """The largest absolute difference of those elements that are numbers in both.

    Args:
        found: Elements, as `valid_part` gives them.
        wanted: As many.
    """
    finite = np.isfinite(wanted) & np.isfinite(found)
    return float(np.abs(found[finite] - wanted[finite]).max(initial=0.0))


def largest(wanted: Array) -> float:
    """The largest magnitude of those elements that are numbers."""
    return float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))


def sensitivity(small: float, large: float) -> float:
    """How far errors of the attention move an output.

    Small errors move most outputs in proportion. But where a model rounds its activations to
    integers, as int4 models and caches of integers do, a small error mostly moves nothing, and at
    times, where a number is at the edge between two, a whole step. A few draws may miss all such
    edges, and the rewritten model meets one. Errors ``LARGE`` times as large meet them all: what
    these move more than ten times out of proportion has jumped, and may jump as far.

    Args:
        small: How far errors of the size that another implementation makes moved it.
        large: How far errors ``LARGE`` times as large did.
    """
    return large if large > JUMP * LARGE * small else small


def tolerance(moves: float, wanted: Array, dtype: np.dtype[Any]) -> float:
    """How far an output of the rewritten model may be from the source's.

    The attention of both models differs by roundings; all else is the same nodes on the same
    weights. What such roundings become on their way to an output depends on the model: ten layers
    later they may have grown a thousandfold, or been rounded away. So it is measured, on the
    source itself: ``moves`` is how far this output moved in this run when the attention's
    outputs were disturbed by their error bound (see ``disturbance.py`` and `sensitivity`). The
    tolerance is

        4 * moves + 4 u max|wanted|

    with u the unit roundoff of the output's type: the largest of a few random errors seldom passes
    twice the largest of others, and there are two models that err; and an output that no
    attention comes before, as the first layer's cache, is still rounded itself, a rotated key
    twice. An integer of a cache whose value is at the edge between two falls to either side:
    4 * moves + 1.

    Args:
        moves: How far the attention's errors move the output, see `sensitivity`.
        wanted: The source's elements.
        dtype: The output's type.
    """
    if dtype.kind in "iu" and dtype.itemsize == 1:
        return SAFETY * moves + 1
    return SAFETY * moves + ROUNDINGS * unit_roundoff(dtype) * largest(wanted)
