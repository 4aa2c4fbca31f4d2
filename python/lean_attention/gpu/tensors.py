"""Tensors in device memory, of PyTorch or of any library with ``__cuda_array_interface__``.

None of these libraries is imported: whoever has a tensor of one has imported it.
"""

import sys
from dataclasses import dataclass
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.c_functions import backend, require_backend

__all__ = ["DeviceTensor", "Tensor", "empty", "is_torch", "view", "zeros"]

Tensor = Any

# Of __cuda_array_interface__, version 3. bfloat16 and float8 have no name there.
_TYPE_NAMES = {
    "<f2": "float16",
    "<f4": "float32",
    "|i1": "int8",
    "|u1": "uint8",
    "<i4": "int32",
    "<i8": "int64",
}


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor as a kernel sees it.

    Attributes:
        name: For messages.
        pointer: Its address on the device.
        dtype: As PyTorch names it, ``float16``.
        shape: Elements in each dimension, none of them 0.
        strides: Elements from one to the next in each dimension.
        device: As PyTorch names it, ``cuda:0``; of other libraries, ``the current device``.
        is_readonly: Whether its library forbids to change it.
    """

    name: str
    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    is_readonly: bool = False

    def __str__(self) -> str:
        """Describes it in an error."""
        return f"{self.name} is {self.dtype} {self.shape}, strides {self.strides}, on {self.device}"

    def is_contiguous(self, first: int = 0) -> bool:
        """Whether the dimensions from ``first`` on lie without gaps, the last one's closest."""
        expected = 1
        for size, stride in reversed(list(zip(self.shape, self.strides, strict=True))[first:]):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True


def is_torch(tensor: Tensor) -> bool:
    """Whether a tensor is PyTorch's."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def view(name: str, tensor: Tensor) -> DeviceTensor:
    """Looks at a tensor.

    Args:
        name: For messages.
        tensor: Of PyTorch, or with ``__cuda_array_interface__``.

    Returns:
        What it is; valid as long as the tensor is.

    Raises:
        LeanAttentionError: It is no such tensor, not on the backend's device, or empty; or the
            library has no backend.
    """
    require_backend()
    if is_torch(tensor):
        found = _view_torch(name, tensor)
    elif hasattr(tensor, "__cuda_array_interface__"):
        found = _view_interface(name, tensor.__cuda_array_interface__)
    else:
        raise LeanAttentionError(
            f"{name} is {type(tensor).__name__}; expected a tensor of PyTorch, or an array with "
            "__cuda_array_interface__"
        )
    if 0 in found.shape:
        raise LeanAttentionError(f"{found}; it must not be empty")
    return found


def _view_torch(name: str, tensor: Tensor) -> DeviceTensor:
    kind = "cpu" if backend() == "emulator" else "cuda"
    if str(tensor.layout) != "torch.strided" or tensor.device.type != kind:
        raise LeanAttentionError(
            f"{name} is {tensor.layout} on {tensor.device}; expected a torch.strided tensor on "
            f"{kind}"
        )
    if tensor.is_neg():
        raise LeanAttentionError(f"{name} is a negated view; call resolve_neg() first")
    return DeviceTensor(
        name,
        tensor.data_ptr(),
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.device),
    )


def _view_interface(name: str, interface: dict[str, Any]) -> DeviceTensor:
    shape = tuple(interface["shape"])
    kind, data = interface["typestr"], interface["data"]
    if kind not in _TYPE_NAMES or data is None or interface.get("mask") is not None:
        raise LeanAttentionError(
            f"{name} has the type {kind!r}, data {data} and mask {interface.get('mask')}; expected "
            f"one of {', '.join(_TYPE_NAMES)}, an address, and no mask"
        )
    item_bytes = int(kind[2:])
    strides = interface.get("strides")
    if strides is None:
        strides = [item_bytes] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            strides[i] = strides[i + 1] * shape[i + 1]
    if len(strides) != len(shape):
        raise LeanAttentionError(f"{name} has {len(strides)} strides for the shape {shape}")
    if any(stride % item_bytes for stride in strides):
        raise LeanAttentionError(f"{name} has strides of {strides} bytes, not of whole elements")
    pointer, is_readonly = data
    return DeviceTensor(
        name,
        pointer,
        _TYPE_NAMES[kind],
        shape,
        tuple(stride // item_bytes for stride in strides),
        "the current device",
        is_readonly,
    )


def _allocate(how: str, like: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    place: dict[str, Any] = {}
    if is_torch(like):
        namespace, place = sys.modules["torch"], {"device": like.device}
    elif hasattr(like, "__array_namespace__"):
        namespace = like.__array_namespace__()
    else:
        raise LeanAttentionError(
            f"{type(like).__module__} does not say how it allocates (__array_namespace__); use "
            "arrays of CuPy or tensors of PyTorch"
        )
    try:
        return getattr(namespace, how)(shape, dtype=getattr(namespace, dtype), **place)
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:  # as they see fit
        reason = str(error).partition("\n")[0]
        raise LeanAttentionError(f"no memory for {dtype} {shape}: {reason}") from error


def empty(like: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Allocates a tensor of another one's library on its device.

    Raises:
        LeanAttentionError: There is no memory for it, or the library does not say how.
    """
    return _allocate("empty", like, shape, dtype)


def zeros(like: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Allocates a tensor of zeros, which are written in the order of the current stream.

    Raises:
        LeanAttentionError: As `empty`.
    """
    return _allocate("zeros", like, shape, dtype)
