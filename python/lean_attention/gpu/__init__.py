"""The GPU kernel without a session: decode steps over tensors in device memory.

Tensors are PyTorch's, or arrays of any library with ``__cuda_array_interface__``, as CuPy::

    step = gpu.Step(
        query=query,  # [B, S, N, H]
        key=key,  # [B, S, K, H]
        value=value,  # [B, S, K, H]
        key_cache=key_cache,  # [B, K, C, H], changed in place
        value_cache=value_cache,
        seqlens_k=seqlens_k,  # [B]
    )
    workspace = gpu.Workspace()
    output = gpu.decode(step, workspace=workspace)

A step goes to PyTorch's current stream, or to ``gpu.decode(step, stream=stream)``; `decode` says
what must be ready there, and for how long.

The library must have been built for GPUs: see `backend`.
"""

from lean_attention.gpu.c_functions import backend
from lean_attention.gpu.launch import decode
from lean_attention.gpu.planning import Plan, plan
from lean_attention.gpu.step import Step
from lean_attention.gpu.workspace import Workspace

__all__ = ["Plan", "Step", "Workspace", "backend", "decode", "plan"]
