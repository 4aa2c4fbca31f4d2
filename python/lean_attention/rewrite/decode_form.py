"""Other operators' attention in the form of ours.

They differ from GroupQueryAttention in three things: how lengths are told, how tokens are hidden,
and where the cache is appended to. The sequences of their batches have caches of one length, and
padding is hidden by a mask. So every sequence has all the rows there are (``seqlens_k``) and all
query tokens (``query_seqlens``); the mask becomes ``attention_bias``: exact for padding on any
side.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from lean_attention.rewrite.cache_update import LAYOUT_OPS, CacheUpdate, find_update
from lean_attention.rewrite.gqa_node import DOMAIN, MAX_HEADS, OP_TYPE, Input, Output
from lean_attention.rewrite.masks import Mask, MaskError, read_mask
from lean_attention.rewrite.probe import static_size
from lean_attention.rewrite.value_types import ValueTypes

__all__ = [
    "BUILDER",
    "DIFFERENT_VALUES",
    "DecodeForm",
    "DecodeFormRule",
    "RefusalError",
    "appendings",
    "check_types",
    "mask_of",
]

NUM_INPUTS = Input.QUERY_SEQLENS + 1
SUPPORTED_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
META = "lean_attention"
BUILDER = "export it for GroupQueryAttention with onnxruntime-genai's builder"
DIFFERENT_VALUES = (
    "its values have other heads than its keys, in number or in size, and the operator's are alike"
)


class RefusalError(Exception):
    """A node must stay as it is; the message says why, as a clause, and what to do about it."""


@dataclass(frozen=True)
class DecodeForm:
    """What an attention node computes, in our operator's terms.

    B sequences, S query tokens, N query heads, K KV heads, H head size, P rows of the past, T=P+S.

    Attributes:
        query: [B, S, N*H], or [B, N, S, H].
        key: The new rows: [B, S, K*H], or [B, K, S, H].
        value: As ``key``.
        past_key: [B, K, P, H].
        past_value: As ``past_key``.
        present_key: What others read of the cache after, [B, K, T, H]; None where nobody does.
        present_value: As ``present_key``.
        output: [B, S, N*H], or [B, N, S, H].
        mask: What hides keys besides those after the query; None where nothing does.
        num_heads: N.
        kv_num_heads: K.
        dtype: Of all but a boolean mask.
        scale: Of the scores; 0 for one over the root of H.
        softcap: Of the scores; 0 for none.
        reads: Caches as the node itself reads them, [B, N, T, H], where others make them.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    past_key: ir.Value
    past_value: ir.Value
    present_key: ir.Value | None
    present_value: ir.Value | None
    output: ir.Value
    mask: Mask | None
    num_heads: int
    kv_num_heads: int
    dtype: ir.DataType
    scale: float
    softcap: float = 0.0
    reads: tuple[ir.Value, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what the operator does not take, as far as the model tells it.

        Raises:
            RefusalError: Keys and values differ in their heads, the query has other heads than it
                is read with, or the scale or softcap is out of range.
        """
        for key, value in ((self.past_key, self.past_value), (self.key, self.value)):
            axes = (1, 3) if _rank(key) == 4 and _rank(value) == 4 else (-1,)
            sizes = [[static_size(each, axis) for axis in axes] for each in (key, value)]
            for of_key, of_value in zip(*sizes, strict=True):
                if of_key != of_value and None not in (of_key, of_value):
                    raise RefusalError(DIFFERENT_VALUES)
        if self.query.shape is not None and len(self.query.shape) not in (3, 4):
            raise RefusalError("its query has neither 3 nor 4 dimensions")
        if _rank(self.query) == 4 and static_size(self.query, 1) not in (None, self.num_heads):
            raise RefusalError(f"its query has not the {self.num_heads} heads of its keys")
        if self.num_heads > MAX_HEADS:
            raise RefusalError(f"its heads are {self.num_heads}; the operator takes {MAX_HEADS}")
        if not math.isfinite(self.scale):
            raise RefusalError(f"its scale is {self.scale}; correct it")
        if not (math.isfinite(self.softcap) and self.softcap >= 0):
            raise RefusalError(f"its softcap is {self.softcap}; correct it, or set 0 for none")


class DecodeFormRule:
    """A rule for nodes that can be read as a `DecodeForm`."""

    def read(self, node: ir.Node, types: ValueTypes) -> DecodeForm:
        """What a node computes.

        Raises:
            RefusalError: It has no such form.
        """
        raise NotImplementedError

    def last(self, node: ir.Node) -> ir.Node:
        """The node whose output is the attention's."""
        return node

    def check(self, node: ir.Node, types: ValueTypes) -> str | None:
        """Why the node must stay as it is; None where it can be replaced."""
        try:
            self.read(node, types)
        except RefusalError as refusal:
            return str(refusal)
        return None

    def rewrite(self, node: ir.Node, types: ValueTypes, schedule: str) -> None:
        """Puts our operator in the node's place, and what tells its lengths before it."""
        # Read anew: nodes before this one may have been replaced since the check.
        _place(self.last(node), self.read(node, types), schedule)


def check_types(types: ValueTypes, *values: ir.Value | None) -> ir.DataType:
    """The element type that activations and caches share.

    Raises:
        RefusalError: It is not known, or not one that the operator takes.
    """
    dtype = types.common(values)
    if dtype is None:
        raise RefusalError(
            "the model does not tell its element type; run onnx.shape_inference first, or declare "
            "the query's"
        )
    if dtype not in SUPPORTED_TYPES:
        raise RefusalError(
            f"its type is {dtype.name.lower()}; the operator takes float, float16 and bfloat16"
        )
    return dtype


def appendings(key: ir.Value, value: ir.Value, num_heads: int) -> tuple[CacheUpdate, CacheUpdate]:
    """The appendings to the caches that a node reads and others make.

    Args:
        key: What the node reads, with KV heads repeated.
        value: As ``key``.
        num_heads: How many heads it reads there.

    Raises:
        RefusalError: There are none, or they differ in their heads.
    """
    keys, values = find_update(key, num_heads), find_update(value, num_heads)
    if keys is None or values is None:
        raise RefusalError(f"it reads no cache that the model is given; {BUILDER}")
    if keys.sizes != values.sizes:
        raise RefusalError(DIFFERENT_VALUES)
    return keys, values


def mask_of(
    value: ir.Value,
    dtype: ir.DataType,
    types: ValueTypes,
    *,
    causal: bool,
    rows: Mapping[ir.Value, tuple[int, int]] | None = None,
) -> Mask:
    """Reads a mask that many layers may share, once.

    Args:
        value: The mask.
        dtype: The query's type.
        types: Of the model.
        causal: Whether the node itself hides the tokens after the query.
        rows: New rows of keys and values, whose shapes a mask may read: heads and head size.

    Raises:
        RefusalError: It cannot become the operator's bias.
    """
    known: dict[bool, Mask | str] = value.meta.setdefault(META, {})
    if causal not in known:
        try:
            known[causal] = read_mask(value, causal=causal, rows=rows)
        except MaskError as error:
            known[causal] = str(error)
    mask = known[causal]
    if isinstance(mask, str):
        raise RefusalError(f"{mask}; {BUILDER}")
    if not mask.boolean and (found := types.common([value])) != dtype:
        name = "unknown" if found is None else found.name.lower()
        raise RefusalError(f"its mask is {name} and its query {dtype.name.lower()}")
    return mask


def _place(node: ir.Node, form: DecodeForm, schedule: str) -> None:
    """Puts our operator in a node's place, and removes what nobody needs any more.

    Args:
        node: The node.
        form: What it computes.
        schedule: The operator's ``schedule`` attribute.
    """
    nodes = _Nodes(node)
    query, key, value = (nodes.merge_heads(v) for v in (form.query, form.key, form.value))
    bias = None if form.mask is None else nodes.bias(form.mask, form.dtype)
    inputs: list[ir.Value | None] = [None] * NUM_INPUTS
    inputs[Input.QUERY], inputs[Input.KEY], inputs[Input.VALUE] = query, key, value
    inputs[Input.PAST_KEY], inputs[Input.PAST_VALUE] = form.past_key, form.past_value
    lengths = nodes.lengths(query, bias, form.past_key)
    inputs[Input.SEQLENS_K], inputs[Input.TOTAL_SEQUENCE_LENGTH] = lengths
    inputs[Input.ATTENTION_BIAS] = bias
    if bias is not None:
        # Without a bias long prompts are the stock operator's, of which older ones lack the input.
        inputs[Input.QUERY_SEQLENS] = nodes.query_lengths(query, bias)
    attributes: dict[str, Any] = {
        "num_heads": form.num_heads,
        "kv_num_heads": form.kv_num_heads,
        "do_rotary": 0,
        "scale": form.scale,
        "softcap": form.softcap,
    }
    if schedule != "auto":
        attributes["schedule"] = schedule
    made = ir.node(
        OP_TYPE, inputs, attributes=attributes, domain=DOMAIN, num_outputs=3, name=node.name
    )
    nodes.add(made)
    _declare_outputs(made, form, query)
    output = made.outputs[Output.OUTPUT]
    if _rank(form.output) == 4:
        output = nodes.split_heads(output, form)
    olds = [form.output, form.present_key, form.present_value]
    for old, new in zip(olds, [output, *made.outputs[1:]], strict=True):
        _take_over(old, new)
    inputs_before = [value for value in node.inputs if value is not None]
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    _remove_unused(inputs_before)
    # What is left of the caches may be left for its shape alone.
    for cache in (*form.reads, form.present_key, form.present_value):
        if cache is not None and cache is not form.output and cache.producer() is not None:
            _free_of_shapes(cache, form)
            _remove_unused([cache])


class _Nodes:
    """Makes nodes before another one."""

    def __init__(self, before: ir.Node) -> None:
        graph = before.graph
        assert graph is not None
        self._graph, self._before = graph, before
        # Values that the nodes after share.
        self._shared: dict[object, Any] = graph.meta.setdefault(META, {})
        self._prefix = f"{before.name or before.outputs[0].name}/lean"
        self._count = 0

    def add(self, node: ir.Node) -> None:
        self._graph.insert_before(self._before, node)
        for output in node.outputs:
            if output.name is None:
                output.name = f"{self._prefix}/{node.op_type}_{self._count}"
                self._count += 1
        if not node.name:
            node.name = f"{node.outputs[0].name}/node"

    def make(
        self, op: str, inputs: list[ir.Value], dtype: ir.DataType | None = None, **attributes: Any
    ) -> ir.Value:
        made = ir.node(op, inputs, attributes=attributes)
        self.add(made)
        if dtype is not None:
            made.outputs[0].type = ir.TensorType(dtype)
        return made.outputs[0]

    def constant(self, number: object, dtype: Any = np.int64) -> ir.Value:
        return self.make("Constant", [], value=ir.tensor(np.array(number, dtype)))

    def merge_heads(self, value: ir.Value) -> ir.Value:
        """[B, heads, S, H] to [B, S, heads * H]."""
        if _rank(value) == 3:
            return value
        producer = value.producer()
        if (
            producer is not None
            and producer.op_type == "Transpose"
            and list(producer.attributes.get_ints("perm", [])) == [0, 2, 1, 3]
            and producer.inputs[0] is not None
        ):
            swapped = producer.inputs[0]
        else:
            swapped = self.make("Transpose", [value], value.dtype, perm=[0, 2, 1, 3])
        return self.make("Reshape", [swapped, self.constant([0, 0, -1])], value.dtype)

    def split_heads(self, value: ir.Value, form: DecodeForm) -> ir.Value:
        """[B, S, N*H] to [B, N, S, H]."""
        shape = self.constant([0, 0, form.num_heads, -1])
        split = self.make("Reshape", [value, shape], form.dtype)
        return self.make("Transpose", [split], form.dtype, perm=[0, 2, 1, 3])

    def bias(self, mask: Mask, dtype: ir.DataType) -> ir.Value:
        """The mask as [B or 1, N or 1, S, T] of the query's type."""
        if (mask.value, "bias") in self._shared:
            bias: ir.Value = self._shared[mask.value, "bias"]
            return bias
        bias = mask.value
        if mask.boolean:
            numpy_type = dtype.numpy()
            seen = self.constant(0, numpy_type)
            lowest = np.float32(-3e38) if dtype != ir.DataType.FLOAT16 else np.float16(-65504)
            bias = self.make("Where", [bias, seen, self.constant(lowest, numpy_type)], dtype)
        if mask.rank < 4:
            bias = self.make("Expand", [bias, self.constant([1] * 4)], dtype)
        self._shared[mask.value, "bias"] = bias
        return bias

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """A dimension, [1]. Shape and Gather are the same in every version of ONNX."""
        shape = self.make("Shape", [value], ir.DataType.INT64)
        return self.make("Gather", [shape, self.constant([axis])], ir.DataType.INT64, axis=0)

    def lengths(
        self, query: ir.Value, bias: ir.Value | None, past: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """``seqlens_k``, [B], and ``total_sequence_length``, [1]: the same for every sequence."""
        if bias is not None and (bias, "lengths") in self._shared:
            lengths: tuple[ir.Value, ir.Value] = self._shared[bias, "lengths"]
            return lengths
        if bias is not None:
            long_total = self.size(bias, 3)
        else:
            long_total = self.make("Add", [self.size(past, 2), self.size(query, 1)])
        int32 = ir.DataType.INT32
        total = self.make("Cast", [long_total], int32, to=int32)
        last = self.make("Sub", [total, self.constant([1], np.int32)], int32)
        lengths = self.make("Expand", [last, self.size(query, 0)], int32), total
        if bias is not None:
            self._shared[bias, "lengths"] = lengths
        return lengths

    def query_lengths(self, query: ir.Value, bias: ir.Value) -> ir.Value:
        """``query_seqlens``, [B]: all tokens of every sequence."""
        if (bias, "query_lengths") in self._shared:
            shared: ir.Value = self._shared[bias, "query_lengths"]
            return shared
        int32 = ir.DataType.INT32
        tokens = self.make("Cast", [self.size(bias, 2)], int32, to=int32)
        lengths = self.make("Expand", [tokens, self.size(query, 0)], int32)
        self._shared[bias, "query_lengths"] = lengths
        return lengths


def _free_of_shapes(cache: ir.Value, form: DecodeForm) -> None:
    """Tells those who ask for a cache's shape, so that it need not be made for them."""
    producer = cache.producer()
    heads = form.num_heads if cache in form.reads else form.kv_num_heads
    if producer is None or producer.op_type not in (*LAYOUT_OPS, "Concat") or _rank(form.key) != 4:
        return
    for user, _ in list(cache.uses()):
        if user.op_type != "Shape" or user.attributes:
            continue
        nodes = _Nodes(user)
        total = nodes.make("Add", [nodes.size(form.past_key, 2), nodes.size(form.key, 2)])
        sizes = [nodes.size(form.key, 0), nodes.constant([heads]), total, nodes.size(form.key, 3)]
        shape = nodes.make("Concat", sizes, ir.DataType.INT64, axis=0)
        _take_over(user.outputs[0], shape)
        assert user.graph is not None
        user.graph.remove(user, safe=True)


def _declare_outputs(made: ir.Node, form: DecodeForm, query: ir.Value) -> None:
    """Writes types and shapes, which ONNX Runtime cannot infer through a custom operator."""
    sizes = list(query.shape) if query.shape is not None and _rank(query) == 3 else [None] * 3
    if _rank(form.output) == 3 and form.output.shape is not None:
        sizes = list(form.output.shape)
    past = form.past_key.shape
    batch, width = (None, None) if past is None or _rank(form.past_key) != 4 else (past[0], past[3])
    shapes = [sizes, *([[batch, form.kv_num_heads, None, width]] * 2)]
    for output, shape in zip(made.outputs, shapes, strict=True):
        output.type, output.shape = ir.TensorType(form.dtype), ir.Shape(shape)


def _take_over(old: ir.Value | None, new: ir.Value) -> None:
    """Gives a value's readers and its name to another one.

    Of a cache, only the model's output moves: other readers of the old one may be what the new one
    is computed from.
    """
    if old is None:
        return
    name = old.name
    producer = old.producer()
    if producer is not None and producer.op_type == "Concat":
        if old.is_graph_output():
            new.shape, new.type = old.shape, old.type
            _replace_graph_output(old, new)
            old.name, new.name = f"{name}/stock", name
        return
    new.shape, new.type = old.shape or new.shape, old.type or new.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name, new.name = None, name


def _replace_graph_output(old: ir.Value, new: ir.Value) -> None:
    producer = old.producer()
    assert producer is not None
    assert isinstance(producer.graph, ir.Graph)
    outputs = producer.graph.outputs
    for index, output in enumerate(outputs):
        if output is old:
            outputs[index] = new


def _remove_unused(values: list[ir.Value]) -> None:
    """Removes nodes that nobody reads, upwards."""
    while values:
        value = values.pop()
        node = value.producer()
        if node is None or node.graph is None:
            continue
        if any(out.uses() or out.is_graph_output() for out in node.outputs):
            continue
        values.extend(item for item in node.inputs if item is not None)
        node.graph.remove(node, safe=True)


def _rank(value: ir.Value) -> int:
    # Only where heads are apart a shape may be unknown: see softmax_attention.py.
    return 4 if value.shape is None else len(value.shape)
