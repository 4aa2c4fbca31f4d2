"""Where ours and the stock operator of a CPU differ on purpose; every other difference is a fault.

Of each row a test sees that it is needed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fuzz.call import Call

FLOATS = {np.dtype(np.float32), np.dtype(np.float16)}
Applies = Callable[[Call], bool]


@dataclass(frozen=True)
class Difference:
    """Calls that one of the two operators accepts."""

    why: str
    applies: Applies
    change: Callable[[Call], Call]  # Makes an example out of a call that both accept.


def _has(name: str, is_refused: Callable[[float], bool], default: float) -> Applies:
    return lambda call: is_refused(call.attribute(name, default))


def _set(name: str, value: object) -> Callable[[Call], Call]:
    return lambda call: call.with_attributes(**{name: value})


def _with_head_size(call: Call, size: int) -> Call:
    return call.with_feeds(
        **{
            name: array[..., : size * array.shape[-1] // call.head_size]
            for name, array in call.feeds.items()
            if name in ("query", "key", "value", "past_key", "past_value")
        }
    )


def _with_tables(call: Call, half: int) -> Call:
    table = np.ones((16, half), call.dtype)
    return call.with_feeds(cos_cache=table, sin_cache=table).with_attributes(do_rotary=1)


def _with_odd_packed_query(call: Call) -> Call:
    parts = [call.feeds[name] for name in ("query", "key", "value")]
    odd = np.concatenate([*parts, parts[-1][..., :1]], axis=-1)
    return call.with_feeds(
        query=odd, key=None, value=None, query_seqlens=np.array([call.tokens], np.int32)
    )


def _has_flat_positions(call: Call) -> bool:
    return call.feeds["position_ids"].ndim < 2


# What stock computes and ours refuses: by name, since it is not implemented, or since stock takes
# an absurd number for one that makes sense.
ONLY_STOCK = [
    Difference("`causal` = 0", _has("causal", lambda x: x != 1, 1), _set("causal", 0)),
    Difference(
        "`sliding_window_cache` = 1",
        _has("sliding_window_cache", lambda x: x == 1, 0),
        lambda call: call.with_attributes(sliding_window_cache=1, local_window_size=4),
    ),
    Difference(
        "a `scale` that is not finite",
        _has("scale", lambda x: not math.isfinite(x), 0),
        _set("scale", math.nan),
    ),
    Difference(
        "a `softcap` below 0 or not finite",
        _has("softcap", lambda x: not (math.isfinite(x) and x >= 0), 0),
        _set("softcap", -1.0),
    ),
    Difference(
        "a `local_window_size` that is neither -1 nor from 1 to 2^31 - 1",
        _has("local_window_size", lambda x: x != -1 and not 1 <= x < 2**31, -1),
        _set("local_window_size", 2**32 + 4),
    ),
    Difference(
        "first prompts with a length past S",
        lambda call: call.is_prompt and bool((call.lengths > call.tokens).any()),
        lambda call: call.with_feeds(
            total_sequence_length=np.array(call.tokens, np.int32),
            seqlens_k=np.array([call.tokens], np.int32),
        ),
    ),
    Difference(
        "with `query_seqlens`, a packed `query` of no whole number of heads",
        lambda call: (
            call.packed
            and call.feeds["query"].shape[-1] % (call.node.num_heads + 2 * call.node.kv_num_heads)
            != 0
        ),
        _with_odd_packed_query,
    ),
    Difference(
        "`seqlens_k` of three dimensions",
        lambda call: call.feeds["seqlens_k"].ndim > 2,
        lambda call: call.with_feeds(seqlens_k=call.feeds["seqlens_k"].reshape(1, 1, 1)),
    ),
    Difference(
        "`position_ids` that are more than [B, S]",
        lambda call: call.feeds["position_ids"].shape != (call.batch, call.tokens),
        lambda call: _with_tables(call, 8).with_feeds(position_ids=np.zeros((1, 2), np.int64)),
    ),
    Difference(
        "`attention_bias` of less keys than the longest sequence has",
        lambda call: "attention_bias" in call.feeds and bool((call.lengths > call.total).any()),
        lambda call: call.with_feeds(
            total_sequence_length=np.array(3, np.int32),
            attention_bias=np.zeros((1, 1, 1, 3), call.dtype),
        ),
    ),
    Difference(
        "caches of another float type than the query's",
        lambda call: (
            call.feeds["past_key"].dtype != call.dtype
            and {call.feeds["past_key"].dtype, call.dtype} <= FLOATS
        ),
        lambda call: call.with_feeds(
            **{name: call.feeds[name].astype(np.float16) for name in ("past_key", "past_value")}
        ),
    ),
    Difference(
        "`k_quant_type` or `v_quant_type` of a cache that holds floats",
        lambda call: (
            "k_scale" not in call.feeds
            and (
                call.attribute("k_quant_type", "NONE") != "NONE"
                or call.attribute("v_quant_type", "NONE") != "NONE"
            )
        ),
        _set("v_quant_type", "PER_CHANNEL"),
    ),
    Difference(
        "a norm's epsilon that is not positive and finite",
        lambda call: any(
            not (math.isfinite(epsilon) and epsilon > 0)
            for name, epsilon in call.node.attributes.items()
            if name.endswith("_norm_epsilon")
        ),
        _set("k_norm_epsilon", -1.0),
    ),
    Difference(
        "`total_sequence_length` less than S, with keys and values of no rows",
        lambda call: not call.appends and call.total < call.tokens,
        lambda call: call.with_feeds(
            **{name: call.feeds[name][:, :0] for name in ("key", "value")},
            query=np.concatenate([call.feeds["query"]] * 2, axis=1),
            total_sequence_length=np.array(1, np.int32),
        ),
    ),
]

# What ours computes and the stock operator refuses.
ONLY_OURS = [
    Difference(
        "head sizes that are no multiple of 8",
        lambda call: call.head_size % 8 != 0,
        lambda call: _with_head_size(call, 5),
    ),
    Difference(
        "rotary tables where the head size is no multiple of 16",
        lambda call: "cos_cache" in call.feeds and call.head_size % 16 != 0,
        lambda call: _with_tables(_with_head_size(call, 24), 8),
    ),
    Difference(
        "rotary tables whose width is no multiple of 8",
        lambda call: "cos_cache" in call.feeds and call.feeds["cos_cache"].shape[-1] % 8 != 0,
        lambda call: _with_tables(call, 3),
    ),
    Difference(
        "`q_norm_weight` and `k_norm_weight`",
        lambda call: {"q_norm_weight", "k_norm_weight"} <= call.feeds.keys(),
        lambda call: call.with_feeds(
            **{f"{part}_norm_weight": np.ones(call.head_size, call.dtype) for part in "qk"}
        ),
    ),
    Difference(
        "bfloat16",
        lambda call: call.dtype.name == "bfloat16",
        lambda call: call.with_feeds(
            **{
                name: array.astype("bfloat16")
                for name, array in call.feeds.items()
                if array.dtype == np.float32
            }
        ),
    ),
]
# Arithmetic of the stock operator that ends the process; it is never run on these.
KILLS_STOCK: list[tuple[str, Applies]] = [
    ("an empty batch", lambda call: call.feeds["query"].shape[0] == 0),
    ("`position_ids` of less than two dimensions", _has_flat_positions),
]


def is_deliberate(call: Call, *, by_stock: bool) -> bool:
    """Says whether a call may be accepted by one of the two alone.

    Args:
        call: What was run, in any state.
        by_stock: Whether that is the stock operator.
    """
    return any(_applies(row.applies, call) for row in (ONLY_STOCK if by_stock else ONLY_OURS))


def kills_stock(call: Call) -> bool:
    """Says whether the stock operator may not be run on a call."""
    return any(_applies(applies, call) for _, applies in KILLS_STOCK)


def _applies(applies: Applies, call: Call) -> bool:
    try:
        return applies(call)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return False  # An input that the row asks about is missing or misshapen.
