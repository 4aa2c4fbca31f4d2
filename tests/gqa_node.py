"""One attention node as a model, run by ONNX Runtime: ours and the stock operator's alike."""

import ctypes
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import lean_attention
from reference import CacheFormat, Step, attention

INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm_weight",
    "k_norm_weight",
    "query_seqlens",
)
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FLOAT8: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)
ONNX_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    BFLOAT16: TensorProto.BFLOAT16,
    FLOAT8: TensorProto.FLOAT8E4M3FN,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}
OURS = ("LeanGroupQueryAttention", "com.leanattention")
STOCK = ("GroupQueryAttention", "com.microsoft")

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Node:
    """A model of one node; inputs that `feeds` lacks are absent."""

    num_heads: int
    kv_num_heads: int
    attributes: dict[str, Any] = field(default_factory=dict)

    def session(
        self,
        feeds: Feeds,
        *,
        op: tuple[str, str] = OURS,
        threads: int = 2,
        log_severity_level: int = 4,
        provider: str = "CPUExecutionProvider",
        provider_options: dict[str, str] | None = None,
    ) -> onnxruntime.InferenceSession:
        """Creates a session whose inputs have the feeds' types and any shape of their rank."""
        op_type, domain = op
        names = [name if name in feeds else "" for name in INPUTS]
        while not names[-1]:
            names.pop()
        kind = ONNX_TYPES[feeds["query"].dtype]
        cache_kind = ONNX_TYPES[feeds.get("past_key", feeds["query"]).dtype]
        outputs = ["output", "present_key", "present_value"]
        attributes = {**self.attributes}
        if op == STOCK:
            attributes.pop("schedule", None)
        node = helper.make_node(
            op_type,
            names,
            outputs,
            name="attention",
            domain=domain,
            num_heads=self.num_heads,
            kv_num_heads=self.kv_num_heads,
            **attributes,
        )
        graph = helper.make_graph(
            [node],
            "attention",
            [
                helper.make_tensor_value_info(name, ONNX_TYPES[array.dtype], [None] * array.ndim)
                for name, array in feeds.items()
            ],
            [
                helper.make_tensor_value_info("output", kind, [None] * 3),
                helper.make_tensor_value_info("present_key", cache_kind, [None] * 4),
                helper.make_tensor_value_info("present_value", cache_kind, [None] * 4),
            ],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = log_severity_level
        # Pools that spin would take the cores from the session that is compared with this one.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        lean_attention.register_custom_ops(options)
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=[(provider, provider_options or {})]
        )

    def run(
        self,
        feeds: Feeds,
        *,
        op: tuple[str, str] = OURS,
        threads: int = 2,
        shared: bool = False,
    ) -> list[NDArray[Any]]:
        """Returns output, present_key, present_value; see `run_session`."""
        return run_session(self.session(feeds, op=op, threads=threads), feeds, shared=shared)


def to_value(array: NDArray[Any]) -> onnxruntime.OrtValue:
    """Returns a tensor that holds a copy of an array."""
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.copy(), ONNX_TYPES[array.dtype]
    )


def to_array(value: onnxruntime.OrtValue) -> NDArray[Any]:
    """Returns a copy of a tensor; its own `numpy` refuses bfloat16 and float8."""
    array: NDArray[Any]
    foreign = {TensorProto.BFLOAT16: BFLOAT16, TensorProto.FLOAT8E4M3FN: FLOAT8}
    if value.element_type() not in foreign:
        array = value.numpy().copy()
        return array
    array = np.empty(value.shape(), foreign[value.element_type()])
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def run_session(
    session: onnxruntime.InferenceSession, feeds: Feeds, *, shared: bool = False
) -> list[NDArray[Any]]:
    """Runs a node's session.

    Args:
        session: Of `Node.session`.
        feeds: Its inputs; left untouched.
        shared: Whether one buffer is bound as past and as present, as generators do.

    Returns:
        output [B, S, N * H], present_key and present_value [B, K, C, H] (of 4-bit integers H / 2).
    """
    return run_values(session, {k: to_value(v) for k, v in feeds.items()}, shared=shared)


def run_values(
    session: onnxruntime.InferenceSession,
    values: dict[str, onnxruntime.OrtValue],
    *,
    shared: bool = False,
) -> list[NDArray[Any]]:
    """Runs a node's session, which may change the values of a shared buffer; see `run_session`."""
    if not shared:
        return [to_array(value) for value in session.run_with_ort_values(None, values)]
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("output")
    for kind in ("key", "value"):
        binding.bind_ortvalue_output(f"present_{kind}", values[f"past_{kind}"])
    session.run_with_iobinding(binding)
    return [to_array(value) for value in binding.get_outputs()]


@dataclass(frozen=True)
class Case:
    """Random tensors for one call, in the operator's form and in the reference's."""

    node: Node
    feeds: Feeds
    step: Step


def _draw_format(
    rng: np.random.Generator,
    dtype: type,
    cache: str,
    scale_shape: tuple[int, ...],
    magnitude: float,
) -> CacheFormat:
    """Draws the scales of a quantised cache, such that a few of its rows' values saturate."""
    if not cache:
        return CacheFormat(np.dtype(dtype))
    bits, largest = {"int8": (8, 3.0 / 127), "int4": (4, 2.0 / 7), "float8": (8, 3.0 / 448)}[cache]
    scale = magnitude * largest * rng.uniform(0.7, 1.3, scale_shape)
    return CacheFormat(np.dtype(dtype), bits, scale.astype(np.float32), cache == "float8")


def make_case(
    *,
    num_heads: int,
    kv_num_heads: int,
    head_size: int,
    seqlens_k: list[int],
    capacity: int,
    dtype: type = np.float32,
    cache: str = "",
    quantisation: str = "PER_TENSOR",
    tokens: int = 1,
    queries: list[int] | None = None,
    new_rows: bool = True,
    norm: bool = False,
    position_ids: list[list[int]] | None = None,
    packed: bool = False,
    rotary_half: int = 0,
    interleaved: bool = False,
    bias: NDArray[Any] | None = None,
    sink: NDArray[Any] | None = None,
    poison: bool = True,
    magnitude: float = 1.0,
    seed: int = 0,
    **attributes: Any,
) -> Case:
    """Draws a decode step whose past has `capacity` rows, those past the end poisoned.

    Of a quantised cache the scales of keys and values differ. Several tokens of which none has a
    past are a first prompt.

    Args:
        num_heads: N.
        kv_num_heads: K.
        head_size: H.
        seqlens_k: [B] valid rows after this step, less one.
        capacity: C.
        dtype: np.float32, np.float16 or ml_dtypes.bfloat16.
        cache: "int8", "int4", "float8" or "": as the activations.
        quantisation: Of a quantised cache: "PER_TENSOR" or "PER_CHANNEL".
        tokens: S.
        queries: query_seqlens [B]; None: not given, and tokens past a sequence's end are padding.
        new_rows: Whether there are new keys and values; otherwise the past has them already.
        norm: Whether queries and keys are normalised.
        position_ids: [B][S]; None: not given.
        packed: Whether Q, K and V come in one input.
        rotary_half: Rotated pairs; 0: no rotary embedding.
        interleaved: The rotary layout.
        bias: attention_bias.
        sink: head_sink [N].
        poison: Whether cache rows at or past each sequence's past hold NaN and infinities, or the
            extreme integers.
        magnitude: Standard deviation of queries and keys.
        seed: Of the random generator.
        **attributes: Further attributes of the node.
    """
    rng = np.random.default_rng(seed)
    batch = len(seqlens_k)

    def draw(*shape: int, scale: float = 1.0) -> NDArray[Any]:
        return (scale * rng.standard_normal(shape)).astype(dtype)

    query = draw(batch, tokens, num_heads, head_size, scale=magnitude)
    rows = tokens if new_rows else 0
    key = draw(batch, rows, kv_num_heads, head_size, scale=magnitude)
    value = draw(batch, rows, kv_num_heads, head_size)
    past: list[NDArray[Any]] = [
        draw(batch, kv_num_heads, capacity, head_size, scale=scale) for scale in (magnitude, 1.0)
    ]
    scale_shape = (1, 1) if quantisation == "PER_TENSOR" else (kv_num_heads, head_size)
    formats = [_draw_format(rng, dtype, cache, scale_shape, size) for size in (magnitude, 1.0)]
    bits = formats[0].bits
    if bits:
        past = [
            stored.store(drawn.swapaxes(1, 2)).swapaxes(1, 2).copy()
            for stored, drawn in zip(formats, past, strict=True)
        ]
        attributes |= {"k_quant_type": quantisation, "v_quant_type": quantisation}
        attributes["kv_cache_bit_width"] = bits
    lengths = np.array(seqlens_k, np.int64) + 1
    counts = np.minimum(tokens, lengths) if queries is None else np.array(queries, np.int64)
    total = max(tokens, *lengths)
    if poison:
        bad = {
            "": [np.nan, np.inf, -np.inf],
            "int8": [127, -128],
            "int4": [0xFF, 0x0F, 0],
            "float8": [np.nan],
        }[cache]
        for cached in past:
            for b, filled in enumerate(lengths - counts if new_rows else lengths):
                tail = cached[b, :, filled:]
                tail[...] = np.resize(np.array(bad, cached.dtype), tail.shape)

    flat = [
        array.reshape(*array.shape[:2], array.shape[2] * head_size) for array in (query, key, value)
    ]
    feeds: Feeds = {"query": np.concatenate(flat, axis=-1) if packed else flat[0]}
    if not packed:
        feeds |= {"key": flat[1], "value": flat[2]}
    feeds |= {
        "past_key": past[0],
        "past_value": past[1],
        "seqlens_k": np.array(seqlens_k, np.int32),
        "total_sequence_length": np.array(total, np.int32),
    }
    if queries is not None:
        feeds["query_seqlens"] = np.array(queries, np.int32)
    if norm:
        for name in ("q_norm_weight", "k_norm_weight"):
            feeds[name] = draw(head_size, scale=0.3) + np.array(1, dtype)
    if bits:
        shape = (1,) if quantisation == "PER_TENSOR" else (1, kv_num_heads, 1, head_size)
        for name, stored in zip(("k_scale", "v_scale"), formats, strict=True):
            feeds[name] = np.array(stored.scale).reshape(shape)
    cos: NDArray[Any] | None = None
    sin: NDArray[Any] | None = None
    if rotary_half:
        angles = np.arange(capacity)[:, None] / 100.0 ** (np.arange(rotary_half) / rotary_half)
        cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
        feeds |= {"cos_cache": cos, "sin_cache": sin}
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(interleaved)}
    positions = None
    if position_ids is not None:
        positions = feeds["position_ids"] = np.array(position_ids, np.int64)
        if (
            total == tokens > 1 and queries is None
        ):  # A first prompt's first element is every first token's.
            positions = positions[:1, :1] + np.arange(tokens) + np.zeros((batch, 1), np.int64)
    if bias is not None:
        feeds["attention_bias"] = bias.astype(dtype)
    if sink is not None:
        feeds["head_sink"] = sink.astype(dtype)

    def wide(array: NDArray[Any] | None) -> Any:
        return None if array is None else array.astype(np.float64)

    step = Step(
        query=wide(query),
        key=wide(key),
        value=wide(value),
        past_key=past[0] if bits else wide(past[0]),
        past_value=past[1] if bits else wide(past[1]),
        lengths=lengths,
        queries=counts,
        key_format=formats[0],
        value_format=formats[1],
        q_norm=wide(feeds.get("q_norm_weight")),
        k_norm=wide(feeds.get("k_norm_weight")),
        cos=wide(cos),
        sin=wide(sin),
        positions=positions,
        interleaved=interleaved,
        scale=attributes.get("scale"),
        softcap=attributes.get("softcap", 0.0),
        window=attributes.get("local_window_size", -1),
        bias=wide(feeds.get("attention_bias")),
        sink=wide(feeds.get("head_sink")),
        smooth_softmax=bool(attributes.get("smooth_softmax", 0)),
    )
    return Case(Node(num_heads, kv_num_heads, attributes), feeds, step)


def needs_stock(major: int, minor: int) -> pytest.MarkDecorator:
    """Skips a comparison with a stock operator that is older than the feature compared."""
    found = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    return pytest.mark.skipif(
        found < (major, minor), reason=f"the stock operator has this since {major}.{minor}"
    )


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    return {np.dtype(np.float32): 2.0**-24, np.dtype(np.float16): 2.0**-11, BFLOAT16: 2.0**-8}[
        dtype
    ]


def _mean_magnitude(step: Step) -> NDArray[np.float64]:
    """Returns what the outputs would be if all values were positive."""
    past = step.value_format.load(step.past_value)
    values = {"value": np.abs(step.value), "past_value": np.abs(past)}
    return attention(replace(step, **values, value_format=CacheFormat())).output


def _assert_close(
    found: NDArray[Any],
    wanted: NDArray[Any],
    case: Case,
    errors: int,
    rounds_weights: bool = False,
) -> None:
    """Compares outputs, of which `errors` come from a kernel.

    Each may be off by its own rounding, by 2e-6 for the arithmetic in float32 on values of size 4
    and scores below 8 (with a bias they reach 16), and, where rotated queries are rounded to 16
    bits first, as the stock operator does, by what that moves the scores: a few roundings. Where
    the softmax's weights are rounded to 16 bits, for matrix instructions, each value may count for
    a rounding more or less. Padding needs only be finite.
    """
    step, dtype = case.step, case.feeds["query"].dtype
    unit = unit_roundoff(dtype)
    arithmetic = 2e-6 if step.bias is None else 4e-6
    moved = 4 * unit if step.cos is not None and dtype.itemsize == 2 else 0
    valid = np.arange(found.shape[1]) < step.queries[:, None]
    weights = unit * _mean_magnitude(step)[valid] if rounds_weights else 0.0
    np.testing.assert_array_less(
        np.abs(found[valid].astype(np.float64) - wanted[valid].astype(np.float64)),
        errors * (1.01 * unit * np.abs(wanted[valid]) + arithmetic + moved + weights),
    )
    assert np.isfinite(found[~valid].astype(np.float32)).all()


def assert_matches_reference(
    case: Case, results: list[NDArray[Any]], *, rounds_weights: bool = False
) -> None:
    """Compares a node's results with the reference's: the output, and every row that is valid.

    Padding must be zero.

    Integers of a cache must be equal; numbers may differ by their last bit.

    Args:
        case: What was run.
        results: output, present_key and present_value.
        rounds_weights: Whether the kernel rounds the softmax's weights to the type of the tensors.
    """
    step, dtype = case.step, case.feeds["query"].dtype
    expected = attention(step)
    assert results[0].dtype == dtype
    _assert_close(results[0], expected.output, case, errors=1, rounds_weights=rounds_weights)
    assert not results[0][np.arange(results[0].shape[1]) >= step.queries[:, None]].any()
    rounding = 0.0 if step.key_format.bits else 2 * unit_roundoff(dtype)
    # A norm adds a few roundings of float32.
    extra = 0.0 if step.k_norm is None or step.key_format.bits else 8 * 2.0**-24
    for present, wanted, allowed in zip(
        results[1:],
        (expected.present_key, expected.present_value),
        (rounding + extra, rounding),
        strict=True,
    ):
        for b, length in enumerate(step.lengths):
            np.testing.assert_allclose(
                present[b, :, :length].astype(np.float64),
                wanted[b, :, :length].astype(np.float64),
                rtol=allowed,
                atol=allowed,
            )


def assert_matches_stock(case: Case, results: list[NDArray[Any]], *, shared: bool = False) -> None:
    """Compares a node's results with the stock operator's; see `assert_matches_others`."""
    assert_matches_others(case, results, case.node.run(case.feeds, op=STOCK, shared=shared))


def assert_matches_others(
    case: Case, results: list[NDArray[Any]], others: list[NDArray[Any]]
) -> None:
    """Compares results with those of another implementation: the caches bit for bit, tails too.

    Of a sequence with padding only the valid rows count. Rotated keys that are not stored as
    integers may differ by their last bit.
    """
    step = case.step
    output, *presents = others
    _assert_close(results[0], output, case, errors=2)
    for found, wanted in zip(results[1:], presents, strict=True):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        is_rotated = wanted is presents[0] and step.cos is not None
        rounding = 2 * unit_roundoff(output.dtype)
        for b, (length, queries) in enumerate(zip(step.lengths, step.queries, strict=True)):
            rows = slice(length if queries < output.shape[1] else None)
            if is_rotated and not step.key_format.bits:
                np.testing.assert_allclose(
                    found[b, :, rows], wanted[b, :, rows], rtol=rounding, atol=rounding
                )
            else:
                assert found[b, :, rows].tobytes() == wanted[b, :, rows].tobytes()
