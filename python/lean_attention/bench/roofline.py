"""A plain read of memory by several threads: no attention over the same bytes can be faster."""

import ctypes
from collections.abc import Sequence
from functools import cache

from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import get_library_path

__all__ = ["PLAIN_STREAMS", "READ_STREAMS", "MemoryRead", "read_name"]

PLAIN_STREAMS = 1
"""Of the plain read: each thread reads in one place."""
READ_STREAMS = (PLAIN_STREAMS, 4)
"""Of the reads that serve as rooflines. Four places by turns keep more misses in flight."""


def read_name(streams: int) -> str:
    """Returns what tables call a read."""
    return "plain read" if streams == PLAIN_STREAMS else f"{streams}-way read"


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(get_library_path()))
    library.lean_attention_read_memory.restype = ctypes.c_int32
    library.lean_attention_read_memory.argtypes = (
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_double),
        ctypes.POINTER(ctypes.c_uint64),
    )
    library.lean_attention_status_message.restype = ctypes.c_char_p
    library.lean_attention_status_message.argtypes = (ctypes.c_int32,)
    return library


class MemoryRead:
    """Reads the same memory, once each time that it is called.

    Attributes:
        combined: The exclusive or of all 8-byte words read, zeros after the end of each piece; None
            before the first read.
    """

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Takes the pieces of memory: addresses and bytes; they must outlive this object."""
        count = len(pieces)
        self._count = count
        self._addresses = (ctypes.c_void_p * count)(*(address for address, _ in pieces))
        self._bytes = (ctypes.c_int64 * count)(*(size for _, size in pieces))
        self.combined: int | None = None

    def __call__(self, threads: int, streams: int) -> float:
        """Loads every byte once.

        Args:
            threads: 1 to 1024.
            streams: Places from which each thread reads by turns: 1, 2 or 4.

        Returns:
            Seconds, without the starting of threads.

        Raises:
            LeanAttentionError: A number is outside of these, or there is no memory for threads.
        """
        seconds, combined = ctypes.c_double(), ctypes.c_uint64()
        status = _library().lean_attention_read_memory(
            self._addresses, self._bytes, self._count, threads, streams, seconds, combined
        )
        if status != 0:
            message: bytes = _library().lean_attention_status_message(status)
            raise LeanAttentionError(
                f"cannot read memory with {threads} threads and {streams} streams: "
                f"{message.decode()}"
            )
        self.combined = combined.value
        return seconds.value
