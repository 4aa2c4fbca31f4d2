"""Whether the kernel is right: against float64, and bit for bit against itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from gpu_check_device import Budget, Device
from gpu_check_steps import Shape, Truth, appended_error, draw
from lean_attention import gpu
from lean_attention.kernels import Schedule

__all__ = ["check_graph", "check_parity", "parity_shapes"]

CACHES = (("", False), ("int8", False), ("int8", True), ("float8_e4m3fn", False),
          ("float8_e4m3fn", True))  # fmt: skip
CUTS: tuple[dict[str, Any], ...] = (
    {},
    {"schedule": Schedule.DIRECT},
    {"schedule": Schedule.FIXED_SPLIT},
    {"schedule": Schedule.FIXED_SPLIT, "amount": 3},
    {"schedule": Schedule.LEAN, "amount": 5},
    {"schedule": Schedule.LEAN, "amount": 1000},
    {},
)
_RAGGED = (1500, 1, 129, 640)
_FEATURES = (
    {"options": {"local_window_size": 1}},
    {"options": {"local_window_size": 200}},
    {"options": {"softcap": 3.0}},
    {"options": {"smooth_softmax": True}},
    {"options": {"scale": 0.3}},
    {"sink": True, "options": {"local_window_size": 129}},
    {"bias": True, "options": {"softcap": 4.0}},
    {"rotary_half": 32},
    {"rotary_half": 20, "options": {"rotary_interleaved": True}},
    {"tokens": 3, "lengths": (700, 3, 130)},
    {"tokens": 8, "lengths": (700, 9, 130), "rotary_half": 32, "bias": True},
    {"tokens": 11, "lengths": (700, 12), "options": {"local_window_size": 60}},
    {"lengths": (40000,), "num_heads": 8, "kv_num_heads": 1},
    {"lengths": tuple(range(1, 400, 7))},
)


def parity_shapes(is_small: bool) -> list[Shape]:
    """Returns the cases, those that tell most first."""
    if is_small:
        return [
            Shape((140, 1, 129)),
            Shape((130,), dtype="bfloat16", cache="int8", per_channel=True),
            Shape((20,), head_size=128, cache="float8_e4m3fn", rotary_half=16, bias=True),
        ]
    features = [replace(Shape(_RAGGED), **changes) for changes in _FEATURES]
    return features + list(_grid())


def _grid() -> Iterator[Shape]:
    for head_size in (128, 64, 80, 96, 256):
        for cache, per_channel in CACHES:
            for heads in ((4, 4), (8, 2), (16, 1)):
                for dtype in ("float16", "bfloat16"):
                    for lengths in (_RAGGED, (384, 384)):
                        yield Shape(lengths, *heads, head_size, dtype, cache, per_channel)


def check_shape(shape: Shape, device: Device, workspace: gpu.Workspace) -> str | None:
    """Runs a step under every cut; returns what is wrong, or None."""
    first: list[torch.Tensor] = []
    for cut in CUTS:
        step = draw(shape, device.torch)
        caches = [step.key_cache, step.value_cache]
        past = [cache.clone() for cache in caches]
        output = gpu.decode(step, plan=gpu.plan(step, **cut), workspace=workspace)
        device.synchronize()
        if not all(_only_appended(shape, *both) for both in zip(past, caches, strict=True)):
            return "rows of the cache changed that are not the step's"
        found = [tensor.view(torch.uint8) for tensor in (output, *caches)]
        if not first:
            first = found
            truth = Truth.of(step, shape.lengths)
            error = max(truth.error(output), appended_error(step, shape.lengths))
            if error > 1:
                return f"an error {error:.3g} times as large as it may be"
        elif not all(torch.equal(*both) for both in zip(first, found, strict=True)):
            return f"other bits under {cut or 'the policy, run again'}"
    return None


def _only_appended(shape: Shape, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether every row but the new ones is as it was."""
    restored = after.clone()
    for b, length in enumerate(shape.lengths):
        new = slice(length - shape.tokens, length)
        restored[b, :, new] = before[b, :, new]
    return torch.equal(restored.view(torch.uint8), before.view(torch.uint8))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.contiguous().view(torch.uint8))


def check_parity(
    device: Device, shapes: list[Shape], budget: Budget, advance: Callable[[], object]
) -> dict[str, Any]:
    """Checks shapes until the time is over; returns what was found, as JSON's types."""
    workspace = gpu.Workspace()
    failures: dict[str, str] = {}
    checked = 0
    for shape in shapes:
        if budget.is_spent:
            break
        wrong = check_shape(shape, device, workspace)
        checked += 1
        if wrong is not None:
            failures[str(shape)] = wrong
            workspace.forget()
        advance()
    return {
        "checked": checked,
        "cuts_of_each": len(CUTS),
        "left_out": [str(shape) for shape in shapes[checked:]],
        "failures": failures,
    }


def check_graph(device: Device) -> dict[str, Any]:
    """Captures a step and repeats it with other lengths in device memory.

    The output and the appended rows are compared with float64, and bit for bit with what a launch
    outside of the graph makes of the same tensors.
    """
    all_lengths = ((700, 5, 300), (1, 900, 900), (33, 128, 129))
    if device.is_emulated:
        all_lengths = ((140, 5, 30), (1, 129, 128))
    most = max(map(max, all_lengths))
    shape = Shape((most,) * 3, num_heads=8)
    step = draw(shape, device.torch)
    workspace = gpu.Workspace()
    out = torch.empty_like(step.query)
    # Captured at lengths that none of the repetitions has.
    repeat = device.capture(lambda: gpu.decode(step, workspace=workspace, out=out))
    failures = {}
    for seed, lengths in enumerate(all_lengths, 1):
        fresh = draw(replace(shape, lengths=lengths), device.torch, seed)
        step.seqlens_k.copy_(fresh.seqlens_k)
        for name in ("query", "key", "value"):
            getattr(step, name).copy_(getattr(fresh, name))
        rows = fresh.key_cache.shape[2]
        for name in ("key_cache", "value_cache"):
            getattr(step, name)[:, :, :rows] = getattr(fresh, name)
        out.fill_(torch.nan)
        repeat()
        device.synchronize()
        error = max(Truth.of(step, lengths).error(out), appended_error(step, lengths))
        launched = [gpu.decode(fresh), fresh.key_cache, fresh.value_cache]
        replayed = [out, step.key_cache[:, :, :rows], step.value_cache[:, :, :rows]]
        if error > 1:
            failures[str(lengths)] = f"an error {error:.3g} times as large as it may be"
        elif not all(_same_bits(*both) for both in zip(launched, replayed, strict=True)):
            failures[str(lengths)] = "other bits than of a launch outside of the graph"
    return {"replays": len(all_lengths), "failures": failures}
