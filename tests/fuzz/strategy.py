"""Draws calls from the whole contract."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fuzz.call import Call
from fuzz.lengths import KINDS, Lengths
from gqa_node import Feeds, Node
from reference import CacheFormat

# Activations and cache.
FORMATS = (
    (np.float32, ""),
    (np.float16, ""),
    (np.float32, "int8"),
    (np.float32, "int4"),
    (np.float16, "int8"),
    (np.float16, "int4"),
    (ml_dtypes.bfloat16, ""),
)
HEAD_SIZES = (16, 8, 32, 64, 80, 96, 128, 24, 40, 1, 3, 4, 5, 20, 100, 256)
GROUPS = (1, 2, 3, 4, 7, 8)
WINDOWS = (-1, 1, 2, 3, 7, 100, 300, 2**31 - 1)


class _Numbers:
    """Random tensors of one type."""

    def __init__(self, seed: int, dtype: type) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype

    def __call__(self, *shape: int, size: float = 1.0) -> NDArray[Any]:
        return (size * self.rng.standard_normal(shape)).astype(self.dtype)


def _draw_cache(
    numbers: _Numbers, cache: str, quantisation: str, shape: tuple[int, ...], size: float
) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """Draws a past [B, K, rows, H] and the scales of a quantised one; a few values saturate."""
    past = numbers(*shape, size=size)
    if not cache:
        return past, None
    bits, step = {"int8": (8, 3 / 127), "int4": (4, 2 / 7)}[cache]
    _, heads, _, head_size = shape
    scale_shape = (1, 1) if quantisation == "PER_TENSOR" else (heads, head_size)
    scale = (size * step * numbers.rng.uniform(0.7, 1.3, scale_shape)).astype(np.float32)
    stored = CacheFormat(np.dtype(numbers.dtype), bits, scale)
    return stored.store(past.swapaxes(1, 2)).swapaxes(1, 2).copy(), scale


def _poison(past: NDArray[Any], first: list[int]) -> None:
    """Fills the rows from each sequence's first new one on with what must not be read."""
    bad: list[float] = [np.nan, np.inf, -np.inf]
    if past.dtype.kind in "iu":
        bad = [127, -128] if past.dtype.kind == "i" else [0xFF, 0x0F, 0]
    for rows, start in zip(past, first, strict=True):
        tail = rows[:, start:]
        tail[...] = np.resize(np.array(bad).astype(past.dtype), tail.shape)


def _add_rotary(draw: st.DrawFn, feeds: Feeds, plan: Lengths, size: int, dtype: type) -> Feeds:
    """Draws rotary attributes, and adds their tables and, at times, positions."""
    whole = range(8, size // 2 + 1, 8)
    half = draw(st.sampled_from([size // 2, *whole]) | st.integers(1, size // 2), label="pairs")
    rows = plan.total + draw(st.integers(0, 3), label="more rows of the tables")
    angles = np.arange(rows)[:, None] / 100.0 ** (np.arange(half) / half)
    feeds |= {"cos_cache": np.cos(angles).astype(dtype), "sin_cache": np.sin(angles).astype(dtype)}
    if draw(st.booleans(), label="position_ids"):
        rng = np.random.default_rng(draw(st.integers(0, 9), label="seed of the positions"))
        ids = rng.integers(0, rows, (len(plan.lengths), plan.tokens))
        # Of a first prompt's the operator knows the first alone.
        ids[0, 0] = min(ids[0, 0], rows - plan.tokens)
        feeds["position_ids"] = ids
    return {"do_rotary": 1, "rotary_interleaved": draw(st.integers(0, 1), label="interleaved")}


def _draw_bias(draw: st.DrawFn, numbers: _Numbers, plan: Lengths, num_heads: int) -> NDArray[Any]:
    shape = (
        draw(st.sampled_from([1, len(plan.lengths)]), label="batch of the bias"),
        draw(st.sampled_from([1, num_heads]), label="heads of the bias"),
        plan.tokens,
        plan.total,
    )
    bias = numbers(*shape, size=3)
    masks = [None, -np.inf, np.finfo(np.float32).min, ml_dtypes.finfo(numbers.dtype).min]
    mask = draw(st.sampled_from(masks), label="mask")
    if mask is not None:
        share = draw(st.sampled_from([0.3, 1.0]), label="share masked")
        with np.errstate(over="ignore"):
            bias[numbers.rng.random(shape) < share] = np.asarray(mask).astype(numbers.dtype)
    return bias


@dataclass(frozen=True)
class _Shape:
    """Sizes and types of a call."""

    plan: Lengths
    dtype: type
    cache: str  # "int8", "int4" or "": as the activations
    num_heads: int
    kv_heads: int
    size: int  # H
    magnitude: float  # Standard deviation of queries and keys

    @property
    def batch(self) -> int:
        return len(self.plan.lengths)


def _draw_shape(draw: st.DrawFn) -> _Shape:
    plan = draw(st.sampled_from(KINDS), label="kind")(draw)
    dtype, cache = draw(st.sampled_from(FORMATS), label="format")
    kv_heads = draw(st.integers(1, 3), label="kv_num_heads")
    num_heads = kv_heads * draw(st.sampled_from(GROUPS), label="group")
    sizes = [size for size in HEAD_SIZES if cache != "int4" or size % 2 == 0]
    size = draw(st.sampled_from(sizes), label="head_size")
    magnitude = draw(st.sampled_from([1.0, 3.0]), label="magnitude")
    return _Shape(plan, dtype, cache, num_heads, kv_heads, size, magnitude)


def _draw_tokens(draw: st.DrawFn, shape: _Shape, numbers: _Numbers) -> Feeds:
    """Draws query, key and value, or all in one."""
    plan = shape.plan
    new = plan.tokens * plan.appends
    parts = {
        "query": numbers(
            shape.batch, plan.tokens, shape.num_heads * shape.size, size=shape.magnitude
        ),
        "key": numbers(shape.batch, new, shape.kv_heads * shape.size, size=shape.magnitude),
        "value": numbers(shape.batch, new, shape.kv_heads * shape.size),
    }
    if plan.appends and draw(st.booleans(), label="packed"):
        return {"query": np.concatenate(list(parts.values()), axis=-1)}
    return parts


def _draw_caches(draw: st.DrawFn, shape: _Shape, numbers: _Numbers) -> tuple[Feeds, dict[str, Any]]:
    """Draws the past with its scales, and what attributes say of it."""
    plan = shape.plan
    feeds: Feeds = {}
    attributes: dict[str, Any] = {}
    if plan.past_rows is None and not shape.cache:
        return feeds, attributes
    quantisation = draw(st.sampled_from(["PER_TENSOR", "PER_CHANNEL"]), label="quantisation")
    past_shape = (shape.batch, shape.kv_heads, plan.past_rows or 0, shape.size)
    for kind, width in (("key", shape.magnitude), ("value", 1.0)):
        past, scale = _draw_cache(numbers, shape.cache, quantisation, past_shape, width)
        _poison(past, plan.valid_rows)
        feeds[f"past_{kind}"] = past
        if scale is not None:
            attributes[f"{kind[0]}_quant_type"] = quantisation
            attributes["kv_cache_bit_width"] = 4 if shape.cache == "int4" else 8
            full = (1,) if quantisation == "PER_TENSOR" else (1, shape.kv_heads, 1, shape.size)
            feeds[f"{kind[0]}_scale"] = scale.reshape(full)
    return feeds, attributes


def _draw_lengths(draw: st.DrawFn, plan: Lengths) -> Feeds:
    """Says the plan's lengths in one of the accepted shapes."""
    batch = len(plan.lengths)
    shapes = [(batch,), (batch, 1), (1, batch)]
    total_shape = draw(st.sampled_from([(), (1,)]), label="shape of total_sequence_length")
    lengths = np.array(plan.lengths, np.int32) - np.int32(1)
    feeds: Feeds = {
        "seqlens_k": lengths.reshape(draw(st.sampled_from(shapes), label="shape of seqlens_k")),
        "total_sequence_length": np.full(total_shape, plan.total, np.int32),
    }
    if plan.query_lengths is not None:
        feeds["query_seqlens"] = np.array(plan.query_lengths, np.int32)
    return feeds


def _draw_norms(draw: st.DrawFn, shape: _Shape, numbers: _Numbers) -> tuple[Feeds, dict[str, Any]]:
    names = ["k_norm_epsilon", "q_norm_epsilon", "qk_norm_epsilon"]
    chosen = draw(st.sets(st.sampled_from(names)), label="epsilons")
    weights: Feeds = {f"{part}_norm_weight": numbers(shape.size) for part in "qk"}
    return weights, dict.fromkeys(sorted(chosen), 1e-3)


def _draw_features(
    draw: st.DrawFn, shape: _Shape, numbers: _Numbers
) -> tuple[Feeds, dict[str, Any]]:
    """Draws whatever a call may also have."""
    feeds: Feeds = {}
    attributes: dict[str, Any] = {}
    if shape.size > 1 and draw(st.booleans(), label="rotary"):
        attributes |= _add_rotary(draw, feeds, shape.plan, shape.size, shape.dtype)
    if draw(st.booleans(), label="bias"):
        feeds["attention_bias"] = _draw_bias(draw, numbers, shape.plan, shape.num_heads)
    if draw(st.integers(0, 3), label="sink") == 3:
        feeds["head_sink"] = numbers(shape.num_heads)
    if draw(st.integers(0, 3), label="smooth_softmax") == 3:
        attributes["smooth_softmax"] = 1
    if draw(st.booleans(), label="window"):
        attributes["local_window_size"] = draw(st.sampled_from(WINDOWS), label="window size")
    if draw(st.integers(0, 2), label="softcap") == 2:
        attributes["softcap"] = draw(st.sampled_from([0.0, 2.0, 50.0]), label="cap")
    if draw(st.integers(0, 2), label="scale") == 2:
        attributes["scale"] = draw(st.sampled_from([0.0, 0.3, 1.0, -0.2]), label="factor")
    if draw(st.integers(0, 9), label="norm") == 9:
        weights, epsilons = _draw_norms(draw, shape, numbers)
        return feeds | weights, attributes | epsilons
    return feeds, attributes


@st.composite
def valid_calls(draw: st.DrawFn) -> Call:
    """Draws a call that keeps to the operator's schema."""
    shape = _draw_shape(draw)
    numbers = _Numbers(draw(st.integers(0, 2**16), label="seed"), shape.dtype)
    tokens = _draw_tokens(draw, shape, numbers)
    caches, formats = _draw_caches(draw, shape, numbers)
    lengths = _draw_lengths(draw, shape.plan)
    features, choices = _draw_features(draw, shape, numbers)
    rows, total = shape.plan.past_rows, shape.plan.total
    shared = rows is not None and rows >= total and draw(st.booleans(), label="shared")
    threads = draw(st.integers(1, 3), label="threads")
    node = Node(shape.num_heads, shape.kv_heads, formats | choices)
    return Call(node, tokens | caches | lengths | features, shared, threads)
