"""The C functions of ops/c_api/gpu_api.h, by ctypes."""

import ctypes
import operator
from functools import cache
from typing import Any, TypeVar

from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import get_library_path

__all__ = [
    "CPlan",
    "CStep",
    "DeviceError",
    "backend",
    "call",
    "check_kind",
    "fill",
    "flag",
    "integer",
    "real",
    "require_backend",
    "shown",
]

_MESSAGE_BYTES = 1024
_SHOWN_CHARACTERS = 100
_LARGEST_SHOWN = 10**1000
_DEVICE_ERROR = 5  # enum lean_attention_status


class DeviceError(LeanAttentionError):
    """The GPU's runtime refused; a workspace may be left with counters that are not zero."""


class CStep(ctypes.Structure):
    """struct lean_attention_gpu_step, field by field."""

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
        ("max_length", ctypes.c_int64),
        ("seqlens_k", ctypes.c_void_p),
        ("query_seqlens", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("kv_stride", ctypes.c_int64),
        ("key_cache", ctypes.c_void_p),
        ("value_cache", ctypes.c_void_p),
        ("k_scale", ctypes.c_void_p),
        ("v_scale", ctypes.c_void_p),
        ("scale_per_channel", ctypes.c_int32),
        ("q_norm_weight", ctypes.c_void_p),
        ("k_norm_weight", ctypes.c_void_p),
        ("q_norm_epsilon", ctypes.c_float),
        ("k_norm_epsilon", ctypes.c_float),
        ("cos_cache", ctypes.c_void_p),
        ("sin_cache", ctypes.c_void_p),
        ("rotary_rows", ctypes.c_int64),
        ("rotary_half", ctypes.c_int32),
        ("rotary_interleaved", ctypes.c_int32),
        ("position_ids", ctypes.c_void_p),
        ("attention_bias", ctypes.c_void_p),
        ("bias_batch_stride", ctypes.c_int64),
        ("bias_head_stride", ctypes.c_int64),
        ("bias_row_stride", ctypes.c_int64),
        ("head_sink", ctypes.c_void_p),
        ("smooth_softmax", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("output", ctypes.c_void_p),
    )


class CPlan(ctypes.Structure):
    """struct lean_attention_gpu_plan, field by field."""

    _fields_ = (
        ("schedule", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("amount", ctypes.c_int64),
        ("shares", ctypes.c_int64),
        ("state_bytes", ctypes.c_int64),
        ("counters", ctypes.c_int64),
        ("is_persistent", ctypes.c_int32),
    )


Structure = TypeVar("Structure", CStep, CPlan)


def shown(value: Any) -> str:
    """Returns a value as a message shows it: in one line, not too long.

    What is neither a number nor text nor made of these is only named: to show a tensor would wait
    for the device, or read memory that is gone.
    """
    if not _is_plain(value):
        return f"a value of type {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    # Python does not show integers of thousands of digits.
    is_small = not isinstance(value, int) or abs(value) < _LARGEST_SHOWN
    return value is None or (isinstance(value, (int, float, complex, str, bytes)) and is_small)


def check_kind(name: str, value: Any, kind: type, *others: type) -> None:
    """Refuses an argument that is of none of some types.

    Raises:
        LeanAttentionError: What it is, and what the first type is.
    """
    if not isinstance(value, (kind, *others)):
        raise LeanAttentionError(
            f"{name} is {type(value).__name__}; expected lean_attention.gpu.{kind.__name__}"
        )


def integer(name: str, value: Any, kind: type) -> int:
    """Returns a value as an argument of a C type; ctypes itself would cut off what does not fit.

    Raises:
        LeanAttentionError: It is no integer, or outside the type's range.
    """
    try:
        exact = operator.index(value)
    except (TypeError, ValueError, RuntimeError) as error:  # tensors without numbers differ
        raise LeanAttentionError(f"{name} is {shown(value)}; expected an integer") from error
    if kind(exact).value != exact:
        raise LeanAttentionError(f"{name} is {shown(exact)}, which is out of range")
    return exact


def flag(name: str, value: Any) -> bool:
    """Returns a value as a flag.

    Raises:
        LeanAttentionError: It is neither true nor false.
    """
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise LeanAttentionError(f"{name} is {shown(value)}; expected True or False")


def real(name: str, value: Any) -> float:
    """Returns a value as a float.

    Raises:
        LeanAttentionError: It is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise LeanAttentionError(f"{name} is {shown(value)}; expected a number") from error


def fill(structure: Structure, **values: Any) -> Structure:
    """Sets a structure's fields, where None is a null pointer, and returns it.

    Raises:
        LeanAttentionError: A value does not fit its field.
    """
    kinds = dict(structure._fields_)
    for name, value in values.items():
        if value is not None or kinds[name] is not ctypes.c_void_p:
            is_real = kinds[name] is ctypes.c_float
            value = real(name, value) if is_real else integer(name, value, kinds[name])
        setattr(structure, name, value)
    return structure


@cache
def _library() -> ctypes.CDLL:
    path = get_library_path()
    try:
        return _declare(ctypes.CDLL(str(path)))
    except OSError as error:
        raise LeanAttentionError(f"{path} does not load: {error}") from error
    except AttributeError as error:
        raise LeanAttentionError(
            f"{path} is of another version than this package: {error}"
        ) from error


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    message = (ctypes.c_char_p, ctypes.c_int64)
    library.lean_attention_gpu_backend.restype = ctypes.c_char_p
    library.lean_attention_gpu_make_plan.restype = ctypes.c_int32
    library.lean_attention_gpu_make_plan.argtypes = (
        ctypes.POINTER(CStep),
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.POINTER(CPlan),
        *message,
    )
    library.lean_attention_gpu_decode.restype = ctypes.c_int32
    library.lean_attention_gpu_decode.argtypes = (
        ctypes.POINTER(CStep),
        ctypes.POINTER(CPlan),
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *message,
    )
    return library


@cache
def backend() -> str | None:
    """Returns "CUDA" or "ROCm"; None: the library was built without GPU kernels.

    Raises:
        LeanAttentionError: There is no library, or it does not load.
    """
    name: bytes | None = _library().lean_attention_gpu_backend()
    return name.decode() if name else None


def require_backend() -> None:
    """Refuses a library without GPU kernels.

    Raises:
        LeanAttentionError: What to do about it.
    """
    if backend() is None:
        call("make_plan", None, -1, 0, 0, None)


def call(name: str, *arguments: Any) -> str:
    """Calls ``lean_attention_gpu_<name>`` and returns its message.

    Raises:
        DeviceError: The runtime's message.
        LeanAttentionError: The function's own.
    """
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    function = getattr(_library(), f"lean_attention_gpu_{name}")
    status = function(*arguments, message, _MESSAGE_BYTES)
    line = message.value.decode(errors="replace")
    if status == _DEVICE_ERROR:
        raise DeviceError(line)
    if status != 0:
        raise LeanAttentionError(line)
    return line
