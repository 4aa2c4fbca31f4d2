"""Which stream a step goes to."""

import operator
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.tensors import Tensor, is_torch

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
        return operator.index(stream)
    except TypeError:
        raise LeanAttentionError(
            f"stream is {type(stream).__name__}; expected a torch.cuda.Stream with PyTorch's "
            "tensors, or an address"
        ) from None


@contextmanager
def _current_of_torch(query: Tensor, stream: Any) -> Iterator[int | None]:
    if query.device.type != "cuda":
        yield None
        return
    cuda = sys.modules["torch"].cuda
    if stream is None:
        stream = cuda.current_stream(query.device)
    elif not isinstance(stream, cuda.Stream):
        address = _address(stream)
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
        yield query.__cuda_array_interface__.get("stream")
        return
    address = _address(stream)
    # CuPy allocates and clears on its current stream.
    cuda = getattr(getattr(query, "__array_namespace__", lambda: None)(), "cuda", None)
    with cuda.ExternalStream(address) if cuda is not None else nullcontext():
        yield address
