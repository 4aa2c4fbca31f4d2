"""How much memory a verification may take."""

from pathlib import Path

__all__ = ["lacks_memory"]

MEMINFO = Path("/proc/meminfo")


def lacks_memory(what: str, needed: int) -> str:
    """Why something does not fit into memory; empty where it does, or where nobody knows.

    Args:
        what: What takes the memory, in the plural.
        needed: Its size in bytes.
    """
    if not MEMINFO.is_file():
        return ""
    rows = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free = int(rows.get("MemAvailable", "0").split()[0]) * 1024
    if not free or needed < free:
        return ""
    return f"{what} take {needed / 1e9:.1f} GB of memory, of which {free / 1e9:.1f} GB are free"
