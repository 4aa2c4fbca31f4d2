"""Puts steps on a stream."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.c_functions import DeviceError, call
from lean_attention.gpu.planning import Plan, plan_of
from lean_attention.gpu.step import Step
from lean_attention.gpu.tensors import Tensor, empty, is_torch, view
from lean_attention.gpu.workspace import Workspace

__all__ = ["decode"]


def decode(
    step: Step,
    *,
    plan: Plan | None = None,
    workspace: Workspace | None = None,
    out: Tensor | None = None,
    stream: Any = None,
) -> Tensor:
    """Enqueues a decode step, in one kernel; appends to the caches in place.

    Nothing waits for the device, so the step may be captured in a graph. Such a graph stays right
    for other lengths in ``seqlens_k``, up to the step's ``max_length``.

    Args:
        step: What is to be run.
        plan: Of `lean_attention.gpu.plan`; None: the policy's.
        workspace: Of this stream; None: one for this launch.
        out: [B, S, N, H] of the query's type, where the result goes; None: a new tensor.
        stream: A ``torch.cuda.Stream``, or the address of a cudaStream_t or hipStream_t. None: for
            PyTorch's tensors its current stream, for others the stream of the query's
            ``__cuda_array_interface__``, or else the default one.

    Returns:
        [B, S, N, H], ``out`` if there is one.

    Raises:
        LeanAttentionError: A tensor, number or plan is not what the kernel takes, or the device
            reported an error.
    """
    workspace = workspace or Workspace()
    query = view("query", step.query)
    with _current(step.query, stream) as handle:
        c_step = step.c_step(out)
        c_plan = (plan or plan_of(c_step)).c_plan()
        if out is None:
            out = empty(step.query, query.shape, query.dtype)
            c_step.output = view("output", out).pointer
        states, counters = workspace.reserve(c_plan.state_bytes, c_plan.counters, step.query)
        try:
            call("decode", c_step, c_plan, states, counters, handle)
        except DeviceError:
            workspace.forget()
            raise
    return out


@contextmanager
def _current(query: Tensor, stream: Any) -> Iterator[int | None]:
    """Makes the query's device and the stream current, for allocations too; gives its address."""
    if not is_torch(query):
        yield query.__cuda_array_interface__.get("stream") if stream is None else int(stream)
        return
    if query.device.type != "cuda":
        yield None
        return
    cuda = sys.modules["torch"].cuda
    if stream is None:
        stream = cuda.current_stream(query.device)
    elif not isinstance(stream, cuda.Stream):
        stream = (
            cuda.ExternalStream(stream, device=query.device)
            if stream
            else cuda.default_stream(query.device)
        )
    if stream.device != query.device:
        raise LeanAttentionError(f"the stream is on {stream.device}, and query on {query.device}")
    with cuda.stream(stream):
        yield stream.cuda_stream
