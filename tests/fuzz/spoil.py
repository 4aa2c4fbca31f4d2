"""Makes one thing wrong with a call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.call import Call
from gqa_node import BFLOAT16

LARGEST = 2**31 - 1
# Attributes that are refused, or that a kernel may not know.
ODD_ATTRIBUTES: list[dict[str, Any]] = [
    {"causal": 0},
    {"sliding_window_cache": 1},
    {"sliding_window_cache": 1, "local_window_size": 4},
    {"qk_output": 1},
    {"scale": float("nan")},
    {"scale": float("inf")},
    {"softcap": -1.0},
    {"softcap": float("nan")},
    {"local_window_size": 0},
    {"local_window_size": -2},
    {"local_window_size": 2**32 + 4},
    {"do_rotary": 1},
    {"do_rotary": 2},
    {"smooth_softmax": -1},
    {"k_quant_type": "PER_TENSOR"},
    {"k_quant_type": "PER_TOKEN"},
    {"v_quant_type": "PER_CHANNEL"},
    {"kv_cache_bit_width": 4},
    {"kv_cache_bit_width": 16},
    {"k_norm_epsilon": -1.0},
]


def _change_dimension(draw: st.DrawFn, call: Call) -> Call:
    """One dimension of one input off by one."""
    with_axes = sorted(name for name, array in call.feeds.items() if array.ndim)
    name = draw(st.sampled_from(with_axes), label="input")
    array = call.feeds[name]
    axis = draw(st.integers(0, array.ndim - 1), label="axis")
    size = array.shape[axis] + draw(st.sampled_from([1, -1]), label="change")
    rows = np.arange(max(size, 0)) % max(array.shape[axis], 1)
    if not array.shape[axis]:
        shape = list(array.shape)
        shape[axis] = 1
        return call.with_feeds(**{name: np.ones(shape, array.dtype)})
    return call.with_feeds(**{name: np.take(array, rows, axis=axis)})


def _change_rank(draw: st.DrawFn, call: Call) -> Call:
    """A dimension more or less."""
    name = draw(st.sampled_from(sorted(call.feeds)), label="input")
    array = call.feeds[name]
    less = array.ndim > 0 and draw(st.booleans(), label="less")
    shape = (*array.shape[:-2], int(np.prod(array.shape[-2:]))) if less else (1, *array.shape)
    return call.with_feeds(
        **{name: array.reshape(() if less and array.ndim == 1 and array.size == 1 else shape)}
    )


def _take_away(draw: st.DrawFn, call: Call) -> Call:
    """An input is missing."""
    names = sorted(call.feeds.keys() - {"query"})
    return call.with_feeds(**{draw(st.sampled_from(names), label="input"): None})


def _change_number(draw: st.DrawFn, call: Call) -> Call:
    """An index or a length out of range, or on its verge."""
    ints = {"seqlens_k", "total_sequence_length", "position_ids", "query_seqlens"}
    name = draw(st.sampled_from(sorted(ints & call.feeds.keys())), label="input")
    array = call.feeds[name].copy()
    verges = {-1, 0, 1, call.tokens, call.past_rows, call.past_rows + call.tokens, call.total}
    if "cos_cache" in call.feeds:
        verges.add(len(call.feeds["cos_cache"]))
    values = sorted(verges | {verge - 1 for verge in verges} | {verge + 1 for verge in verges})
    # With query_seqlens the caches grow to the total, whatever it is.
    grows = name == "total_sequence_length" and "query_seqlens" in call.feeds
    largest = call.total + 100 if grows else LARGEST
    value = draw(st.sampled_from([*values, largest, -LARGEST - 1]), label="value")
    array.reshape(-1)[draw(st.integers(0, array.size - 1), label="place")] = value
    return call.with_feeds(**{name: array})


def _change_type(draw: st.DrawFn, call: Call) -> Call:
    """An input of another type."""
    name = draw(st.sampled_from(sorted(call.feeds)), label="input")
    kinds = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
    kinds += [np.dtype(kind) for kind in (np.int8, np.uint8, np.int32, np.int64)]
    kind = draw(st.sampled_from(kinds), label="type")
    with np.errstate(all="ignore"):
        return call.with_feeds(**{name: np.asarray(np.nan_to_num(call.feeds[name])).astype(kind)})


def _change_heads(draw: st.DrawFn, call: Call) -> Call:
    """A number of heads off by one."""
    name = draw(st.sampled_from(["num_heads", "kv_num_heads"]), label="heads")
    count = getattr(call.node, name) + draw(st.sampled_from([1, -1]), label="change")
    return replace(call, node=replace(call.node, **{name: count}))


def _change_attribute(draw: st.DrawFn, call: Call) -> Call:
    """An odd attribute."""
    return call.with_attributes(**draw(st.sampled_from(ODD_ATTRIBUTES), label="attribute"))


def _add_partnerless(draw: st.DrawFn, call: Call) -> Call:
    """An input without the attribute or the partner that it belongs to."""
    name = draw(st.sampled_from(["cos_cache", "k_scale", "q_norm_weight", "position_ids"]))
    extra = {
        "cos_cache": np.ones((4, 8), call.dtype),
        "k_scale": np.ones(1, np.float32),
        "q_norm_weight": np.ones(call.head_size, call.dtype),
        "position_ids": np.zeros((call.batch, call.tokens), np.int64),
    }[name]
    return call.with_feeds(**{name: extra})


SPOILERS: tuple[Callable[[st.DrawFn, Call], Call], ...] = (
    _change_dimension,
    _change_rank,
    _take_away,
    _change_number,
    _change_type,
    _change_heads,
    _change_attribute,
    _add_partnerless,
)


def _without_poison(call: Call) -> Call:
    finite = {
        name: np.where(np.isfinite(rows.astype(np.float32)), rows, rows.dtype.type(1))
        for name, rows in call.feeds.items()
        if name in ("past_key", "past_value")
    }
    return call.with_feeds(**finite)


@st.composite
def spoiled(draw: st.DrawFn, calls: st.SearchStrategy[Call]) -> Call:
    """Draws a call in which one thing is odd; it may be valid all the same."""
    # Rows that must not be read may be valid ones of the odd call.
    call = _without_poison(draw(calls))
    odd = draw(st.sampled_from(SPOILERS), label="what is wrong")(draw, call)
    # A buffer that is shared has one shape and type at both ends.
    can_share = call.shared and all(
        odd.feeds.get(name) is call.feeds[name] for name in ("past_key", "past_value")
    )
    return replace(odd, shared=can_share)
