"""One call of the operator: a node, its inputs, and how it is run."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as status

from gqa_node import OURS, STOCK, Feeds, Node, run_values, to_array, to_value
from reference import CacheFormat

MAX_SESSIONS = 64
MAX_KERNEL_TOKENS = 8  # More are a prompt, which ours leaves to the stock operator.
# ONNX Runtime has a type for each status; through IO binding it is a plain RuntimeError.
REFUSALS = (RuntimeError, status.Fail, status.InvalidArgument, status.InvalidGraph)
REFUSALS += (status.NotImplemented, status.RuntimeException)


@dataclass(frozen=True, repr=False)
class Call:
    """A node, what it is given, and how.

    The properties read shapes and numbers as the operator's schema tells them; of a call that is
    not valid they may raise.
    """

    node: Node
    feeds: Feeds
    shared: bool = False  # One buffer is past and present.
    threads: int = 1

    def __repr__(self) -> str:
        """Types and shapes: what the tensors hold is long."""
        feeds = {name: f"{array.dtype}{list(array.shape)}" for name, array in self.feeds.items()}
        return f"Call({self.node}, {feeds}, shared={self.shared}, threads={self.threads})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis would print the tensors."""
        printer.text(repr(self))

    def with_feeds(self, **feeds: NDArray[Any] | None) -> "Call":
        """Returns the call with other inputs; None takes one away."""
        merged = {k: v for k, v in (self.feeds | feeds).items() if v is not None}
        return replace(self, feeds=merged)

    def with_attributes(self, **attributes: Any) -> "Call":
        """Returns the call of a node with other attributes."""
        merged = {**self.node.attributes, **attributes}
        return replace(self, node=replace(self.node, attributes=merged))

    def attribute(self, name: str, default: Any) -> Any:
        """Returns an attribute of the node."""
        return self.node.attributes.get(name, default)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of query and output."""
        return self.feeds["query"].dtype

    @property
    def batch(self) -> int:
        """B."""
        return int(self.feeds["query"].shape[0])

    @property
    def tokens(self) -> int:
        """S."""
        return int(self.feeds["query"].shape[1])

    @property
    def packed(self) -> bool:
        """Whether query holds keys and values too."""
        return "key" not in self.feeds

    @property
    def head_size(self) -> int:
        """H."""
        heads = self.node.num_heads + 2 * self.node.kv_num_heads * self.packed
        return int(self.feeds["query"].shape[2]) // heads

    @property
    def total(self) -> int:
        """total_sequence_length."""
        return int(self.feeds["total_sequence_length"].reshape(-1)[0])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """T [B], the cache's valid rows after the call."""
        return self.feeds["seqlens_k"].reshape(-1).astype(np.int64) + 1

    @property
    def past_rows(self) -> int:
        """Rows of past_key; 0 where it is absent."""
        return int(self.feeds["past_key"].shape[2]) if "past_key" in self.feeds else 0

    @property
    def appends(self) -> bool:
        """Whether there are new keys and values; layers that share a cache have none."""
        return self.packed or self.feeds["key"].shape[1] > 0

    @property
    def is_prompt(self) -> bool:
        """Whether the call is a first prompt, whose rows begin at 0 and may be padded."""
        return "query_seqlens" not in self.feeds and self.total == self.tokens

    @property
    def is_handed_over(self) -> bool:
        """Whether ours leaves the call to the stock operator, where that exists."""
        only_ours = {"q_norm_weight", "attention_bias"} & self.feeds.keys()
        return self.tokens > MAX_KERNEL_TOKENS and not only_ours

    @property
    def query_lengths(self) -> NDArray[np.int64]:
        """[B] tokens of each sequence whose outputs count; the others are padding."""
        if "query_seqlens" in self.feeds:
            return self.feeds["query_seqlens"].astype(np.int64)
        return np.minimum(self.lengths, self.tokens)

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """P [B], the row of the cache that each sequence's first token has."""
        return (
            np.zeros(self.batch, np.int64) if self.is_prompt else self.lengths - self.query_lengths
        )

    def cache_format(self, kind: str) -> CacheFormat:
        """How rows of the cache are stored.

        Args:
            kind: "key" or "value".
        """
        quantisation = self.attribute(f"{kind[0]}_quant_type", "NONE").upper()
        if quantisation == "NONE":
            return CacheFormat(self.dtype)
        per_channel = (self.node.kv_num_heads, self.head_size)
        shape = (1, 1) if quantisation == "PER_TENSOR" else per_channel
        scale = self.feeds[f"{kind[0]}_scale"].reshape(shape)
        return CacheFormat(self.dtype, self.attribute("kv_cache_bit_width", 0), scale)


@dataclass(frozen=True)
class Outcome:
    """What became of a call."""

    results: list[NDArray[Any]] = field(default_factory=list)
    error: str = ""  # Why it was refused, with the session or with the call
    changed: tuple[str, ...] = ()  # Inputs whose bytes are others than before

    @property
    def accepted(self) -> bool:
        """Whether there are results."""
        return not self.error


_sessions: OrderedDict[str, onnxruntime.InferenceSession] = OrderedDict()


def _session_of(call: Call, op: tuple[str, str]) -> onnxruntime.InferenceSession:
    """Creating a session takes longer than most calls: the latest are kept."""
    types = [(name, array.dtype.name, array.ndim) for name, array in call.feeds.items()]
    key = repr((op, call.node, types, call.threads))
    if key not in _sessions:
        _sessions[key] = call.node.session(call.feeds, op=op, threads=call.threads)
        if len(_sessions) > MAX_SESSIONS:
            _sessions.popitem(last=False)
    _sessions.move_to_end(key)
    return _sessions[key]


def run(call: Call, op: tuple[str, str]) -> Outcome:
    """Runs a call by OURS or by STOCK."""
    try:
        session = _session_of(call, op)
    except REFUSALS as refusal:
        return Outcome(error=str(refusal))
    values = {name: to_value(array) for name, array in call.feeds.items()}
    results: list[NDArray[Any]] = []
    error = ""
    try:
        results = run_values(session, values, shared=call.shared)
    except REFUSALS as refusal:
        error = str(refusal)
    changed = (k for k, v in values.items() if to_array(v).tobytes() != call.feeds[k].tobytes())
    return Outcome(results, error, tuple(changed))


__all__ = ["OURS", "STOCK", "Call", "Outcome", "run"]
