"""The machine that measures: what it is, how large its caches are, how much memory is free."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from lean_attention import kernels

__all__ = ["Machine", "available_memory", "last_level_cache_bytes", "usable_processors"]

_PROCESSORS = Path("/sys/devices/system/cpu")
# Where the system tells nothing; larger than most caches of one processor.
_ASSUMED_CACHE_BYTES = 32 << 20


@dataclass(frozen=True)
class Machine:
    """What a measurement depends on.

    Attributes:
        cpu: The processor's model.
        architecture: ``x86_64``, ``aarch64``.
        instruction_set: Of our kernel; None where it has none for this processor.
        cores: Physical cores.
        processors: Logical processors that this process may use.
        caches: Bytes by level ("L1d", "L2", "L3"), all instances together.
        memory: Bytes.
        huge_pages: When the system backs memory with large pages: always, madvise or never.
        kernel: The operating system's release.
    """

    cpu: str
    architecture: str
    instruction_set: str | None
    cores: int
    processors: int
    caches: dict[str, int]
    memory: int
    huge_pages: str
    kernel: str

    @classmethod
    def this(cls) -> "Machine":
        """Describes the machine that runs this."""
        setting = re.search(
            r"\[(\w+)\]", _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
        )
        return cls(
            cpu=_cpu_model(),
            architecture=platform.machine(),
            instruction_set=kernels.cpu_target(),
            cores=len(_distinct("topology/thread_siblings_list")) or (os.cpu_count() or 1),
            processors=usable_processors(),
            caches=_caches(),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            huge_pages=setting[1] if setting else "unknown",
            kernel=f"{platform.system()} {platform.release()}",
        )


def usable_processors() -> int:
    """Returns how many logical processors this process may use."""
    return len(os.sched_getaffinity(0))


def last_level_cache_bytes() -> int:
    """Returns the size of all caches of the last level together, in bytes."""
    caches = _caches()
    return caches[max(caches)] if caches else _ASSUMED_CACHE_BYTES


def available_memory() -> int:
    """Returns the bytes that can be allocated before the system, or this container, runs out."""
    free = re.search(r"MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")))
    system = (
        int(free[1]) << 10 if free else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    )
    group = Path("/sys/fs/cgroup")
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        return min(system, max(0, int(limit) - int(used)))
    return system


def _read(path: Path) -> str:
    """Returns a file of the system; empty where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _distinct(file: str) -> set[str]:
    """Returns the distinct texts of a file that each processor has."""
    return {text for p in _PROCESSORS.glob("cpu[0-9]*") if (text := _read(p / file).strip())}


def _cpu_model() -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _caches() -> dict[str, int]:
    """Returns bytes by level; a cache that processors share counts once."""
    found: dict[tuple[str, str], int] = {}
    for index in _PROCESSORS.glob("cpu[0-9]*/cache/index*"):
        kind, level = _read(index / "type").strip(), _read(index / "level").strip()
        size = re.fullmatch(r"(\d+)K", _read(index / "size").strip())
        if size and kind in {"Data", "Unified"}:
            name = f"L{level}d" if level == "1" else f"L{level}"
            found[name, _read(index / "shared_cpu_list")] = int(size[1]) << 10
    totals: dict[str, int] = {}
    for (name, _), size_bytes in sorted(found.items()):
        totals[name] = totals.get(name, 0) + size_bytes
    return totals
