"""Random inputs: arrays that mean to a model what its inputs are for."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.verification.interface import Feed, Interface, Role
from lean_attention.rewrite.verification.memory import lacks_memory
from lean_attention.rewrite.verification.scenarios import DIMENSIONS, Step

__all__ = ["make_feeds"]

Arrays = dict[str, npt.NDArray[Any]]
# Of an input while a model runs: itself, before it is rounded to its type, and what becomes of it.
COPIES = 4
# A table for the longest context that is tried.
ROTARY_ROWS = 4096


def make_feeds(interface: Interface, step: Step, seed: tuple[int, ...]) -> Arrays:
    """Inputs of one run, the same for the same seed.

    Args:
        interface: What the model takes.
        step: Lengths and widths of the run.
        seed: Of the random numbers.

    Raises:
        LeanAttentionError: An input has a size that nothing tells, which the message names; or
            the inputs do not fit into memory.
    """
    named = _named_sizes(interface, step)
    shapes = [_shape(feed, step, named) for feed in interface.feeds]
    sizes = zip(interface.feeds, shapes, strict=True)
    needed = sum(feed.dtype.itemsize * math.prod(shape) for feed, shape in sizes)
    if obstacle := lacks_memory("its inputs", COPIES * needed):
        raise LeanAttentionError(f"{obstacle}; export it with smaller sizes, or sizes by name")
    feeds = {}
    for index, (feed, shape) in enumerate(zip(interface.feeds, shapes, strict=True)):
        rng = np.random.default_rng((*seed, index))
        feeds[feed.name] = _content(feed, shape, step, rng)
    return feeds


def _named_sizes(interface: Interface, step: Step) -> dict[str, int]:
    """The sizes that names of dimensions stand for: those of inputs whose roles tell them."""
    named: dict[str, int] = {}
    for numbers in (False, True):
        for feed in interface.feeds:
            if (feed.role == Role.NUMBERS) != numbers:
                continue
            if numbers and len(feed.shape) not in (2, 3):
                continue
            for size, meaning in zip(feed.shape, DIMENSIONS.get(feed.role, ()), strict=False):
                if isinstance(size, str) and meaning is not None:
                    named.setdefault(size, step.sizes[meaning])
    return named


def _shape(feed: Feed, step: Step, named: dict[str, int]) -> tuple[int, ...]:
    meanings = (*DIMENSIONS.get(feed.role, ()), *[None] * len(feed.shape))
    if feed.role == Role.NUMBERS and len(feed.shape) not in (2, 3):
        meanings = (None,) * len(feed.shape)
    sizes = []
    for size, meaning in zip(feed.shape, meanings, strict=False):
        if isinstance(size, int):
            sizes.append(size)
        # What an input is for comes before its sizes' names: pasts of one name may differ.
        elif meaning is not None and feed.role != Role.NUMBERS:
            sizes.append(step.sizes[meaning])
        elif size is not None and size in named:
            sizes.append(named[size])
        elif meaning is not None:
            sizes.append(step.sizes[meaning])
        elif feed.role in (Role.ROTARY_TABLE, Role.UNUSED):
            sizes.append(ROTARY_ROWS if feed.role == Role.ROTARY_TABLE else 1)
        else:
            raise LeanAttentionError(
                f"cannot tell the size {size!r} of the input {feed.name!r}, so the model cannot be "
                "verified; export it with that size, or pass --no-verify"
            )
    return tuple(sizes)


def _content(
    feed: Feed, shape: tuple[int, ...], step: Step, rng: np.random.Generator
) -> npt.NDArray[Any]:
    """The array of one input."""
    lengths, new = np.array(step.lengths), np.array(step.new)
    content: npt.NDArray[Any]
    match feed.role:
        case Role.TOKEN_IDS:
            content = rng.integers(0, feed.bound or 1, shape)
        case Role.ATTENTION_MASK:
            content = np.broadcast_to(np.arange(shape[-1]) < lengths[:, None], shape)
        case Role.POSITION_IDS:
            content = np.broadcast_to((lengths - new)[:, None] + np.arange(shape[-1]), shape)
        case Role.SEQLENS_K:
            content = np.broadcast_to(lengths - 1, shape)
        case Role.QUERY_SEQLENS:
            content = np.broadcast_to(new, shape)
        case Role.TOTAL_SEQUENCE_LENGTH:
            content = np.full(shape, step.total)
        case Role.PAST if feed.dtype.kind in "iu":
            return np.frombuffer(rng.bytes(int(np.prod(shape))), feed.dtype).reshape(shape)
        case Role.CACHE_SCALE:
            content = rng.uniform(0.01, 0.03, shape)
        case Role.ROTARY_TABLE:
            content = rng.uniform(-1, 1, shape)
        case Role.FLAG:
            content = np.array(rng.integers(2))
        case Role.UNUSED:
            content = np.zeros(shape)
        case _:
            content = rng.standard_normal(shape, np.float32)
    return np.ascontiguousarray(content.astype(feed.dtype)).reshape(shape)
