"""The library's plain C functions, over NumPy arrays: the kernel without ONNX Runtime around it."""

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import get_library_path

__all__ = ["Schedule", "built_version", "cpu_target", "decode"]


class Schedule(IntEnum):
    """How the stream of tiles is cut into shares; the result does not depend on it."""

    LEAN = 0
    FIXED_SPLIT = 1
    DIRECT = 2


class _Decode(ctypes.Structure):
    """struct lean_attention_decode of ops/c_api/c_api.h, field by field."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("cache_type", ctypes.c_int32),
        ("batch_size", ctypes.c_int32),
        ("sequence_length", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("kv_num_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("cache_rows", ctypes.c_int64),
        ("local_window_size", ctypes.c_int64),
        ("seqlens_k", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("key_cache", ctypes.c_void_p),
        ("value_cache", ctypes.c_void_p),
        ("k_scale", ctypes.c_void_p),
        ("v_scale", ctypes.c_void_p),
        ("scale_per_channel", ctypes.c_int32),
        ("cos_cache", ctypes.c_void_p),
        ("sin_cache", ctypes.c_void_p),
        ("rotary_rows", ctypes.c_int64),
        ("rotary_half", ctypes.c_int32),
        ("rotary_interleaved", ctypes.c_int32),
        ("head_sink", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("output", ctypes.c_void_p),
    )


# By name, since NumPy itself has no bfloat16.
_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_QUANTISED_TYPES = {"int8": 3, "uint8": 4}


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(get_library_path()))
    for name in ("version", "cpu_target"):
        getattr(library, f"lean_attention_{name}").restype = ctypes.c_char_p
    library.lean_attention_status_message.restype = ctypes.c_char_p
    library.lean_attention_status_message.argtypes = (ctypes.c_int32,)
    library.lean_attention_cpu_decode.restype = ctypes.c_int32
    library.lean_attention_cpu_decode.argtypes = (
        ctypes.POINTER(_Decode),
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_uint64,
    )
    return library


def built_version() -> str:
    """Returns the version that the library was built as."""
    version: bytes = _library().lean_attention_version()
    return version.decode()


def cpu_target() -> str | None:
    """Returns the instruction set of the CPU kernel ("AVX2", ...); None: this machine has none."""
    target: bytes | None = _library().lean_attention_cpu_target()
    return target.decode() if target else None


def _check_array(name: str, array: object, dimensions: int | None = None) -> None:
    """Refuses what is no array of numbers in this machine's byte order."""
    if not isinstance(array, np.ndarray) or not array.dtype.isnative:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise LeanAttentionError(f"{name} is {found}; expected a NumPy array in native byte order")
    if dimensions is not None and (array.ndim != dimensions or 0 in array.shape):
        raise LeanAttentionError(
            f"{name} has the shape {array.shape}; expected {dimensions} dimensions, none of them 0"
        )


def _pointer(
    name: str,
    array: NDArray[Any] | None,
    dtype: np.dtype[Any],
    *shape: int,
    changed: bool = False,
) -> int | None:
    """Returns an array's address after checking all that the C function cannot."""
    if array is None:
        return None
    _check_array(name, array)
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise LeanAttentionError(
            f"{name} is {array.dtype} {array.shape}, C-contiguous: {array.flags.c_contiguous}; "
            f"expected contiguous {dtype} {shape}"
        )
    if changed and not array.flags.writeable:
        raise LeanAttentionError(f"{name} is read-only, and the step appends to it")
    return int(array.ctypes.data)


def decode(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
    seqlens_k: NDArray[np.int32],
    *,
    k_scale: NDArray[np.float32] | None = None,
    v_scale: NDArray[np.float32] | None = None,
    cos_cache: NDArray[Any] | None = None,
    sin_cache: NDArray[Any] | None = None,
    rotary_interleaved: bool = False,
    local_window_size: int = -1,
    head_sink: NDArray[Any] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    schedule: Schedule = Schedule.LEAN,
    amount: int = 1,
    order_seed: int = 0,
) -> NDArray[Any]:
    """Runs one decode step on the calling thread; appends to the caches in place.

    Shapes: B sequences, S new tokens, N query heads, K KV heads (N a multiple), H head size, C rows
    of cache. All tensors but seqlens_k are of one type, float32, float16 or bfloat16 (ml_dtypes');
    the caches are of that type too, or int8, or uint8 for int4: two values to a byte, the even
    channel in the low half, each as value + 8.

    Args:
        query: [B, S, N, H], not rotated.
        key: [B, S, K, H], not rotated.
        value: [B, S, K, H].
        key_cache: [B, K, C, H], int4: [B, K, C, (H + 1) // 2]; changed in place.
        value_cache: As key_cache.
        seqlens_k: [B] int32, valid rows of each sequence after this step, less one.
        k_scale: Of a quantised cache: [K, H], or [1].
        v_scale: As k_scale.
        cos_cache: [positions, at most H / 2]; None: no rotary embedding.
        sin_cache: As cos_cache.
        rotary_interleaved: Whether pairs are neighbours instead of halves.
        local_window_size: Keys that a query sees, its own included; -1: all.
        head_sink: [N] scores that join the softmax's denominator.
        scale: Of the scores; None: 1 / sqrt(H).
        softcap: 0, or the bound of cap * tanh(score / cap).
        schedule: How the tiles are cut into shares.
        amount: Shares (lean) or pieces per sequence and head (fixed_split); ignored for direct.
        order_seed: The order in which shares run is drawn from it; 0: their own.

    Returns:
        [B, S, N, H].

    Raises:
        LeanAttentionError: A shape, type or length that the kernel does not accept.
    """
    for name, array in (("query", query), ("key", key), ("key_cache", key_cache)):
        _check_array(name, array, 4)
    for name, table in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        if table is not None:
            _check_array(name, table, 2)
    if abs(amount) >= 2**63:
        raise LeanAttentionError(f"amount is {amount}; it must be below 2^63")
    dtype, cache_dtype = query.dtype, key_cache.dtype
    cache_types = {dtype.name: _TYPES.get(dtype.name), **_QUANTISED_TYPES}
    if dtype.name not in _TYPES or cache_dtype.name not in cache_types:
        raise LeanAttentionError(
            f"query is {dtype} and key_cache {cache_dtype}; queries must be float32, float16 or "
            "bfloat16, and caches the same, int8, or uint8 for int4"
        )
    batch, tokens, heads, size = query.shape
    kv_heads, rows = key.shape[2], key_cache.shape[2]
    positions, half = (0, 0) if cos_cache is None else cos_cache.shape
    quantised = cache_dtype.name in _QUANTISED_TYPES
    cache_width = (size + 1) // 2 if cache_dtype.name == "uint8" else size
    cache_shape = (batch, kv_heads, rows, cache_width)
    # Where there is one channel, [K, H] and [1] say the same.
    per_channel = quantised and getattr(k_scale, "shape", None) == (kv_heads, size)
    scale_shape = (kv_heads, size) if per_channel else (1,)
    output = np.full_like(query, np.nan)
    step = _Decode(
        type=_TYPES[dtype.name],
        cache_type=cache_types[cache_dtype.name],
        batch_size=batch,
        sequence_length=tokens,
        num_heads=heads,
        kv_num_heads=kv_heads,
        head_size=size,
        cache_rows=rows,
        local_window_size=local_window_size,
        seqlens_k=_pointer("seqlens_k", seqlens_k, np.dtype(np.int32), batch),
        query=_pointer("query", query, dtype, *query.shape),
        key=_pointer("key", key, dtype, batch, tokens, kv_heads, size),
        value=_pointer("value", value, dtype, batch, tokens, kv_heads, size),
        key_cache=_pointer("key_cache", key_cache, cache_dtype, *cache_shape, changed=True),
        value_cache=_pointer("value_cache", value_cache, cache_dtype, *cache_shape, changed=True),
        k_scale=_pointer("k_scale", k_scale, np.dtype(np.float32), *scale_shape),
        v_scale=_pointer("v_scale", v_scale, np.dtype(np.float32), *scale_shape),
        scale_per_channel=per_channel,
        cos_cache=_pointer("cos_cache", cos_cache, dtype, positions, half),
        sin_cache=_pointer("sin_cache", sin_cache, dtype, positions, half),
        rotary_rows=positions,
        rotary_half=half,
        rotary_interleaved=rotary_interleaved,
        head_sink=_pointer("head_sink", head_sink, dtype, heads),
        scale=size**-0.5 if scale is None else scale,
        softcap=softcap,
        output=_pointer("output", output, dtype, *output.shape),
    )
    library = _library()
    status = library.lean_attention_cpu_decode(step, schedule, amount, order_seed)
    if status != 0:
        raise LeanAttentionError(library.lean_attention_status_message(status).decode())
    return output
