"""The plain reference: grouped-query attention over a KV cache, in float64 NumPy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """One call of the operator, in float64; see the operator's inputs for the meanings.

    Shapes: B sequences, S new tokens, N query heads, K KV heads, H head size, C cache rows.
    """

    query: Array  # [B, S, N, H], not rotated
    key: Array  # [B, S, K, H], not rotated
    value: Array  # [B, S, K, H]
    past_key: Array  # [B, K, C, H], rotated
    past_value: Array  # [B, K, C, H]
    lengths: NDArray[np.int64]  # [B], valid rows after this step
    cos: Array | None = None  # [positions, half]
    sin: Array | None = None
    interleaved: bool = False
    scale: float | None = None
    softcap: float = 0.0
    window: int = -1
    bias: Array | None = None  # [1 or B, 1 or N, S, T]
    sink: Array | None = None  # [N]
    smooth_softmax: bool = False


@dataclass(frozen=True)
class Result:
    """What the operator returns."""

    output: Array  # [B, S, N * H]
    present_key: Array  # [B, K, C, H]
    present_value: Array  # [B, K, C, H]


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotary embedding of x [..., H] by cos, sin [half]; dimensions past 2 * half stay."""
    half = cos.shape[-1]
    rotated = x.copy()
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        rotated[..., 0 : 2 * half : 2] = first * cos - second * sin
        rotated[..., 1 : 2 * half : 2] = second * cos + first * sin
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
        rotated[..., :half] = first * cos - second * sin
        rotated[..., half : 2 * half] = second * cos + first * sin
    return rotated


def _attend(scores: Array, values: Array, sink: float | None) -> Array:
    """Softmax of scores [T] (-inf: masked), with an optional sink, times values [T, H]."""
    top = scores.max(initial=-np.inf)
    if top <= np.finfo(np.float32).min:
        return np.zeros(values.shape[-1])
    reference = top if sink is None else max(top, sink)
    weights = np.exp(scores - reference)
    total = weights.sum() + (0.0 if sink is None else np.exp(sink - reference))
    visible = weights > 0  # A masked row's value may be anything.
    return weights[visible] @ values[visible] / total


def attention(step: Step) -> Result:
    """Runs one step; cache rows at or past a sequence's length are neither read nor changed."""
    batch, tokens, heads, size = step.query.shape
    kv_heads = step.key.shape[2]
    group = heads // kv_heads
    scale = step.scale if step.scale is not None else 1 / np.sqrt(size)
    present_key, present_value = step.past_key.copy(), step.past_value.copy()
    output = np.zeros((batch, tokens, heads, size))
    for b in range(batch):
        past = int(step.lengths[b]) - tokens
        queries = step.query[b].copy()
        for s in range(tokens):
            key = step.key[b, s]
            if step.cos is not None and step.sin is not None:
                angles = step.cos[past + s], step.sin[past + s]
                queries[s] = rotate(queries[s], *angles, step.interleaved)
                key = rotate(key, *angles, step.interleaved)
            present_key[b, :, past + s] = key
            present_value[b, :, past + s] = step.value[b, s]
        for s in range(tokens):
            last = past + s + 1
            first = max(0, last - step.window) if step.window > 0 else 0
            for h in range(heads):
                scores = present_key[b, h // group, first:last] @ queries[s, h] * scale
                if step.softcap > 0:
                    scores = step.softcap * np.tanh(scores / step.softcap)
                if step.bias is not None:
                    bias = step.bias[b % step.bias.shape[0], h % step.bias.shape[1], s]
                    scores = scores + bias[first:last]
                sink = 0.0 if step.smooth_softmax else None
                if step.sink is not None:
                    sink = float(step.sink[h])
                output[b, s, h] = _attend(scores, present_value[b, h // group, first:last], sink)
    return Result(output.reshape(batch, tokens, heads * size), present_key, present_value)
