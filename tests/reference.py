"""The plain reference: grouped-query attention over a KV cache, in float64 NumPy."""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CacheFormat:
    """How the rows of a cache are stored: as numbers, or as small ones times scales.

    Integers of 8 bits fill an int8 each. Those of 4 bits share a uint8, the even channel in the low
    half, 8 added to each. Floats of 8 bits are float8_e4m3fn.
    """

    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))  # Before storing.
    bits: int = 0  # 8 or 4; 0: not quantised
    scale: NDArray[np.float32] | None = None  # [1, 1] or [K, H], of quantised caches
    is_float: bool = False  # Of 8 bits: not integers.

    def store(self, row: Array) -> NDArray[Any]:
        """Returns what the cache holds of new rows [..., K, H], which are computed in float32."""
        rounded: NDArray[Any] = row.astype(np.float32).astype(self.dtype)
        if self.scale is None:
            rounded = rounded.astype(np.float64)
            return rounded
        lowest, highest = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        # The stock operator multiplies by the rounded reciprocal, which moves some ties, and hides
        # a NaN in the largest integer.
        one = np.float32(1)
        inverse = np.divide(one, self.scale, out=np.ones_like(self.scale), where=self.scale != 0)
        scaled = rounded.astype(np.float32) * inverse
        if self.is_float:
            floats: NDArray[Any] = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            return floats
        steps = np.rint(scaled)
        steps = np.where(np.isnan(steps), highest, np.clip(steps, lowest, highest))
        codes: NDArray[Any] = steps.astype(np.int8)
        if self.bits == 4:
            halves = (codes + 8).astype(np.uint8)
            codes = halves[..., 0::2] | halves[..., 1::2] << 4
        return codes

    def load(self, rows: NDArray[Any]) -> Array:
        """Returns the numbers [K, rows, H] of stored rows."""
        if self.bits == 4:
            halves = np.stack([rows & 15, rows >> 4], axis=-1).reshape(*rows.shape[:-1], -1)
            rows = halves.astype(np.int8) - 8
        numbers: Array = rows.astype(np.float64)
        return numbers if self.scale is None else numbers * self.scale[:, None]


@dataclass(frozen=True)
class Step:
    """One call of the operator, in float64; see the operator's inputs for the meanings.

    Shapes: B sequences, S new tokens, N query heads, K KV heads, H head size, C cache rows, W
    entries of a stored row (H, or H / 2 of 4-bit integers).
    """

    query: Array  # [B, S, N, H], not rotated
    key: Array  # [B, S, K, H], not rotated; [B, 0, K, H]: the caches have the step's rows already
    value: Array  # as key
    past_key: NDArray[Any]  # [B, K, C, W], rotated
    past_value: NDArray[Any]  # [B, K, C, W]
    lengths: NDArray[np.int64]  # [B], valid rows after this step
    queries: NDArray[np.int64]  # [B], query tokens, of which the last stands in the last valid row
    key_format: CacheFormat = field(default_factory=CacheFormat)
    value_format: CacheFormat = field(default_factory=CacheFormat)
    q_norm: Array | None = None  # [H], of the RMS norm of each head
    k_norm: Array | None = None
    q_norm_epsilon: float = 1e-6
    k_norm_epsilon: float = 1e-6
    cos: Array | None = None  # [positions, half]
    sin: Array | None = None
    positions: NDArray[np.int64] | None = None  # [B, S], of the angles; None: the rows' own
    interleaved: bool = False
    scale: float | None = None
    softcap: float = 0.0
    window: int = -1
    bias: Array | None = None  # [1 or B, 1 or N, S, T]
    sink: Array | None = None  # [N]
    smooth_softmax: bool = False


@dataclass(frozen=True)
class Result:
    """What the operator returns; the caches as they are stored."""

    output: Array  # [B, S, N * H], of padding zeros
    present_key: NDArray[Any]  # [B, K, C, W]
    present_value: NDArray[Any]  # [B, K, C, W]


def rotate(
    x: Array, cos: Array, sin: Array, interleaved: bool, product: type[np.floating] = np.float64
) -> Array:
    """Rotary embedding of x [..., H] by cos, sin [half]; dimensions past 2 * half stay.

    ``product`` is the type that one of the two products of each sum is rounded to: float32 gives
    the bits of a fused multiply-add once the sum is rounded to float32.
    """
    half = cos.shape[-1]
    rotated: Array = x.copy()
    places = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    if not interleaved:
        places = (slice(0, half), slice(half, 2 * half))
    first, second = (x[..., place] for place in places)
    rotated[..., places[0]] = first * cos - (second * sin).astype(product)
    rotated[..., places[1]] = first * sin + (second * cos).astype(product)
    return rotated


def normalise(x: Array, weight: Array | None, epsilon: float) -> Array:
    """RMS norm (arXiv 1910.07467) of x [..., H]; without a weight [H], x as it is."""
    if weight is None:
        return x
    normalised: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight
    return normalised


def _attend(scores: Array, values: Array, sink: float | None) -> Array:
    """Softmax of scores [T] (-inf: masked), with an optional sink, times values [T, H]."""
    top = scores.max(initial=-np.inf)
    if top <= np.finfo(np.float32).min:
        return np.zeros(values.shape[-1])
    reference = top if sink is None else max(top, sink)
    weights = np.exp(scores - reference)
    total = weights.sum() + (0.0 if sink is None else np.exp(sink - reference))
    visible = weights > 0  # A masked row's value may be anything.
    mean: Array = weights[visible] @ values[visible] / total
    return mean


def attention(step: Step) -> Result:
    """Runs one step; cache rows that it does not append are neither read nor changed."""
    batch, tokens, heads, size = step.query.shape
    _, new_rows, kv_heads, _ = step.key.shape
    group = heads // kv_heads
    scale = step.scale if step.scale is not None else 1 / np.sqrt(size)
    present_key, present_value = step.past_key.copy(), step.past_value.copy()
    output = np.zeros((batch, tokens, heads, size))
    for b in range(batch):
        length, count = int(step.lengths[b]), int(step.queries[b])
        past = length - count
        queries = normalise(step.query[b], step.q_norm, step.q_norm_epsilon).copy()
        new_keys = normalise(step.key[b], step.k_norm, step.k_norm_epsilon).copy()
        for s in range(count):
            if step.cos is not None and step.sin is not None:
                position = past + s if step.positions is None else step.positions[b, s]
                angles = step.cos[position], step.sin[position]
                queries[s] = rotate(queries[s], *angles, step.interleaved)
                if new_rows:
                    new_keys[s] = rotate(new_keys[s], *angles, step.interleaved, np.float32)
            if new_rows:
                present_key[b, :, past + s] = step.key_format.store(new_keys[s])
                present_value[b, :, past + s] = step.value_format.store(step.value[b, s])
        keys = step.key_format.load(present_key[b, :, :length])
        values = step.value_format.load(present_value[b, :, :length])
        for s in range(count):
            last = past + s + 1
            visible = slice(max(0, last - step.window) if step.window > 0 else 0, last)
            for h in range(heads):
                scores = keys[h // group, visible] @ queries[s, h] * scale
                if step.softcap > 0:
                    scores = step.softcap * np.tanh(scores / step.softcap)
                if step.bias is not None:
                    bias = step.bias[b % step.bias.shape[0], h % step.bias.shape[1], s]
                    scores = scores + bias[visible]
                sink = 0.0 if step.smooth_softmax else None
                if step.sink is not None:
                    sink = float(step.sink[h])
                output[b, s, h] = _attend(scores, values[h // group, visible], sink)
    return Result(output.reshape(batch, tokens, heads * size), present_key, present_value)
