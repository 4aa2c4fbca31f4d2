"""The GPU that is checked, or the emulator in its place: memory, streams, graphs, time."""

import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch

from lean_attention import gpu

__all__ = ["Budget", "Device"]

Result = TypeVar("Result")

_PACKAGES = ("torch", "flashinfer-python", "onnxruntime", "onnxruntime-gpu", "numpy")
_QUERIES = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
)


class Budget:
    """A time limit that a phase keeps by asking, so that what it has is not lost."""

    def __init__(self, seconds: float) -> None:
        """Starts the clock."""
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 where it was overrun."""
        return self._end - time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether nothing more should be begun."""
        return self.left <= 0


class Device:
    """PyTorch's current GPU; the emulator where the library is for that."""

    def __init__(self) -> None:
        """Looks at the library."""
        self.is_emulated = gpu.backend() == "emulator"
        self.torch = torch.device("cpu" if self.is_emulated else "cuda")
        cache = 0 if self.is_emulated else torch.cuda.get_device_properties(0).L2_cache_size
        # Twice the cache, and enough for the host to enqueue a measurement meanwhile.
        self._flush_buffer = torch.empty(
            1 if self.is_emulated else max(2 * cache, 256 << 20),
            dtype=torch.uint8,
            device=self.torch,
        )

    @property
    def name(self) -> str:
        """The GPU's name."""
        return "emulator" if self.is_emulated else torch.cuda.get_device_name()

    @property
    def free_bytes(self) -> int:
        """Memory that is left."""
        return 1 << 26 if self.is_emulated else torch.cuda.mem_get_info()[0]

    def describe(self) -> dict[str, Any]:
        """Returns what a measurement depends on, as JSON's types."""
        found: dict[str, Any] = {
            "name": self.name,
            "emulated": self.is_emulated,
            "host": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in _PACKAGES},
        }
        if not self.is_emulated:
            properties = torch.cuda.get_device_properties(0)
            found |= {
                "compute_capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "memory": properties.total_memory,
                "cuda": torch.version.cuda,
                "clocks": self.clocks(),
            }
        return found

    def clocks(self) -> dict[str, str]:
        """Returns what nvidia-smi says now; nothing where there is none."""
        if self.is_emulated:
            return {}
        try:
            line = subprocess.run(
                ["nvidia-smi", f"--query-gpu={','.join(_QUERIES)}", "--format=csv,noheader"],
                check=True,
                capture_output=True,
                text=True,
                timeout=20,
            ).stdout.splitlines()[torch.cuda.current_device()]
        except (OSError, subprocess.SubprocessError, IndexError):
            return {}
        return dict(zip(_QUERIES, (part.strip() for part in line.split(",")), strict=False))

    def synchronize(self) -> None:
        """Waits for all that was enqueued; errors of kernels appear here."""
        if not self.is_emulated:
            torch.cuda.synchronize()

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Returns what repeats a launch: a graph, so that the host's part is not timed.

        Each repetition gives the result of the launch, in the same memory.
        """
        if self.is_emulated:
            return run
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        # Not torch.cuda.graph, which collects garbage and empties PyTorch's cache of memory.
        with torch.cuda.stream(side):
            run()  # what allocates or chooses on the first call
            side.synchronize()
            graph.capture_begin()
            try:
                output = run()
            finally:
                graph.capture_end()
        torch.cuda.synchronize()

        def replay() -> Result:
            graph.replay()
            return output

        # A graph does not keep the memory that it was captured over: what owns it, the launch does.
        replay.captured = run  # type: ignore[attr-defined]
        return replay

    def seconds(self, runs: list[Callable[[], object]]) -> list[float]:
        """Times launches, each after the device's cache was filled with something else."""
        if self.is_emulated:
            return [_host_seconds(run) for run in runs]
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in runs]
        for run, (begin, end) in zip(runs, events, strict=True):
            self._flush_buffer.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in events]


def _host_seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
