"""What runs as a program of its own: the build, the vendor's checker, and FlashInfer's compiler."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["CheckError", "build", "prepare_flashinfer", "sanitize"]

_KERNEL = "DecodeAttention"
# What each tool needs: PyTorch's cache of memory would hide accesses past the end of a tensor.
_TOOLS = {"memcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "racecheck": {}}


class CheckError(Exception):
    """A phase that could not be done; the message says why."""


class OutOfTimeError(CheckError):
    """A program that did not end within its limit."""


def _run(
    command: list[str], seconds: float, log: Path, variables: dict[str, str] | None = None
) -> None:
    """Runs a program within a time limit; its output goes to a file, its last lines to an error."""
    # Whatever it said is to be there, should it be stopped.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})}
    with log.open("a", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=max(seconds, 1),
                env=environment,
            ).returncode
        except subprocess.TimeoutExpired:
            raise OutOfTimeError(
                f"{command[0]} took more than {seconds:.0f} s; see {log}"
            ) from None
        except OSError as error:
            raise CheckError(f"{command[0]} does not run: {error}") from None
    if status != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise CheckError(f"{command[0]} failed with {status}; {log} ends: {' / '.join(tail)}")


def build(root: Path, architecture: str, seconds: float) -> Path:
    """Builds the library in build/gpu_check; what was built there before is kept.

    Args:
        root: Of the checkout.
        architecture: The compute capability without its dot.
        seconds: The time limit.

    Returns:
        The library.

    Raises:
        CheckError: It did not build, or not in time.
    """
    folder = root / "build" / "gpu_check"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    log.unlink(missing_ok=True)
    end = time.monotonic() + seconds
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [
        "-DLEAN_ATTENTION_CUDA=ON",
        "-DLEAN_ATTENTION_ROCM=OFF",
        f"-DLEAN_ATTENTION_CUDA_ARCHITECTURES={architecture}",
    ]
    _run(["cmake", "-S", str(root), "-B", str(folder), *generator, *options], seconds, log)
    jobs = str(os.cpu_count() or 1)
    command = ["cmake", "--build", str(folder), "--target", "lean_attention", "--parallel", jobs]
    _run(command, end - time.monotonic(), log)
    return folder / "liblean_attention.so"


def prepare_flashinfer(script: Path, library: Path, seconds: float, folder: Path) -> None:
    """Has FlashInfer compile its kernels, which later processes find in its cache.

    Raises:
        CheckError: It did not, or not in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "flashinfer.log"
    log.unlink(missing_ok=True)
    command = [sys.executable, str(script), "--library", str(library), "--only-flashinfer"]
    _run(command, seconds, log)


def sanitize(script: Path, library: Path, seconds: float, folder: Path) -> dict[str, Any]:
    """Runs a few cases under compute-sanitizer; returns what it says, as JSON's types.

    Args:
        script: gpu_check.py.
        library: What is checked.
        seconds: The time limit; a tool that comes first leaves the others their parts of it.
        folder: Where the logs go.
    """
    program = shutil.which("compute-sanitizer")
    if program is None:
        return {"skipped": "compute-sanitizer is not installed"}
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    failures, passed, left_out, times = {}, [], {}, {}
    for at, (tool, variables) in enumerate(_TOOLS.items()):
        log = folder / f"{tool}.log"
        log.unlink(missing_ok=True)
        command = [program, "--tool", tool, "--error-exitcode", "9", "--kernel-regex"]
        command += [f"kns={_KERNEL}", sys.executable, str(script), "--library", str(library)]
        begin = time.monotonic()
        share = (end - begin) / (len(_TOOLS) - at)
        try:
            _run([*command, "--only-parity", "--small"], share, log, variables)
            passed.append(tool)
        except OutOfTimeError as error:
            left_out[tool] = str(error)
        except CheckError as error:
            failures[tool] = str(error)
        times[tool] = time.monotonic() - begin
    return {"passed": passed, "failures": failures, "left_out": left_out, "tool_seconds": times}
