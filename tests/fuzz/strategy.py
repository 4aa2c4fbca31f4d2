"""Draws calls from the whole contract."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fuzz.call import Call
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
LONG = 700  # rows: three tiles of most head sizes


@dataclass(frozen=True)
class Lengths:
    """How many tokens each sequence has, and the cache rows; see the operator's inputs."""

    tokens: int  # S
    lengths: list[int]  # T
    past_rows: int | None  # None: no past is given
    total: int
    query_lengths: list[int] | None = None
    appends: bool = True


def _batches(draw: st.DrawFn, most: int) -> int:
    return draw(st.integers(1, most), label="batch")


def _rows(draw: st.DrawFn, least: int) -> int:
    """A number of cache rows from `least` on: mostly a few, at times several tiles."""
    return draw(st.integers(least, least + 20) | st.integers(least, max(least, LONG)), label="rows")


def _decode(draw: st.DrawFn) -> Lengths:
    """One token; the cache is one buffer with room, or grows by a row."""
    batch, most = _batches(draw, 5), _rows(draw, 1)
    lengths = draw(st.lists(st.integers(1, most), min_size=batch, max_size=batch), label="lengths")
    longest = max(lengths)
    if longest == 1 and draw(st.booleans(), label="no past"):
        return Lengths(1, lengths, None, 1)
    if draw(st.booleans(), label="grows"):
        return Lengths(1, lengths, longest - 1, longest)
    return Lengths(1, lengths, most, draw(st.integers(longest, most), label="total"))


def _chunk(draw: st.DrawFn) -> Lengths:
    """Several tokens of one sequence after a past."""
    tokens = draw(st.integers(2, 8) | st.integers(2, 20), label="tokens")
    most = _rows(draw, tokens + 1)
    length = draw(st.integers(tokens + 1, most), label="length")
    if draw(st.booleans(), label="grows"):
        return Lengths(tokens, [length], length - tokens, length)
    return Lengths(tokens, [length], most, draw(st.integers(length, most), label="total"))


def _prompt(draw: st.DrawFn) -> Lengths:
    """First prompts, padded on the right."""
    tokens = draw(st.integers(1, 8) | st.integers(1, 20), label="tokens")
    batch = _batches(draw, 4)
    lengths = draw(
        st.lists(st.integers(1, tokens) | st.just(tokens), min_size=batch, max_size=batch),
        label="lengths",
    )
    past = draw(st.none() | st.just(0) | st.integers(tokens, tokens + 20), label="past rows")
    return Lengths(tokens, lengths, past, tokens)


def _padded_chunk(draw: st.DrawFn) -> Lengths:
    """Chunks of a batch, padded on the right; some entries idle."""
    tokens = draw(st.integers(1, 8) | st.integers(1, 20), label="tokens")
    batch, most = _batches(draw, 4), _rows(draw, tokens)
    parts = []
    for _ in range(batch):
        past = draw(st.integers(0, most - tokens), label="past")
        parts.append((past, draw(st.integers(0 if past else 1, tokens), label="query_seqlens")))
    lengths = [past + count for past, count in parts]
    longest = max(past for past, _ in parts)
    rows = draw(st.sampled_from([longest, most]) | st.integers(longest, most), label="past rows")
    # All tokens of the call must fit the cache, or it grows.
    least = max(*lengths, tokens, longest + tokens if rows < longest + tokens else 0)
    total = least + draw(st.sampled_from([0, 0, 1, 4]), label="room")
    return Lengths(tokens, lengths, rows, total, [count for _, count in parts])


def _shared_layer(draw: st.DrawFn) -> Lengths:
    """No new keys and values: another layer has put them into the cache."""
    tokens = draw(st.integers(1, 8) | st.integers(1, 20), label="tokens")
    batch = _batches(draw, 4 if tokens == 1 else 1)
    most = _rows(draw, tokens)
    lengths = draw(
        st.lists(st.integers(tokens, most), min_size=batch, max_size=batch), label="lengths"
    )
    total = draw(st.integers(max(lengths), most), label="total")
    return Lengths(tokens, lengths, most, total, appends=False)


KINDS = (_decode, _chunk, _prompt, _padded_chunk, _shared_layer)


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


@st.composite
def valid_calls(draw: st.DrawFn) -> Call:
    """Draws a call that keeps to the operator's schema."""
    plan = draw(st.sampled_from(KINDS), label="kind")(draw)
    dtype, cache = draw(st.sampled_from(FORMATS), label="format")
    kv_heads = draw(st.integers(1, 3), label="kv_num_heads")
    num_heads = kv_heads * draw(st.sampled_from(GROUPS), label="group")
    sizes = [size for size in HEAD_SIZES if cache != "int4" or size % 2 == 0]
    size = draw(st.sampled_from(sizes), label="head_size")
    numbers = _Numbers(draw(st.integers(0, 2**16), label="seed"), dtype)
    magnitude = draw(st.sampled_from([1.0, 3.0]), label="magnitude")
    batch, tokens = len(plan.lengths), plan.tokens
    attributes: dict[str, Any] = {}
    feeds: Feeds = {}

    packed = plan.appends and draw(st.booleans(), label="packed")
    heads = {"query": num_heads, "key": kv_heads, "value": kv_heads}
    rows = {"query": tokens, "key": tokens * plan.appends, "value": tokens * plan.appends}
    parts = {
        name: numbers(batch, rows[name], count * size, size=1 if name == "value" else magnitude)
        for name, count in heads.items()
    }
    feeds |= {"query": np.concatenate(list(parts.values()), axis=-1)} if packed else parts
    if plan.past_rows is not None or cache:
        quantisation = draw(st.sampled_from(["PER_TENSOR", "PER_CHANNEL"]), label="quantisation")
        counts = plan.query_lengths or [tokens] * batch
        first = [length - count for length, count in zip(plan.lengths, counts, strict=True)]
        if not plan.appends:
            first = plan.lengths
        elif plan.total == tokens and plan.query_lengths is None:
            first = [0] * batch
        for kind, width in (("key", magnitude), ("value", 1.0)):
            shape = (batch, kv_heads, plan.past_rows or 0, size)
            past, scale = _draw_cache(numbers, cache, quantisation, shape, width)
            _poison(past, first)
            feeds[f"past_{kind}"] = past
            if scale is not None:
                attributes[f"{kind[0]}_quant_type"] = quantisation
                attributes["kv_cache_bit_width"] = 4 if cache == "int4" else 8
                full = (1,) if quantisation == "PER_TENSOR" else (1, kv_heads, 1, size)
                feeds[f"{kind[0]}_scale"] = scale.reshape(full)
    shapes = [(batch,), (batch, 1), (1, batch)]
    lengths = np.array(plan.lengths, np.int32) - np.int32(1)
    feeds["seqlens_k"] = lengths.reshape(draw(st.sampled_from(shapes), label="shape of seqlens_k"))
    total_shape = draw(st.sampled_from([(), (1,)]), label="shape of total_sequence_length")
    feeds["total_sequence_length"] = np.full(total_shape, plan.total, np.int32)
    if plan.query_lengths is not None:
        feeds["query_seqlens"] = np.array(plan.query_lengths, np.int32)

    if size > 1 and draw(st.booleans(), label="rotary"):
        attributes |= _add_rotary(draw, feeds, plan, size, dtype)
    if draw(st.booleans(), label="bias"):
        feeds["attention_bias"] = _draw_bias(draw, numbers, plan, num_heads)
    if draw(st.integers(0, 3), label="sink") == 3:
        feeds["head_sink"] = numbers(num_heads)
    if draw(st.integers(0, 3), label="smooth_softmax") == 3:
        attributes["smooth_softmax"] = 1
    if draw(st.booleans(), label="window"):
        attributes["local_window_size"] = draw(st.sampled_from(WINDOWS), label="window size")
    if draw(st.integers(0, 2), label="softcap") == 2:
        attributes["softcap"] = draw(st.sampled_from([0.0, 2.0, 50.0]), label="cap")
    if draw(st.integers(0, 2), label="scale") == 2:
        attributes["scale"] = draw(st.sampled_from([0.0, 0.3, 1.0, -0.2]), label="factor")
    if draw(st.integers(0, 9), label="norm") == 9:
        feeds |= {f"{part}_norm_weight": numbers(size) for part in "qk"}
        names = ["k_norm_epsilon", "q_norm_epsilon", "qk_norm_epsilon"]
        chosen = draw(st.sets(st.sampled_from(names)), label="epsilons")
        attributes |= dict.fromkeys(sorted(chosen), 1e-3)
    can_share = plan.past_rows is not None and plan.past_rows >= max(plan.total, 1)
    shared = can_share and draw(st.booleans(), label="shared")
    threads = draw(st.integers(1, 3), label="threads")
    return Call(Node(num_heads, kv_heads, attributes), feeds, shared, threads)
