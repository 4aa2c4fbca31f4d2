"""Who computes the step: our operator under each schedule, the stock one, and PyTorch."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from lean_attention.bench.kernel_data import KernelData
from lean_attention.bench.machine import usable_processors
from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import register_custom_ops

__all__ = ["CONTENDERS", "OURS", "Contender", "RefusedError", "one_line", "prepare"]

OURS = ("auto", "lean", "fixed_split", "direct")
"""Our operator, by its attribute ``schedule``."""
CONTENDERS = (*OURS, "stock", "torch")

_INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    *("",) * 5,
    "k_scale",
    "v_scale",
)
_ONNX_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "int4": TensorProto.UINT8,
}


class RefusedError(Exception):
    """A contender does not compute this step; the message says why, in one line."""


class Contender(Protocol):
    """One implementation, ready to run."""

    def run(self, group: int) -> None:
        """Runs the step once on each cache of a group, which appends to them."""

    def poison(self) -> None:
        """Makes the outputs of earlier runs NaN."""

    def outputs(self) -> Sequence[NDArray[Any]]:
        """Returns the outputs of the last run, one per cache of a group, of B * N * H elements."""


def prepare(name: str, data: KernelData) -> Contender:
    """Makes a contender ready for the step.

    Args:
        name: One of `CONTENDERS`.
        data: Of the step; must outlive the contender.

    Raises:
        RefusedError: It does not take this step, or is not installed.
    """
    if name == "torch":
        return _Torch(data)
    try:
        return _Session(data, None if name == "stock" else name)
    except LeanAttentionError:
        raise
    except Exception as error:  # ONNX Runtime raises several unrelated types.
        raise RefusedError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """Returns the first line of a message, without ONNX Runtime's codes."""
    lines = str(error).strip().splitlines() or [repr(error)]
    return lines[0].split(" : ", 3)[-1] if lines[0].startswith("[ONNXRuntimeError]") else lines[0]


def _explaining() -> bool:
    """Whether the user asked for the operator's decisions, which it logs as warnings."""
    return os.environ.get("LEAN_ATTENTION_EXPLAIN") == "1"


class _Session:
    """A session whose graph holds an attention node for each cache of a group.

    Many nodes in a graph, as in a model, keep what a call of a session costs out of their times.
    """

    def __init__(self, data: KernelData, schedule: str | None) -> None:
        """Creates ours with a schedule, or the stock operator with None."""
        config, copies = data.config, data.copies
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = config.threads
        # Our operator logs its decisions as warnings. At 4 only what is fatal is heard.
        options.log_severity_level = 2 if schedule is not None and _explaining() else 4
        # Pools spin during a run, as users' do, but not on into the turn of the next contender.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # One that is wider than the machine would only take the cores from its own busy threads.
        spins = config.threads <= usable_processors()
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
        if schedule is not None:
            register_custom_ops(options)
        self._session = onnxruntime.InferenceSession(
            _model(data, schedule), options, providers=["CPUExecutionProvider"]
        )
        self._output = np.empty((copies.layers, *data.query.shape), data.query.dtype)
        self._bindings = [self._bind(data, group) for group in range(copies.sets)]

    def _bind(self, data: KernelData, group: int) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        dtype, cache_type = (
            _ONNX_TYPES[data.config.dtype],
            _ONNX_TYPES[data.config.kv_dtype],
        )
        for name, (array, kind) in _tensors(data).items():
            binding.bind_input(name, "cpu", 0, kind, array.shape, array.ctypes.data)
        for layer, output in enumerate(self._output):
            place = (output.shape, output.ctypes.data)
            binding.bind_output(f"output.{layer}", "cpu", 0, dtype, *place)
            for part, array in zip(("key", "value"), data.cache(group, layer), strict=True):
                place = (array.shape, array.ctypes.data)
                binding.bind_input(f"past_{part}.{layer}", "cpu", 0, cache_type, *place)
                binding.bind_output(f"present_{part}.{layer}", "cpu", 0, cache_type, *place)
        return binding

    def run(self, group: int) -> None:
        self._session.run_with_iobinding(self._bindings[group])

    def poison(self) -> None:
        self._output[...] = np.nan

    def outputs(self) -> Sequence[NDArray[Any]]:
        return list(self._output)


def _tensors(data: KernelData) -> dict[str, tuple[NDArray[Any], int]]:
    """Returns the inputs that all nodes share, with their ONNX types."""
    dtype = _ONNX_TYPES[data.config.dtype]
    tensors: dict[str, tuple[NDArray[Any], int]] = {
        "query": (data.query, dtype),
        "key": (data.key, dtype),
        "value": (data.value, dtype),
        "seqlens_k": (data.seqlens_k, TensorProto.INT32),
        "total_sequence_length": (data.total_sequence_length, TensorProto.INT32),
    }
    if data.config.quantized:
        tensors["k_scale"] = (data.k_scale, TensorProto.FLOAT)
        tensors["v_scale"] = (data.v_scale, TensorProto.FLOAT)
    return tensors


def _model(data: KernelData, schedule: str | None) -> bytes:
    config = data.config
    op, domain = ("GroupQueryAttention", "com.microsoft")
    attributes: dict[str, Any] = {}
    if schedule is not None:
        op, domain = ("LeanGroupQueryAttention", "com.leanattention")
        attributes["schedule"] = schedule
    if config.quantized:
        kind = config.kv_scales.replace("-", "_").upper()
        attributes |= {
            "k_quant_type": kind,
            "v_quant_type": kind,
            "kv_cache_bit_width": {"int8": 8, "int4": 4}[config.kv_dtype],
        }
    dtype, cache_type = _ONNX_TYPES[config.dtype], _ONNX_TYPES[config.kv_dtype]
    shared = _tensors(data)
    inputs = [
        helper.make_tensor_value_info(name, kind, list(array.shape))
        for name, (array, kind) in shared.items()
    ]
    shape = list(data.cache(0, 0)[0].shape)
    nodes, outputs = [], []
    for layer in range(data.copies.layers):
        names = [f"{name}.{layer}" if name.startswith("past_") else name for name in _INPUTS]
        names = [name if name in shared or name.startswith("past_") else "" for name in names]
        while not names[-1]:
            names.pop()
        results = [f"{name}.{layer}" for name in ("output", "present_key", "present_value")]
        nodes.append(
            helper.make_node(
                op,
                names,
                results,
                name=f"attention.{layer}",
                domain=domain,
                num_heads=config.num_heads,
                kv_num_heads=config.kv_num_heads,
                **attributes,
            )
        )
        inputs += [
            helper.make_tensor_value_info(f"past_{part}.{layer}", cache_type, shape)
            for part in ("key", "value")
        ]
        outputs += [
            helper.make_tensor_value_info(results[0], dtype, list(data.query.shape)),
            *(helper.make_tensor_value_info(name, cache_type, shape) for name in results[1:]),
        ]
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    serialized: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=9
    ).SerializeToString()
    return serialized


class _Torch:
    """PyTorch's scaled_dot_product_attention over the same memory.

    Of sequences of one length it is one call; others are attended to one by one, which spares it
    the rows that a padded batch would read.
    """

    def __init__(self, data: KernelData) -> None:
        config = data.config
        if config.quantized:
            raise RefusedError(f"PyTorch has no attention over {config.kv_dtype} caches")
        if find_spec("torch") is None:
            raise RefusedError("PyTorch is not installed")
        # Its pool, too, must not spin; read when its library is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        if torch.get_num_threads() != config.threads:
            torch.set_num_threads(config.threads)
        self._torch = torch

        def tensor(array: NDArray[Any]) -> Any:
            if config.dtype != "bfloat16":
                return torch.from_numpy(array)
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

        batch, size = config.batch_size, config.head_size
        self._query = tensor(data.query).view(batch, config.num_heads, 1, size)
        self._new = [
            tensor(array).view(batch, config.kv_num_heads, 1, size)
            for array in (data.key, data.value)
        ]
        self._lengths = config.lengths
        self._caches = [
            [[tensor(part) for part in data.cache(group, layer)] for layer in range(copies)]
            for copies in [data.copies.layers]
            for group in range(data.copies.sets)
        ]
        self._outputs: list[Any] = []

    def run(self, group: int) -> None:
        with self._torch.inference_mode():
            self._outputs = [self._step(caches) for caches in self._caches[group]]

    def _step(self, caches: list[Any]) -> Any:
        attend = self._torch.nn.functional.scaled_dot_product_attention
        if len(set(self._lengths)) == 1:
            for cache, new in zip(caches, self._new, strict=True):
                cache[:, :, -1:] = new
            return attend(self._query, *caches, enable_gqa=True)
        results = []
        for b, length in enumerate(self._lengths):
            one = slice(b, b + 1)
            rows = []
            for cache, new in zip(caches, self._new, strict=True):
                cache[one, :, length - 1 : length] = new[one]
                rows.append(cache[one, :, :length])
            results.append(attend(self._query[one], *rows, enable_gqa=True))
        return self._torch.cat(results)

    def poison(self) -> None:
        self._outputs = []

    def outputs(self) -> Sequence[NDArray[Any]]:
        return [output.float().numpy() for output in self._outputs]
