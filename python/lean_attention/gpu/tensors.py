"""Tensors in device memory, of PyTorch or of any library with ``__cuda_array_interface__``.

None of these libraries is imported: whoever has a tensor of one has imported it.
"""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.c_functions import backend, integer, require_backend, shown

__all__ = ["DeviceTensor", "Tensor", "empty", "is_torch", "namespace_of", "view", "zeros"]

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
        try:
            found = _view_torch(name, tensor)
        except (RuntimeError, ValueError) as error:  # nested, fake and uninitialised ones
            reason = str(error).partition("\n")[0]
            raise LeanAttentionError(
                f"{name} is a {type(tensor).__name__} without memory of its own: {reason}"
            ) from error
    else:
        found = _view_interface(name, _interface_of(name, tensor))
    if 0 in found.shape:
        raise LeanAttentionError(f"{found}; it must not be empty")
    if found.pointer == 0:
        raise LeanAttentionError(f"{found}; it has no memory")
    return found


def _interface_of(name: str, tensor: Tensor) -> Mapping[str, Any]:
    try:
        interface = tensor.__cuda_array_interface__
    except Exception as error:  # as its library sees fit, where it is in the host's memory
        raise LeanAttentionError(
            f"{name} is {type(tensor).__name__}; expected a tensor of PyTorch, or an array with "
            "__cuda_array_interface__"
        ) from error
    if not isinstance(interface, Mapping) or not {"shape", "typestr", "data"} <= interface.keys():
        raise LeanAttentionError(
            f"{name} has the __cuda_array_interface__ {shown(interface)}; expected a dictionary "
            "with shape, typestr and data"
        )
    return interface


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


def _integers(name: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(integer(name, value, ctypes.c_int64) for value in values)
    except TypeError:
        raise LeanAttentionError(f"{name} is {shown(values)}; expected integers") from None


def _view_interface(name: str, interface: Mapping[str, Any]) -> DeviceTensor:
    kind, data, mask = interface["typestr"], interface["data"], interface.get("mask")
    is_address = isinstance(data, tuple) and len(data) == 2
    if not isinstance(kind, str) or kind not in _TYPE_NAMES or not is_address or mask is not None:
        raise LeanAttentionError(
            f"{name} has the type {shown(kind)}, data {shown(data)} and mask {shown(mask)}; "
            f"expected one of {', '.join(_TYPE_NAMES)}, an address with its flag, and no mask"
        )
    shape = _integers(f"{name}'s shape", interface["shape"])
    if any(size < 0 for size in shape):
        raise LeanAttentionError(f"{name} has the shape {shape}; expected no negative sizes")
    item_bytes = int(kind[2:])
    strides = interface.get("strides")
    if strides is None:
        strides = [item_bytes] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            strides[i] = strides[i + 1] * shape[i + 1]
    else:
        strides = _integers(f"{name}'s strides", strides)
    if len(strides) != len(shape):
        raise LeanAttentionError(f"{name} has {len(strides)} strides for the shape {shape}")
    if any(stride % item_bytes for stride in strides):
        raise LeanAttentionError(f"{name} has strides of {strides} bytes, not of whole elements")
    pointer, is_readonly = data
    return DeviceTensor(
        name,
        integer(f"{name}'s address", pointer, ctypes.c_uint64),
        _TYPE_NAMES[kind],
        shape,
        tuple(stride // item_bytes for stride in strides),
        "the current device",
        bool(is_readonly),
    )


def namespace_of(like: Tensor) -> Any:
    """Returns the module of an array's library; None where it does not say."""
    try:
        return like.__array_namespace__()
    except Exception:  # as its library sees fit
        return None


def _allocate(how: str, like: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    place: dict[str, Any] = {}
    if is_torch(like):
        namespace, place = sys.modules["torch"], {"device": like.device}
    else:
        namespace = namespace_of(like)
    if not hasattr(namespace, how) or not hasattr(namespace, dtype):
        raise LeanAttentionError(
            f"{type(like).__module__} does not say how it allocates {dtype} "
            "(__array_namespace__); use arrays of CuPy or tensors of PyTorch"
        )
    try:
        return getattr(namespace, how)(shape, dtype=getattr(namespace, dtype), **place)
    except Exception as error:  # as they see fit
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
