"""Cases of tests/gqa_node.py as steps over PyTorch tensors in the memory of the emulated GPU."""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from gqa_node import Case, make_case
from lean_attention import gpu
from lean_attention.kernels import Schedule
from reference import Array, CacheFormat

FLOAT8: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)
# NumPy's names for 16- and 8-bit numbers that PyTorch does not take from it.
_TORCH_TYPES = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    FLOAT8: (np.int8, torch.float8_e4m3fn),
}


class Float8Format(CacheFormat):
    """A cache of float8_e4m3fn: numbers times scales, without NaN or saturation."""

    def store(self, row: Array) -> NDArray[Any]:
        """Returns the numbers of new rows [..., K, H], by the reciprocals of the scales."""
        assert self.scale is not None
        rounded = row.astype(np.float32).astype(self.dtype).astype(np.float32)
        return (rounded * (np.float32(1) / self.scale)).astype(FLOAT8)


def make_gpu_case(*, cache: str = "", quantisation: str = "PER_TENSOR", **how: Any) -> Case:
    """As `make_case`; ``cache`` may also be "float8"."""
    if cache != "float8":
        return make_case(cache=cache, quantisation=quantisation, **how)
    # The scales of the int8 case, for numbers of up to 8 instead of 127.
    case = make_case(cache="int8", quantisation=quantisation, **how)
    feeds, changes = dict(case.feeds), dict[str, Any]()
    for name, scale in (("key", "k_scale"), ("value", "v_scale")):
        past: NDArray[Any] = feeds[f"past_{name}"]
        stored: CacheFormat = getattr(case.step, f"{name}_format")
        assert stored.scale is not None
        feeds[scale] = feeds[scale] * np.float32(16)
        feeds[f"past_{name}"] = (past.astype(np.float32) / 16).astype(FLOAT8)
        changes[f"past_{name}"] = feeds[f"past_{name}"]
        changes[f"{name}_format"] = Float8Format(stored.dtype, 8, stored.scale * np.float32(16))
    return Case(case.node, feeds, replace(case.step, **changes))


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """Returns a copy of an array in memory of its own."""
    bits, dtype = _TORCH_TYPES.get(array.dtype, (None, None))
    if bits is None:
        return torch.from_numpy(np.array(array))
    return torch.from_numpy(array.view(bits).copy()).view(dtype)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a tensor's numbers."""
    for dtype, (bits, torch_type) in _TORCH_TYPES.items():
        if tensor.dtype == torch_type:
            width = torch.int16 if bits is np.int16 else torch.int8
            return tensor.contiguous().view(width).numpy().view(dtype)
    array: NDArray[Any] = tensor.numpy()
    return array


def step_of(case: Case, **changes: Any) -> gpu.Step:
    """Returns a case's step, on copies of its tensors."""
    step, feeds = case.step, {name: to_torch(array) for name, array in case.feeds.items()}
    heads, size = step.query.shape[2:]
    kv_heads = step.key.shape[2]
    query = feeds["query"]
    if "key" in feeds:
        parts = [query, feeds["key"], feeds["value"]]
    else:
        parts = list(query.split([heads * size, kv_heads * size, kv_heads * size], dim=-1))
    views = [part.unflatten(-1, (-1, size)) for part in parts]
    scales = {
        name: feeds[name].reshape(-1 if feeds[name].numel() == 1 else (kv_heads, size))
        for name in ("k_scale", "v_scale")
        if name in feeds
    }
    optional = ("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink")
    return gpu.Step(
        **{
            "query": views[0],
            "key": views[1],
            "value": views[2],
            "key_cache": feeds["past_key"],
            "value_cache": feeds["past_value"],
            "seqlens_k": feeds["seqlens_k"],
            "max_length": int(feeds["total_sequence_length"]),
            **scales,
            **{name: feeds.get(name) for name in optional},
            "rotary_interleaved": step.interleaved,
            "local_window_size": step.window,
            "smooth_softmax": step.smooth_softmax,
            "scale": step.scale,
            "softcap": step.softcap,
            **changes,
        }
    )


@dataclass(frozen=True)
class Cut:
    """What `gpu.plan` is asked for."""

    schedule: Schedule | None = None
    amount: int = 0
    blocks: int = 0


def run(case: Case, cut: Cut | None = None, **how: Any) -> list[NDArray[Any]]:
    """Runs a case; returns output [B, S, N * H], present_key and present_value."""
    step = step_of(case)
    plan = None
    if cut is not None:
        plan = gpu.plan(step, schedule=cut.schedule, amount=cut.amount, blocks=cut.blocks)
    output = gpu.decode(step, plan=plan, **how)
    return [to_numpy(t) for t in (output.flatten(2), step.key_cache, step.value_cache)]
