"""A measurement as a document: everything that is needed to judge it and to repeat it."""

import datetime
import math
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from lean_attention._version import __version__
from lean_attention.bench.kernel import STOCK_AGAIN, Entry, KernelTimes
from lean_attention.bench.kernel_config import Copies, KernelConfig
from lean_attention.bench.machine import Machine
from lean_attention.bench.roofline import read_name
from lean_attention.errors import LeanAttentionError

__all__ = ["SCHEMA_VERSION", "command_line", "from_document", "to_document", "write_text"]

SCHEMA_VERSION = 1
"""Of the documents; it changes where a reader of the old ones would go wrong."""


def to_document(times: KernelTimes) -> dict[str, Any]:
    """Returns a measurement, with all rounds' times in seconds of a step, as JSON's types."""
    rounds = times.roofline.rounds
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command_line(
            times.config,
            [entry.name for entry in times.entries],
            0 if rounds is None else len(rounds),
        ),
        "commit": _commit(),
        "versions": _versions(),
        "machine": asdict(Machine.this()),
        "step": asdict(times.config),
        "bytes_read": times.config.bytes_read,
        "copies": asdict(times.copies),
        "runs_per_turn": times.runs,
        "reads": {str(streams): _seconds(read) for streams, read in times.reads.items()},
        "contenders": [
            {
                "name": entry.name,
                "seconds": _seconds(entry),
                "refusal": entry.refusal,
                # JSON has no NaN.
                "error": entry.error if math.isfinite(entry.error or 0.0) else None,
                "wrong": entry.wrong,
            }
            for entry in times.entries
        ],
    }


def from_document(document: Mapping[str, Any]) -> KernelTimes:
    """Returns the measurement that a document describes.

    Raises:
        LeanAttentionError: It has another version, or is no such document.
    """
    found = document.get("schema_version")
    if found != SCHEMA_VERSION:
        raise LeanAttentionError(
            f"a measurement has schema version {found!r} and this program reads {SCHEMA_VERSION}; "
            "measure again"
        )
    try:
        step = {**document["step"], "lengths": tuple(document["step"]["lengths"])}
        return KernelTimes(
            KernelConfig(**step),
            Copies(**document["copies"]),
            document["runs_per_turn"],
            tuple(
                Entry(
                    name=entry["name"],
                    rounds=_rounds(entry["seconds"]),
                    refusal=entry["refusal"],
                    error=entry["error"],
                    wrong=entry["wrong"],
                )
                for entry in document["contenders"]
            ),
            {
                int(streams): Entry(read_name(streams), _rounds(seconds))
                for streams, seconds in document["reads"].items()
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LeanAttentionError(f"this is no measurement of a kernel: {error!r}") from error


def command_line(config: KernelConfig, contenders: list[str], rounds: int) -> str:
    """Returns the command that repeats a measurement."""
    names = [name for name in contenders if name != STOCK_AGAIN]
    words = ["lean-attention", "bench", "kernel", *config.flags(), f"--against={','.join(names)}"]
    words += ["--self-check"] * (STOCK_AGAIN in contenders)
    return shlex.join([*words, f"--rounds={rounds}"])


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all.

    Raises:
        LeanAttentionError: The file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise LeanAttentionError(f"cannot write {path}: {error.strerror}") from error


def _seconds(entry: Entry) -> list[float] | None:
    # Five digits are more than a clock in a noisy machine gives.
    return None if entry.rounds is None else [float(f"{second:.5g}") for second in entry.rounds]


def _rounds(seconds: list[float] | None) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    return None if seconds is None else np.array(seconds, np.float64)


def _versions() -> dict[str, str]:
    versions = {
        "lean-attention": __version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    with suppress(PackageNotFoundError):
        versions["torch"] = version("torch")
    return versions


def _commit() -> str | None:
    """Returns the commit of the checkout that this package lies in; None where it lies in none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
