"""What the mask of an attention node lets tokens see.

Our operator is causal and adds a bias. A mask may become that bias where it never shows a token the
ones after it: the rest of it, padding on either side or a window, is then computed as before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from lean_attention.rewrite.probe import Case, Probe, ProbeError

__all__ = ["Mask", "MaskError", "read_mask"]

# Exporters write -10000, the lowest number of the type, or -inf.
HIDDEN = -1e4
# Of past and new tokens: on both sides of the lengths at which an exporter may switch or crop.
SIZES = ((0, 1), (0, 2), (0, 5), (0, 70), (1, 1), (9, 1), (260, 1), (4, 3))


class MaskError(Exception):
    """A mask cannot become the operator's bias; the message says why, as a clause."""


@dataclass(frozen=True)
class Mask:
    """A mask that may become the bias of a causal operator.

    Attributes:
        value: The mask, boolean (True is seen) or of floats that are added to the scores.
        boolean: Which of these.
        rank: Its number of dimensions.
    """

    value: ir.Value
    boolean: bool
    rank: int


def read_mask(
    value: ir.Value, *, causal: bool, rows: Mapping[ir.Value, tuple[int, int]] | None = None
) -> Mask:
    """Runs a mask on prompts and decode steps with all kinds of padding, and looks at the results.

    Shown must be, where it is computed from the sizes and the padding mask alone: no token after
    the query, and the query token itself unless it is padding.

    Args:
        value: The mask of an attention node.
        causal: Whether the node itself hides the tokens after the query.
        rows: Values of the shape [batch, heads, new tokens, head_size], with heads and head size.
            A mask may read their shapes, and they need not be computed.

    Raises:
        MaskError: It depends on something else, shows a token those after it, hides a token from
            itself, or has another shape than the scores.
    """
    try:
        probe = Probe([value], given=tuple(rows or ()))
    except ProbeError as error:
        raise MaskError(f"its mask is not known: {error}") from error
    if strange := sorted(probe.reads - {"attention_mask"}):
        raise MaskError(f"its mask depends on {' and '.join(strange)}")
    ranks, boolean = set(), False
    for case in _cases():
        try:
            (result,) = probe.run(case, _zeros(case, rows or {}))
        except ProbeError as error:
            if case.past and case.new > 1:
                # Some exporters' masks are for prompts and single steps only.
                continue
            raise MaskError(f"its mask is not known: {error}") from error
        ranks.add(result.ndim)
        boolean = result.dtype == np.bool_
        _check_shape(result, case)
        _check_seen(_seen(result), case, causal=causal)
    if len(ranks) != 1:
        raise MaskError("its mask has no fixed number of dimensions")
    return Mask(value, boolean, ranks.pop())


def _zeros(
    case: Case, rows: Mapping[ir.Value, tuple[int, int]]
) -> dict[ir.Value, npt.NDArray[np.generic]]:
    return {
        value: np.zeros((case.batch, heads, case.new, width), np.float32)
        for value, (heads, width) in rows.items()
    }


def _cases() -> list[Case]:
    rng = np.random.default_rng(0)
    made = []
    for past, new in SIZES:
        total = past + new
        columns = np.arange(total)
        left = columns >= np.array([[0], [total // 2]])
        right = columns < np.array([[total], [total - total // 2]])
        some = rng.integers(0, 2, (2, total))
        masks = (np.ones((1, total)), np.ones((3, total)), left, right, some)
        made += [Case(past, new, mask.astype(np.int64)) for mask in masks]
    return made


def _check_shape(result: npt.NDArray[np.generic], case: Case) -> None:
    # Batch and heads may be 1 or missing.
    if (
        not 2 <= result.ndim <= 4
        or result.shape[-1] != case.total
        or result.shape[-2] != case.new
        or (result.ndim == 4 and result.shape[0] not in (1, case.batch))
    ):
        raise MaskError(
            f"its mask has the shape {list(result.shape)} where the scores have {case.batch} "
            f"sequences, {case.new} query tokens and {case.total} keys"
        )


def _seen(result: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    if result.dtype == np.bool_:
        return result.astype(np.bool_)
    scores: npt.NDArray[np.float64] = result.astype(np.float64)
    if np.isnan(scores).any() or (scores > 0).any():
        raise MaskError("its mask holds other numbers than 0 and those that hide a key")
    if ((scores > HIDDEN) & (scores != 0)).any():
        raise MaskError("its mask is a bias by position, not a mask")
    seen: npt.NDArray[np.bool_] = scores == 0
    return seen


def _check_seen(seen: npt.NDArray[np.bool_], case: Case, *, causal: bool) -> None:
    shape = (case.batch, seen.shape[-3] if seen.ndim > 2 else 1, case.new, case.total)
    seen = np.broadcast_to(seen, shape)
    own = case.past + np.arange(case.new)
    after = np.arange(case.total) > own[:, None]
    if not causal and (seen & after).any():
        raise MaskError("its mask shows a token those after it, and the operator is causal")
    tokens = case.mask[:, None, own] == 1
    if (~seen[:, :, np.arange(case.new), own] & tokens).any():
        raise MaskError("its mask hides a token from itself")
