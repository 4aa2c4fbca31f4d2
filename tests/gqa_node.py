"""One attention node as a model, run by ONNX Runtime: ours and the stock operator's alike."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

import lean_attention
from reference import Step

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
ONNX_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
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
        self, feeds: Feeds, *, op: tuple[str, str] = OURS, threads: int = 2
    ) -> onnxruntime.InferenceSession:
        """Creates a session whose inputs have the feeds' types and any shape of their rank."""
        op_type, domain = op
        names = [name if name in feeds else "" for name in INPUTS]
        while not names[-1]:
            names.pop()
        kind = ONNX_TYPES[feeds["query"].dtype]
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
                helper.make_tensor_value_info(name, kind, [None] * rank)
                for name, rank in zip(outputs, (3, 4, 4), strict=True)
            ],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        # Pools that spin would take the cores from the session that is compared with this one.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        lean_attention.register_custom_ops(options)
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
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


def run_session(
    session: onnxruntime.InferenceSession, feeds: Feeds, *, shared: bool = False
) -> list[NDArray[Any]]:
    """Runs a node's session.

    Args:
        session: Of `Node.session`.
        feeds: Its inputs; left untouched.
        shared: Whether one buffer is bound as past and as present, as generators do.

    Returns:
        output [B, S, N * H], present_key and present_value [B, K, C, H].
    """
    if not shared:
        return session.run(None, feeds)
    binding = session.io_binding()
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array.copy())
        for name, array in feeds.items()
    }
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("output")
    for kind in ("key", "value"):
        binding.bind_ortvalue_output(f"present_{kind}", values[f"past_{kind}"])
    session.run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()]


@dataclass(frozen=True)
class Case:
    """Random tensors for one call, in the operator's form and in the reference's."""

    node: Node
    feeds: Feeds
    step: Step


def make_case(
    *,
    num_heads: int,
    kv_num_heads: int,
    head_size: int,
    seqlens_k: list[int],
    capacity: int,
    dtype: type = np.float32,
    tokens: int = 1,
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

    Args:
        num_heads: N.
        kv_num_heads: K.
        head_size: H.
        seqlens_k: [B] valid rows after this step, less one.
        capacity: C.
        dtype: np.float32 or np.float16.
        tokens: S.
        packed: Whether Q, K and V come in one input.
        rotary_half: Rotated pairs; 0: no rotary embedding.
        interleaved: The rotary layout.
        bias: attention_bias.
        sink: head_sink [N].
        poison: Whether cache rows at or past each sequence's past hold NaN and infinities.
        magnitude: Standard deviation of queries and keys.
        seed: Of the random generator.
        **attributes: Further attributes of the node.
    """
    rng = np.random.default_rng(seed)
    batch = len(seqlens_k)

    def draw(*shape: int, scale: float = 1.0) -> NDArray[Any]:
        return (scale * rng.standard_normal(shape)).astype(dtype)

    query = draw(batch, tokens, num_heads, head_size, scale=magnitude)
    key = draw(batch, tokens, kv_num_heads, head_size, scale=magnitude)
    value = draw(batch, tokens, kv_num_heads, head_size)
    past = [
        draw(batch, kv_num_heads, capacity, head_size, scale=scale) for scale in (magnitude, 1.0)
    ]
    lengths = np.array(seqlens_k, np.int64) + 1
    if poison:
        for cache in past:
            for b in range(batch):
                tail = cache[b, :, lengths[b] - tokens :]
                tail[...] = np.resize(np.array([np.nan, np.inf, -np.inf], dtype), tail.shape)

    flat = [array.reshape(batch, tokens, -1) for array in (query, key, value)]
    feeds: Feeds = {"query": np.concatenate(flat, axis=-1) if packed else flat[0]}
    if not packed:
        feeds |= {"key": flat[1], "value": flat[2]}
    feeds |= {
        "past_key": past[0],
        "past_value": past[1],
        "seqlens_k": np.array(seqlens_k, np.int32),
        "total_sequence_length": np.array(max(seqlens_k) + 1, np.int32),
    }
    cos = sin = None
    if rotary_half:
        angles = np.arange(capacity)[:, None] / 100.0 ** (np.arange(rotary_half) / rotary_half)
        cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
        feeds |= {"cos_cache": cos, "sin_cache": sin}
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(interleaved)}
    if bias is not None:
        feeds["attention_bias"] = bias.astype(dtype)
    if sink is not None:
        feeds["head_sink"] = sink.astype(dtype)

    def wide(array: NDArray[Any] | None) -> Any:
        return None if array is None else array.astype(np.float64)

    step = Step(
        *(wide(array) for array in (query, key, value, *past)),
        lengths=lengths,
        cos=wide(cos),
        sin=wide(sin),
        interleaved=interleaved,
        scale=attributes.get("scale"),
        softcap=attributes.get("softcap", 0.0),
        window=attributes.get("local_window_size", -1),
        bias=wide(feeds.get("attention_bias")),
        sink=wide(feeds.get("head_sink")),
        smooth_softmax=bool(attributes.get("smooth_softmax", 0)),
    )
    return Case(Node(num_heads, kv_num_heads, attributes), feeds, step)
