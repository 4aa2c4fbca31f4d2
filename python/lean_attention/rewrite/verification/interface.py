"""What a model's inputs and outputs are to its attention, read from its graph."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx_ir as ir

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.gqa_node import (
    ATTENTION_OPS,
    Input,
    Output,
    head_size,
    heads,
    number,
)
from lean_attention.rewrite.graph_walk import scopes
from lean_attention.rewrite.verification.trace import ancestors, constant_rows, made_by, origin
from lean_attention.runtime.reasons import first_line

__all__ = ["Cache", "Feed", "Interface", "Role", "read_interface"]


class Role(Enum):
    """What an input is for; decides its shape and its content."""

    TOKEN_IDS = "token ids"
    ATTENTION_MASK = "attention mask"
    POSITION_IDS = "position ids"
    PAST = "past"
    SEQLENS_K = "lengths"
    TOTAL_SEQUENCE_LENGTH = "total length"
    QUERY_SEQLENS = "query lengths"
    ATTENTION_BIAS = "bias"
    ROTARY_TABLE = "rotary table"
    CACHE_SCALE = "scale of a quantised cache"
    FLAG = "flag"
    NUMBERS = "numbers"
    UNUSED = "unused"


OF_INPUT = {
    Input.PAST_KEY: Role.PAST,
    Input.PAST_VALUE: Role.PAST,
    Input.SEQLENS_K: Role.SEQLENS_K,
    Input.TOTAL_SEQUENCE_LENGTH: Role.TOTAL_SEQUENCE_LENGTH,
    Input.COS_CACHE: Role.ROTARY_TABLE,
    Input.SIN_CACHE: Role.ROTARY_TABLE,
    Input.POSITION_IDS: Role.POSITION_IDS,
    Input.ATTENTION_BIAS: Role.ATTENTION_BIAS,
    Input.K_SCALE: Role.CACHE_SCALE,
    Input.V_SCALE: Role.CACHE_SCALE,
    Input.QUERY_SEQLENS: Role.QUERY_SEQLENS,
}
PARTS = {Output.PRESENT_KEY: "present_key", Output.PRESENT_VALUE: "present_value"}
# Where a node has the cosines of each position.
TABLES: dict[tuple[str, str], int] = {
    ("com.microsoft", "RotaryEmbedding"): 2,
    ("", "RotaryEmbedding"): 1,
    **dict.fromkeys(ATTENTION_OPS, Input.COS_CACHE),
}
# No batch and no rotary table is longer.
MAX_ROWS = 1 << 20
GATHERS = {("", "Gather"), ("com.microsoft", "GatherBlockQuantized")}


@dataclass(frozen=True)
class Feed:
    """An input.

    Attributes:
        name: Its name.
        role: What it is for.
        dtype: NumPy's type of its elements.
        shape: Sizes, or names of sizes, or None for one that is not declared.
        bound: Whole numbers must be below this; None for all other inputs.
    """

    name: str
    role: Role
    dtype: np.dtype
    shape: tuple[int | str | None, ...]
    bound: int | None = None


@dataclass(frozen=True)
class Cache:
    """A cache that goes in and comes out, longer.

    Attributes:
        part: ``present_key`` or ``present_value``.
        past: The input's name; None where the node has no past, or computes it.
        present: The output's name.
    """

    part: str
    past: str | None
    present: str


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a model.

    Attributes:
        feeds: All inputs, in order.
        outputs: The names of all outputs, in order.
        caches: Those outputs that are caches.
        has_attention: Whether any node attends as GroupQueryAttention does, stock or ours.
        rotary_rows: Rows of the shortest table of positions, which bound every length; None
            without.
        window: The widest sliding window; None without.
    """

    feeds: tuple[Feed, ...]
    outputs: tuple[str, ...]
    caches: tuple[Cache, ...]
    has_attention: bool
    rotary_rows: int | None
    window: int | None


def read_interface(proto: onnx.ModelProto) -> Interface:
    """Reads what a model takes and gives.

    Args:
        proto: The model; its weights are not looked at.

    Raises:
        LeanAttentionError: An input whose content cannot be chosen; the message names it.
    """
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except (RuntimeError, onnx.checker.ValidationError) as error:
            raise LeanAttentionError(
                f"the model's functions cannot be inlined ({first_line(error)}), so it cannot be "
                "verified; correct them, or pass --no-verify"
            ) from error
    model = ir.from_proto(proto)
    every = [node for scope in scopes(model) for node in scope.graph]
    attention = [node for node in every if (node.domain, node.op_type) in ATTENTION_OPS]
    roles = _attention_roles(attention)
    bounds: dict[ir.Value, int] = {}
    for value, rows in _gathered(every):
        bounds[value] = min(rows, bounds.get(value, rows))
    counted = ancestors(
        value
        for node in attention
        for index in (Input.SEQLENS_K, Input.TOTAL_SEQUENCE_LENGTH)
        for value in _input(node, index)
    )
    sizes = {
        origin(past): _cache_sizes(node)
        for node in attention
        for index in (Input.PAST_KEY, Input.PAST_VALUE)
        for past in _input(node, index)
    }
    feeds = []
    for value in model.graph.inputs:
        if value.const_value is not None:
            continue
        role = roles.get(value) or _role(value, value in bounds, value in counted)
        feed = _feed(value, role, bounds.get(value))
        feeds.append(_sized(feed, sizes[value]) if value in sizes else feed)
    tables = [feed.bound for feed in feeds if feed.role == Role.POSITION_IDS]
    for node in every:
        if (index := TABLES.get((node.domain, node.op_type))) is not None:
            tables += [constant_rows(value) for value in _input(node, index)]
    windows = [number(node, "local_window_size", -1) for node in attention]
    return Interface(
        feeds=tuple(feeds),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        caches=tuple(_caches(model)),
        has_attention=bool(attention),
        rotary_rows=min((rows for rows in tables if rows is not None), default=None),
        window=max((int(window) for window in windows if window > 0), default=None),
    )


def _input(node: ir.Node, index: int) -> list[ir.Value]:
    value = node.inputs[index] if index < len(node.inputs) else None
    return [] if value is None else [value]


def _attention_roles(attention: list[ir.Node]) -> dict[ir.Value, Role]:
    """Roles of the values that go straight into attention nodes."""
    roles: dict[ir.Value, Role] = {}
    for node in attention:
        for index, role in OF_INPUT.items():
            for value in _input(node, index):
                roles.setdefault(origin(value), role)
    return roles


def _gathered(nodes: list[ir.Node]) -> Iterator[tuple[ir.Value, int]]:
    """Values that choose rows of a table, and the table's rows."""
    for node in nodes:
        if (node.domain, node.op_type) in GATHERS and len(node.inputs) > 1:
            table, indices = node.inputs[:2]
            axis = node.attributes.get("axis" if node.domain == "" else "gather_axis")
            if table is not None and indices is not None and (axis is None or axis.value == 0):
                rows = constant_rows(table)
                if rows is not None:
                    yield origin(indices), rows


def _role(value: ir.Value, gathers: bool, counted: bool) -> Role:
    """The role of an input that no attention node takes as it is."""
    name, dtype = value.name or "", value.dtype
    if not value.uses() and not value.is_graph_output():
        return Role.UNUSED
    if dtype == ir.DataType.BOOL and value.shape is not None and value.shape.rank() == 0:
        return Role.FLAG
    if dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL):
        if "position" in name:
            return Role.POSITION_IDS
        if gathers:
            return Role.TOKEN_IDS
        if counted or "mask" in name:
            return Role.ATTENTION_MASK
    elif dtype is not None and dtype.is_floating_point():
        return Role.NUMBERS
    raise LeanAttentionError(
        f"cannot tell what to feed the input {name!r} ({_declared(value)}) to verify the model; "
        "--no-verify writes it unverified"
    )


def _feed(value: ir.Value, role: Role, bound: int | None) -> Feed:
    dtype = None if value.dtype is None else value.dtype.numpy()
    if value.shape is None or dtype is None:
        raise LeanAttentionError(
            f"the input {value.name!r} declares no shape or type, so the model cannot be verified; "
            "declare them, or pass --no-verify"
        )
    # Some exporters write -1 for a size that is not known.
    shape = tuple(
        (size if size >= 0 else None) if isinstance(size, int) else size.value
        for size in value.shape
    )
    if 0 in shape[:2] or 0 in shape[3:]:
        raise LeanAttentionError(
            f"the input {value.name!r} has the fixed shape {list(shape)} without any element, so "
            "there is nothing to run"
        )
    if shape and isinstance(shape[0], int) and shape[0] > MAX_ROWS:
        raise LeanAttentionError(
            f"the input {value.name!r} has a fixed batch of {shape[0]} sequences, too many to run"
        )
    return Feed(value.name or "", role, np.dtype(dtype), shape, bound)


def _cache_sizes(node: ir.Node) -> tuple[int, int | None]:
    """KV heads and width of a node's cache; the width as far as the model tells it."""
    kv_num_heads, size = heads(node)[1], head_size(node)
    if size is not None and number(node, "kv_cache_bit_width", 0) == 4:
        size = (size + 1) // 2
    return kv_num_heads, size


def _sized(feed: Feed, sizes: tuple[int, int | None]) -> Feed:
    """A cache whose heads and width are what its node says, where it only names them."""
    if len(feed.shape) != 4:
        return feed
    batch, kv_num_heads, rows, width = feed.shape
    if not isinstance(kv_num_heads, int):
        kv_num_heads = sizes[0]
    if not isinstance(width, int) and sizes[1] is not None:
        width = sizes[1]
    return replace(feed, shape=(batch, kv_num_heads, rows, width))


def _caches(model: ir.Model) -> Iterator[Cache]:
    for value in model.graph.outputs:
        made = made_by(value)
        if made is None:
            continue
        node, index = made
        if (node.domain, node.op_type) in ATTENTION_OPS and index in tuple(PARTS):
            output = Output(index)
            taken = Input.PAST_KEY if output is Output.PRESENT_KEY else Input.PAST_VALUE
            pasts = [origin(past) for past in _input(node, taken)]
            past = pasts[0].name if pasts and pasts[0].is_graph_input() else None
            yield Cache(PARTS[output], past, value.name or "")


def _declared(value: ir.Value) -> str:
    shape = "without a shape" if value.shape is None else str(value.shape)
    return f"{'of no type' if value.dtype is None else value.dtype.name.lower()}, {shape}"
