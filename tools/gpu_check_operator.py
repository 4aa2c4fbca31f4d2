"""The operator against the stock one, in ONNX Runtime with tensors bound in device memory."""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

import lean_attention
from gpu_check_build import CheckError
from gpu_check_device import Budget, Device
from gpu_check_steps import Shape, Truth, draw
from lean_attention import gpu

__all__ = ["compare_operators", "provider_for"]

_OPERATORS = {
    "lean": ("LeanGroupQueryAttention", "com.leanattention"),
    "stock": ("GroupQueryAttention", "com.microsoft"),
}
_INPUTS = (
    ("query", TensorProto.FLOAT16, 3),
    ("key", TensorProto.FLOAT16, 3),
    ("value", TensorProto.FLOAT16, 3),
    ("past_key", TensorProto.FLOAT16, 4),
    ("past_value", TensorProto.FLOAT16, 4),
    ("seqlens_k", TensorProto.INT32, 1),
    ("total_sequence_length", TensorProto.INT32, 0),
)
_OUTPUTS = (("output", 3), ("present_key", 4), ("present_value", 4))
_RUNS = 20
_ROUNDS = 7


def provider_for(device: Device) -> str | None:
    """Returns the execution provider that has the library's operators here; None: there is none."""
    wanted = "CPUExecutionProvider" if device.is_emulated else "CUDAExecutionProvider"
    return wanted if wanted in onnxruntime.get_available_providers() else None


def _shapes(is_small: bool) -> list[Shape]:
    if is_small:
        return [Shape((140, 20), 4, 2)]
    return [
        Shape((4096,), 32, 8, 128),
        Shape((65536,), 32, 8, 128),
        Shape((65536, 5000, 9000, 4200), 32, 8, 128),
        Shape((16384,) * 16, 32, 8, 128),
    ]


def _session(which: str, shape: Shape, provider: str) -> onnxruntime.InferenceSession:
    op_type, domain = _OPERATORS[which]
    node = helper.make_node(
        op_type,
        [name for name, _, _ in _INPUTS],
        [name for name, _ in _OUTPUTS],
        name="attention",
        domain=domain,
        num_heads=shape.num_heads,
        kv_num_heads=shape.kv_num_heads,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, kind, [None] * rank) for name, kind, rank in _INPUTS],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT16, [None] * rank)
            for name, rank in _OUTPUTS
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    lean_attention.register_custom_ops(options)
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])
    # Where a provider does not start, ONNX Runtime goes on without it.
    if made.get_providers()[0] != provider:
        raise CheckError(
            f"ONNX Runtime has {provider} and runs on {', '.join(made.get_providers())}; it needs "
            "CUDA and cuDNN of its version: pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )
    return made


@dataclass(frozen=True)
class _Bound:
    """A session over a step's own tensors, its caches both past and present."""

    session: onnxruntime.InferenceSession
    binding: onnxruntime.IOBinding
    output: torch.Tensor

    @classmethod
    def of(cls, which: str, shape: Shape, step: gpu.Step, provider: str) -> "_Bound":
        session = _session(which, shape, provider)
        binding = session.io_binding()
        output = torch.empty_like(step.query)
        place = ("cpu" if step.query.device.type == "cpu" else "cuda", 0)

        def bind(how: Any, name: str, tensor: torch.Tensor, dtype: type) -> None:
            how(name, *place, dtype, list(tensor.shape), tensor.data_ptr())

        for name in ("query", "key", "value"):
            bind(binding.bind_input, name, getattr(step, name).flatten(2), np.float16)
        for name in ("key", "value"):
            cache = getattr(step, f"{name}_cache")
            bind(binding.bind_input, f"past_{name}", cache, np.float16)
            bind(binding.bind_output, f"present_{name}", cache, np.float16)
        bind(binding.bind_input, "seqlens_k", step.seqlens_k, np.int32)
        bind(binding.bind_output, "output", output.flatten(2), np.float16)
        binding.bind_cpu_input("total_sequence_length", np.array(max(shape.lengths), np.int32))
        return cls(session, binding, output)

    def run(self) -> None:
        """Runs the node; ONNX Runtime waits for the device."""
        self.session.run_with_iobinding(self.binding)


def _seconds(bound: _Bound, runs: int) -> float:
    begin = time.perf_counter()
    for _ in range(runs):
        bound.run()
    return (time.perf_counter() - begin) / runs


def _compare(shape: Shape, device: Device, provider: str) -> dict[str, Any]:
    step = draw(shape, device.torch)
    device.synchronize()
    found: dict[str, Any] = {"shape": str(shape), "error": {}, "micros": {}}
    bounds = {which: _Bound.of(which, shape, step, provider) for which in _OPERATORS}
    for which, bound in bounds.items():
        bound.run()
        found["error"][which] = Truth.of(step, shape.lengths).error(bound.output)
    if found["error"]["lean"] > 1:
        return found  # what is wrong is not timed
    runs, rounds = (1, 1) if device.is_emulated else (_RUNS, _ROUNDS)
    times: dict[str, list[float]] = {which: [] for which in bounds}
    for _ in range(rounds):
        for which, bound in bounds.items():
            times[which].append(_seconds(bound, runs))
    found["micros"] = {which: median(values) * 1e6 for which, values in times.items()}
    return found


def compare_operators(device: Device, is_small: bool, budget: Budget) -> dict[str, Any]:
    """Runs one node of each operator; returns what was found, as JSON's types.

    Times are those of a whole run with the host's part, over the same tensors each time.
    """
    provider = provider_for(device)
    if provider is None:
        return {"skipped": "this ONNX Runtime has no CUDAExecutionProvider"}
    rows, failures, left_out = [], {}, []
    for shape in _shapes(is_small):
        if budget.is_spent:
            left_out.append(str(shape))
            continue
        row = _compare(shape, device, provider)
        rows.append(row)
        if row["error"]["lean"] > 1:
            failures[str(shape)] = (
                f"an error {row['error']['lean']:.3g} times as large as it may be"
            )
    return {
        "onnxruntime": onnxruntime.__version__,
        "provider": provider,
        "checked": len(rows),
        "rows": rows,
        "failures": failures,
        "left_out": left_out,
    }
