"""Device memory that a launch needs beside its tensors."""

import threading

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.tensors import Tensor, empty, view, zeros

__all__ = ["Workspace"]


class Workspace:
    """States and counters where the pieces of split sequences meet; grows when a plan needs more.

    Launches that may run at the same time need a workspace each: one per stream, which several
    threads may share. All steps that use one have tensors of the same library on the same device. A
    captured graph needs one that has grown before the capture and is kept as long as the graph.
    """

    def __init__(self) -> None:
        """Starts without memory."""
        self._lock = threading.Lock()
        # What it has grown out of: launches that were given it may still be on their way.
        self._outgrown: list[Tensor | None] = []
        self._states: Tensor | None = None
        self._counters: Tensor | None = None

    @property
    def state_bytes(self) -> int:
        """Bytes that it has for states."""
        return 0 if self._states is None else int(self._states.shape[0])

    @property
    def counters(self) -> int:
        """Counters that it has."""
        return 0 if self._counters is None else int(self._counters.shape[0])

    def reserve(
        self, state_bytes: int, counters: int, like: Tensor
    ) -> tuple[int | None, int | None]:
        """Sees to it that a plan has what it needs; what grows is allocated on the current stream.

        Args:
            state_bytes: The plan's.
            counters: The plan's.
            like: A tensor of the library and the device that the memory comes from.

        Returns:
            The addresses of the states and of the counters.

        Raises:
            LeanAttentionError: The workspace has memory on another device.
        """
        with self._lock:
            if state_bytes > self.state_bytes:
                self._outgrown.append(self._states)
                self._states = empty(like, (max(state_bytes, 2 * self.state_bytes),), "uint8")
            if counters > self.counters:
                self._outgrown.append(self._counters)
                self._counters = zeros(like, (max(counters, 2 * self.counters),), "int32")
            return _address(self._states, like), _address(self._counters, like)

    def forget(self) -> None:
        """Gives its memory back, as is needed after a launch that failed: counters may be left."""
        with self._lock:
            self._states = self._counters = None
            self._outgrown = []


def _address(memory: Tensor | None, like: Tensor) -> int | None:
    if memory is None:
        return None
    found, device = view("the workspace", memory), view("query", like).device
    if found.device != device:
        raise LeanAttentionError(f"the workspace is on {found.device}, and the step on {device}")
    return found.pointer
