"""`lean-attention doctor`: what is installed here, and whether it works together."""

import platform
from collections.abc import Collection
from importlib.metadata import distributions

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import lean_attention
from lean_attention import gpu, kernels
from lean_attention.errors import LeanAttentionError

__all__ = ["advise", "doctor"]

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-rocm")
_COMPANIONS = (*_RUNTIMES, "onnxruntime-genai", "onnx", "onnx-ir", "optimum")
_PROVIDERS = {"CUDA": "CUDAExecutionProvider", "ROCm": "ROCMExecutionProvider"}
_PACKAGES = {"CUDA": "onnxruntime-gpu[cuda,cudnn]", "ROCm": "onnxruntime-rocm==1.22.2.post3"}


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "lean-attention": lean_attention.__version__}
    installed = {
        distribution.name.lower(): distribution.version for distribution in distributions()
    }
    return found | {name: installed[name] for name in _COMPANIONS if name in installed}


def advise(
    installed: Collection[str], providers: Collection[str], backend: str | None
) -> list[str]:
    """Returns what does not fit together here, and what to do: one line each.

    Args:
        installed: Names of distributions.
        providers: That ONNX Runtime was built with.
        backend: The GPUs that the library was built for, or None.
    """
    advice = []
    runtimes = [name for name in _RUNTIMES if name in installed]
    if len(runtimes) > 1:
        advice.append(
            f"{' and '.join(runtimes)} lie in one folder, over each other; uninstall all of them, "
            "and install one"
        )
    if backend in _PROVIDERS and _PROVIDERS[backend] not in providers:
        advice.append(
            f"the library has kernels for {backend}, and this ONNX Runtime no "
            f"{_PROVIDERS[backend]}; uninstall it, and pip install '{_PACKAGES[backend]}'"
        )
    for name, provider in _PROVIDERS.items():
        if provider in providers and backend != name:
            advice.append(
                f"this ONNX Runtime has the {provider}, and the library no kernels for {name}: its "
                "nodes stay on the CPU; for the GPU, install lean-attention again from a checkout "
                f"with 'pip install . -C cmake.define.LEAN_ATTENTION_{name.upper()}=ON'"
            )
    return advice


def _run_one_step() -> None:
    """Runs the operator on one token and checks that attention to itself returns its value."""
    names = ["query", "key", "value", "", "", "seqlens_k", "total_sequence_length"]
    node = helper.make_node(
        "LeanGroupQueryAttention",
        names,
        ["output", "present_key", "present_value"],
        domain="com.leanattention",
        num_heads=2,
        kv_num_heads=1,
    )
    kinds = {"seqlens_k": TensorProto.INT32, "total_sequence_length": TensorProto.INT32}
    shapes = {
        "query": [1, 1, 16],
        "key": [1, 1, 8],
        "value": [1, 1, 8],
        "seqlens_k": [1],
        "total_sequence_length": [],
    }
    graph = helper.make_graph(
        [node],
        "doctor",
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
            for name, shape in shapes.items()
        ],
        [
            helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, 16]),
            helper.make_tensor_value_info("present_key", TensorProto.FLOAT, [1, 1, 1, 8]),
            helper.make_tensor_value_info("present_value", TensorProto.FLOAT, [1, 1, 1, 8]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.leanattention", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    value = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    feeds = {
        "query": np.ones((1, 1, 16), np.float32),
        "key": np.ones((1, 1, 8), np.float32),
        "value": value,
        "seqlens_k": np.zeros(1, np.int32),
        "total_sequence_length": np.array(1, np.int32),
    }
    output = session.run(["output"], feeds)[0]
    if not np.array_equal(output, np.tile(value, 2)):
        raise LeanAttentionError(
            f"the operator runs but computes {output.ravel().tolist()} where two copies of "
            f"{value.ravel().tolist()} are right; please report this with the lines above"
        )


def doctor() -> None:
    """Print versions, providers and instruction set, and check that the operator runs here.

    What is installed but does not fit together is named, with what to do.
    """
    table = Table(show_header=False, box=None)
    versions, providers = _versions(), onnxruntime.get_available_providers()
    for name, found in versions.items():
        table.add_row(name, found)
    table.add_row("machine", f"{platform.system()} {platform.machine()}")
    table.add_row("providers", ", ".join(providers))
    console = Console(soft_wrap=True)
    console.print(table)
    path = lean_attention.get_library_path()
    console.print(f"library: {path} (version {kernels.built_version()})", highlight=False)
    target = kernels.cpu_target()
    if target is None:
        raise LeanAttentionError(
            "this processor has none of the instruction sets that the library was compiled for; "
            "the operator hands everything to the stock one"
        )
    console.print(f"instruction set: {target}", highlight=False)
    console.print(f"GPU kernels: {gpu.backend() or 'none in this library'}", highlight=False)
    try:
        _run_one_step()
    except LeanAttentionError:
        raise
    except Exception as error:  # ONNX Runtime raises several unrelated types.
        raise LeanAttentionError(f"the operator does not run here: {error}") from error
    console.print("[green]✓[/] the library loads and the operator runs")
    for line in advise(versions, providers, gpu.backend()):
        console.print(f"[yellow]![/] {escape(line)}", highlight=False)
