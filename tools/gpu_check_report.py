"""What was measured as tables, a summary and a document."""

import datetime
import json
import math
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rich.table import Table

from gpu_check_timing import Row

__all__ = ["document_head", "file_name", "summarise", "timing_tables", "write"]

_CONTENDERS = ("direct", "fixed_split", "lean", "torch", "flashinfer")


def file_name(device: str) -> str:
    """Returns the name of a GPU's document."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def document_head(command: list[str], root: Path) -> dict[str, Any]:
    """Returns what is said of a check before anything was found."""
    return {
        "schema_version": 2,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "commit": _commit(root),
        "phases": {},
    }


def _commit(root: Path) -> str | None:
    """Returns the commit, with a mark where files differ from it; None outside of git."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write(path: Path, document: dict[str, Any]) -> None:
    """Writes a document whole, or leaves the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".partial")
    text = json.dumps(_finite(document), indent=1, allow_nan=False)
    scratch.write_text(text + "\n", encoding="utf-8")
    scratch.replace(path)


def _finite(value: Any) -> Any:
    """Returns a document without the infinities and NaN that JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ratios(rows: Iterable[Row], to: str) -> list[float]:
    """Returns how many times as fast as another lean is, where both were timed."""
    return [r.micros[to] / r.micros["lean"] for r in rows if {to, "lean"} <= r.micros.keys()]


def _mean(ratios: list[float]) -> float | None:
    return geometric_mean(ratios) if ratios else None


def _kinds(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Returns the rows of ragged batches, and those of uniform ones."""
    kinds: dict[str, list[Row]] = {"ragged": [], "uniform": []}
    for row in rows:
        kinds["ragged" if row.case.ragged else "uniform"].append(row)
    return kinds


def _summary_of(rows: list[Row], copy_bytes_per_second: float) -> dict[str, Any]:
    best = [
        (min(row.micros["direct"], row.micros["fixed_split"]) / row.micros["lean"], str(row.case))
        for row in rows
        if {"direct", "fixed_split", "lean"} <= row.micros.keys()
    ]
    fractions = [
        row.bytes_read / (row.micros["lean"] / 1e6) / copy_bytes_per_second
        for row in rows
        if "lean" in row.micros
    ]
    others = ("fixed_split", "torch", "flashinfer")
    return {
        **{f"{other}_over_lean": _mean(_ratios(rows, other)) for other in others},
        "worst_to_the_better_of_direct_and_fixed_split": min(best, default=None),
        "best_fraction_of_copy": max(fractions, default=None),
    }


def summarise(rows: list[Row], copy_bytes_per_second: float) -> dict[str, dict[str, Any]]:
    """Returns the few numbers that the ragged and the uniform rows come down to.

    Ratios are the other's time over lean's: above 1, lean is the faster. Means are geometric. None
    stands where no row tells.
    """
    return {kind: _summary_of(some, copy_bytes_per_second) for kind, some in _kinds(rows).items()}


def timing_tables(rows: list[Row], copy_bytes_per_second: float) -> list[Table]:
    """Returns tables of medians, one of ragged and one of uniform batches."""
    return [
        _table(kind, some, copy_bytes_per_second) for kind, some in _kinds(rows).items() if some
    ]


def _table(kind: str, rows: list[Row], copy_bytes_per_second: float) -> Table:
    copy = f"a copy moves {copy_bytes_per_second / 1e9:.0f} GB/s"
    table = Table(title=f"Microseconds of {kind} batches; {copy}")
    names = [name for name in _CONTENDERS if any(name in row.micros for row in rows)]
    table.add_column("step", no_wrap=True)
    titles = ("mean", *names, "torch by", "GB/s", "of copy", "fixed/lean")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        speed = row.bytes_read / row.micros["lean"] * 1e6 if "lean" in row.micros else None
        ratio = _mean(_ratios([row], "fixed_split"))
        table.add_row(
            str(row.case),
            f"{row.mean_length / row.case.context:.0%}",
            *(f"{row.micros[name]:.1f}" if name in row.micros else "-" for name in names),
            row.backends.get("torch", "-").removesuffix("_attention"),
            "-" if speed is None else f"{speed / 1e9:.0f}",
            "-" if speed is None else f"{speed / copy_bytes_per_second:.2f}",
            "-" if ratio is None else f"{ratio:.2f}",
        )
    return table
