"""Steps of `lean_attention.gpu` in the emulated GPU's memory, of PyTorch and other libraries."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from gqa_node import FLOAT8, Case, assert_matches_reference, make_case
from lean_attention import gpu
from lean_attention.kernels import Schedule

# NumPy's names for 16- and 8-bit numbers that PyTorch does not take from it.
_TORCH_TYPES = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    FLOAT8: (np.int8, torch.float8_e4m3fn),
}


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
    kv_heads, query = step.key.shape[2], feeds["query"]
    if "key" in feeds:
        parts = [query, feeds["key"], feeds["value"]]
    else:
        parts = list(query.split([heads * size, kv_heads * size, kv_heads * size], dim=-1))
    views = [part.unflatten(-1, (-1, size)) if part.numel() else None for part in parts]
    scales = {
        name: feeds[name].reshape(-1 if feeds[name].numel() == 1 else (kv_heads, size))
        for name in ("k_scale", "v_scale")
        if name in feeds
    }
    optional = (
        *("query_seqlens", "q_norm_weight", "k_norm_weight", "cos_cache", "sin_cache"),
        *("position_ids", "attention_bias", "head_sink"),
    )
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


def ragged_case(**changes: Any) -> Case:
    return make_case(
        **{
            "num_heads": 4,
            "kv_num_heads": 2,
            "head_size": 64,
            "seqlens_k": [0, 130, 399],
            "capacity": 403,
            "dtype": np.float16,
            **changes,
        }
    )


def assert_right(case: Case, results: list[NDArray[Any]]) -> None:
    assert_matches_reference(case, results, rounds_weights=True)


class DeviceArray:
    """An array of a library that says no more than ``__cuda_array_interface__`` does."""

    def __init__(self, array: NDArray[Any], **interface: Any) -> None:
        """Shows an array's memory; ``interface`` overrides what is said of it."""
        self.array = array
        self.shape = array.shape
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, **interface}


class Namespace:
    """Its array namespace."""

    uint8, int32, float16 = np.uint8, np.int32, np.float16

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any) -> "AllocatingArray":
        """Allocates."""
        return AllocatingArray(np.empty(shape, dtype))

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: Any) -> "AllocatingArray":
        """Allocates zeros."""
        return AllocatingArray(np.zeros(shape, dtype))


class AllocatingArray(DeviceArray):
    """One of a library with the array API standard."""

    def __array_namespace__(self) -> type[Namespace]:
        """Returns what allocates."""
        return Namespace


def arrays_of(case: Case, kind: type[DeviceArray]) -> dict[str, Any]:
    """The tensors of a case's step as arrays of another library."""
    tensors = {n: t for n, t in vars(step_of(case)).items() if isinstance(t, torch.Tensor)}
    return {name: kind(tensor.numpy()) for name, tensor in tensors.items()}
