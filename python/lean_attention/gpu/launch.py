"""Puts steps on a stream."""

from typing import Any

from lean_attention.gpu.c_functions import DeviceError, call, check_kind
from lean_attention.gpu.planning import Plan, plan_of
from lean_attention.gpu.step import Step
from lean_attention.gpu.streams import current
from lean_attention.gpu.tensors import Tensor, empty, view
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
        stream: Where it is enqueued: a ``torch.cuda.Stream``, or the address of a cudaStream_t or
            hipStream_t as an integer (``stream.cuda_stream`` of PyTorch, ``stream.ptr`` of CuPy; 0
            is the default stream). None: for PyTorch's tensors its current stream, for others the
            stream of the query's ``__cuda_array_interface__``, or else the default one. It must
            belong to the tensors' device. All tensors must be ready there, and stay alive until it
            has done the step: what was made on another stream is to be waited for, and PyTorch is
            to be told by ``Tensor.record_stream``. The result is ready on this stream, too.

    Returns:
        [B, S, N, H], ``out`` if there is one.

    Raises:
        LeanAttentionError: A tensor, number or plan is not what the kernel takes, there is no
            memory for the workspace, or the device reported an error.
    """
    check_kind("step", step, Step)
    check_kind("plan", plan, Plan, type(None))
    check_kind("workspace", workspace, Workspace, type(None))
    workspace = workspace or Workspace()
    query = view("query", step.query)
    with current(step.query, stream) as handle:
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
