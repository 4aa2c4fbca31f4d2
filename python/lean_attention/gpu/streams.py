"""Which stream a step goes to."""

import ctypes
import operator
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.c_functions import integer
from lean_attention.gpu.tensors import Tensor, is_torch, namespace_of

__all__ = ["current"]


def current(query: Tensor, stream: Any) -> AbstractContextManager[int | None]:
    """Makes the query's device and a stream current, for allocations too; gives its address.

    Args:
        query: A tensor of the library that is to know it.
        stream: A ``torch.cuda.Stream``, or the address of a cudaStream_t or hipStream_t. None: the
            library's own choice.

    Raises:
        LeanAttentionError: It is no stream, or on another device.
    """
    return (
        _current_of_torch(query, stream) if is_torch(query) else _current_of_others(query, stream)
    )


def _address(stream: Any) -> int:
    try:
        address = operator.index(stream)
    except (TypeError, ValueError, RuntimeError):
        raise LeanAttentionError(
            f"stream is {type(stream).__name__}; expected a torch.cuda.Stream with PyTorch's "
            "tensors, or an address"
        ) from None
    return integer("stream", address, ctypes.c_uint64)


@contextmanager
def _current_of_torch(query: Tensor, stream: Any) -> Iterator[int | None]:
    cuda = sys.modules["torch"].cuda
    is_named = stream is not None and not isinstance(stream, cuda.Stream)
    address = _address(stream) if is_named else 0
    if query.device.type != "cuda":
        yield None
        return
    if stream is None:
        stream = cuda.current_stream(query.device)
    elif is_named:
        stream = (
            cuda.ExternalStream(address, device=query.device)
            if address
            else cuda.default_stream(query.device)
        )
    if stream.device != query.device:
        raise LeanAttentionError(f"the stream is on {stream.device}, and query on {query.device}")
    with cuda.stream(stream):
        yield stream.cuda_stream


@contextmanager
def _current_of_others(query: Tensor, stream: Any) -> Iterator[int | None]:
    if stream is None:
        stream = query.__cuda_array_interface__.get("stream")
        yield None if stream is None else _address(stream)
        return
    address = _address(stream)
    # CuPy allocates and clears on its current stream.
    external = getattr(getattr(namespace_of(query), "cuda", None), "ExternalStream", None)
    with nullcontext() if external is None else external(address):
        yield address
