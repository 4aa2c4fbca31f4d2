"""What a call must give: its outputs in float64, how far a plain computation strays from that."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.call import Call
from gqa_node import unit_roundoff
from reference import Array, rotate

LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True)
class Wanted:
    """Outputs [B, S, N, H] in float64, and how far results may be from them."""

    output: Array
    valid: NDArray[np.bool_]  # [B, S]; the others are padding.
    sighted: NDArray[np.bool_]  # [B, S, N], valid and some key is visible; the others are zeros.
    tolerance: float
    tolerance_of_stock: float


@dataclass(frozen=True)
class Rows:
    """New rows of a cache [B, S, K, H] before they are stored."""

    numbers: Array
    slack: Array  # What normalising and rotating them in the call's precision may add or take.


class _Precision:
    """float64, or a plain computation whose every tensor is rounded to the call's type."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self.arithmetic = np.float64 if dtype is None else np.float32

    def __call__(self, tensor: NDArray[Any]) -> NDArray[Any]:
        kept = tensor.astype(self.arithmetic)
        return kept if self.dtype is None else kept.astype(self.dtype).astype(self.arithmetic)


def _positions(call: Call) -> NDArray[np.int64]:
    """[B, S] of the rotary tables; of a first prompt only the first element counts."""
    own = call.first_rows[:, None] + np.arange(call.tokens)
    ids = call.feeds.get("position_ids")
    if ids is None:
        return own
    if call.is_prompt:
        return np.broadcast_to(ids.reshape(-1)[0] + np.arange(call.tokens), own.shape)
    return ids.reshape(own.shape)


def _prepare(call: Call, kind: str, heads: NDArray[Any], rounded: _Precision) -> NDArray[Any]:
    """Normalises and rotates queries or keys [B, S, heads, H]."""
    heads = rounded(heads)
    weight = call.feeds.get(f"{kind[0]}_norm_weight")
    if weight is not None:
        epsilon = call.attribute("qk_norm_epsilon", 1e-6)
        epsilon = call.attribute(f"{kind[0]}_norm_epsilon", epsilon)
        square = np.square(heads).mean(axis=-1, keepdims=True) + heads.dtype.type(epsilon)
        heads = rounded(heads / np.sqrt(square) * rounded(weight))
    if call.attribute("do_rotary", 0) != 1:
        return heads
    # Padding may stand past the tables' end.
    rows = np.clip(_positions(call), 0, len(call.feeds["cos_cache"]) - 1)
    cos, sin = (rounded(call.feeds[name])[rows][:, :, None] for name in ("cos_cache", "sin_cache"))
    interleaved = call.attribute("rotary_interleaved", 0) == 1
    return rounded(rotate(heads, cos, sin, interleaved, heads.dtype.type))


def _split(call: Call) -> dict[str, NDArray[Any]]:
    """The heads [B, S, heads, H] of query, key and value."""
    counts = {"query": call.node.num_heads}
    counts |= dict.fromkeys(("key", "value"), call.node.kv_num_heads)
    if call.packed:
        ends = np.cumsum(list(counts.values()))[:-1] * call.head_size
        parts = np.split(call.feeds["query"], ends, axis=-1)
    else:
        parts = [call.feeds[name] for name in counts]
    return {
        name: part.reshape(*part.shape[:2], heads, call.head_size)
        for (name, heads), part in zip(counts.items(), parts, strict=True)
    }


def new_rows(call: Call) -> dict[str, Rows]:
    """Returns the new rows of the key cache and of the value cache."""
    heads = _split(call)
    exact = _prepare(call, "key", heads["key"], _Precision(None)) if call.appends else heads["key"]
    changed = call.attribute("do_rotary", 0) == 1 or "k_norm_weight" in call.feeds
    # Two products and a sum, each rounded; a rotated pair is no longer than before.
    length = np.linalg.norm(exact, axis=-1, keepdims=True) + np.abs(exact)
    units = 2 * unit_roundoff(call.dtype) + 8 * unit_roundoff(np.dtype(np.float32))
    return {
        "key": Rows(exact.astype(np.float64), units * length * changed),
        "value": Rows(heads["value"].astype(np.float64), np.zeros_like(heads["value"], np.float64)),
    }


def _visible(call: Call) -> NDArray[np.bool_]:
    """[B, S, C]: which rows of the cache each token sees."""
    last = call.first_rows[:, None] + np.arange(call.tokens)
    row = np.arange(int(call.lengths.max()))
    window = call.attribute("local_window_size", -1)
    seen = (row <= last[..., None]) & (row < call.lengths[:, None, None])
    return seen & (row > last[..., None] - window) if window > 0 else seen


def _attend(
    call: Call, presents: list[NDArray[Any]], rounded: _Precision
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """[B, S, N, H], rounded but for the last time, and which [B, S, N] see any key."""
    group = call.node.num_heads // call.node.kv_num_heads
    query = _prepare(call, "query", _split(call)["query"], rounded).swapaxes(1, 2)
    keys, values = (_repeat(call, kind, rows, group, rounded) for kind, rows in _kinds(presents))
    scores = rounded(query @ keys.swapaxes(2, 3) * query.dtype.type(_scale(call)))
    softcap = query.dtype.type(call.attribute("softcap", 0.0))
    if softcap > 0:
        scores = rounded(softcap * np.tanh(scores / softcap))
    if "attention_bias" in call.feeds:
        with np.errstate(over="ignore"):
            bias = call.feeds["attention_bias"][..., : scores.shape[-1]].astype(scores.dtype)
            scores = scores + bias
    scores = np.where(_visible(call)[:, None], scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    masked = top <= LOWEST
    sink = _sink(call)
    reference = np.where(masked, 0, top if sink is None else np.maximum(top, sink))
    with np.errstate(over="ignore"):
        weights = np.exp(np.where(masked, -np.inf, scores) - reference)
        total = weights.sum(axis=-1, keepdims=True)
        if sink is not None:
            total = total + np.exp(sink.astype(scores.dtype) - reference)
    weights = rounded(np.divide(weights, total, where=~masked, out=np.zeros_like(weights)))
    return (weights @ values).swapaxes(1, 2), ~masked[..., 0].swapaxes(1, 2)


def _kinds(presents: list[NDArray[Any]]) -> zip:  # type: ignore[type-arg]
    return zip(("key", "value"), presents, strict=True)


def _repeat(
    call: Call, kind: str, rows: NDArray[Any], group: int, rounded: _Precision
) -> NDArray[Any]:
    """[B, N, longest, H]: rows of the cache as numbers, for each query head; unseen ones zero."""
    longest = int(call.lengths.max())
    stored = call.cache_format(kind)
    numbers = np.stack([stored.load(sequence[:, :longest]) for sequence in rows])
    numbers = numbers[..., : call.head_size]
    seen = _visible(call).any(axis=1)[:, None, :, None]
    return np.repeat(rounded(np.where(seen, numbers, 0)), group, axis=1)


def _scale(call: Call) -> float:
    return call.attribute("scale", 0.0) or 1 / float(np.sqrt(call.head_size))


def _sink(call: Call) -> NDArray[Any] | None:
    """[N, 1, 1]."""
    if "head_sink" in call.feeds:
        return call.feeds["head_sink"].astype(np.float64)[:, None, None]
    return np.zeros((1, 1, 1)) if call.attribute("smooth_softmax", 0) == 1 else None


def _floor(call: Call, presents: list[NDArray[Any]], score: float, rest: float) -> float:
    """What roundings of scores, each relative to the largest partial sum, do to an output.

    A score moves a weight, and that an output by up to twice the largest value.

    Args:
        call: A valid call.
        presents: Its caches.
        score: Sum of the unit roundoffs that a score meets.
        rest: Of those that an output meets afterwards.
    """
    exact = _Precision(None)
    group = call.node.num_heads // call.node.kv_num_heads
    query = _prepare(call, "query", _split(call)["query"], exact).swapaxes(1, 2)
    keys, values = (_repeat(call, kind, rows, group, exact) for kind, rows in _kinds(presents))
    sums = np.abs(query) @ np.abs(keys).swapaxes(2, 3)
    largest = float(sums.max(initial=0)) * abs(_scale(call))
    if "attention_bias" in call.feeds:
        bias = np.abs(call.feeds["attention_bias"].astype(np.float64))
        largest += float(bias.max(initial=0, where=bias < -float(LOWEST)))
    return float((2 * score * largest + rest) * np.abs(values).max(initial=0))


def wanted_output(call: Call, presents: list[NDArray[Any]]) -> Wanted:
    """Computes a call's outputs over caches that already hold its new rows.

    The tolerance is twice the largest error of the plain computation, and a floor: what no
    computation in float32 avoids, however lucky the plain one was, and rounding to the call's type.
    That of the stock operator, whose way is not ours to know, has a bound for any way as its floor.

    Args:
        call: A valid call.
        presents: present_key and present_value, as found.
    """
    valid = np.arange(call.tokens) < call.query_lengths[:, None]
    exact, sighted = _attend(call, presents, _Precision(None))
    exact = np.where(valid[..., None, None], exact, 0)
    sighted &= valid[..., None]
    rounded = _Precision(call.dtype)
    plain = rounded(_attend(call, presents, rounded)[0])
    error = float(np.abs(plain - exact)[sighted].max(initial=0))
    unit, unit32 = unit_roundoff(call.dtype), unit_roundoff(np.dtype(np.float32))
    tolerance = 2 * error + unit * float(np.abs(exact).max(initial=0))
    # A sum is rounded once; exp, the sum of weights and the division are as well.
    floor = _floor(call, presents, unit32, 4 * unit32)
    # Sums in any order; rotated queries, scores and weights rounded to the call's type.
    terms = unit32 * (call.head_size + 4), unit32 * (int(call.lengths.max()) + 4)
    floor_of_stock = _floor(call, presents, terms[0] + 2 * unit, terms[1] + unit)
    return Wanted(exact, valid, sighted, tolerance + floor, tolerance + floor_of_stock)
