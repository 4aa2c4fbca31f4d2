"""Checks and times the GPU kernel on a machine with an NVIDIA GPU, within nine minutes.

    python tools/gpu_check.py

builds the library for this GPU alone, compares the kernel with float64 and with itself, runs a few
cases under compute-sanitizer, times the three schedules against PyTorch and FlashInfer over a grid
of steps, replays a captured graph with other lengths, and compares the operator with the stock one
where ONNX Runtime has the CUDA provider. It prints a table and writes docs/results/gpu/NAME.json.

It needs nvcc, CMake, PyTorch with CUDA, and what the package needs: docs/gpu_check.md has the
commands. Every phase keeps a time limit; what did not fit or was skipped is named, and what was
found is written whatever happens. The exit status is 1 where something is wrong. Without a GPU,
--dry-run goes through all phases on the emulated library that --library names; its times say
nothing.
"""

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parent.parent
# The checkout's package, which is what the library is built with.
sys.path.insert(0, str(ROOT / "python"))

from gpu_check_build import CheckError, build, prepare_flashinfer, sanitize  # noqa: E402

__all__ = ["main"]

_LIMITS = {
    "build": 90,
    "parity": 60,
    "flashinfer": 90,
    "timing": 120,
    "operator": 30,
    "sanitizer": 120,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--library", type=Path, dest="built", help="a built library, instead of building one"
    )
    parser.add_argument("--output", type=Path, help="where the document goes")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, on the emulator")
    parser.add_argument("--small", action="store_true", help="a few tiny shapes alone")
    parser.add_argument("--only-parity", action="store_true", help="check, and time nothing")
    parser.add_argument(
        "--only-flashinfer", action="store_true", help="compile FlashInfer's kernels, and no more"
    )
    for phase, seconds in _LIMITS.items():
        parser.add_argument(
            f"--{phase}-limit", type=float, default=seconds, metavar="SECONDS", help=f"{seconds}"
        )
    return parser.parse_args(arguments)


class Check:
    """One run of all phases."""

    def __init__(self, options: argparse.Namespace, console: Console, library: Path) -> None:
        """Takes a library that is there, and the device that it is for."""
        os.environ["LEAN_ATTENTION_LIBRARY"] = str(library)
        # These look at the library as soon as they are imported.
        from gpu_check_device import Device
        from gpu_check_report import document_head, file_name

        require_device(library)
        self.options, self.console, self.built = options, console, library
        self.device = Device()
        self.has_flashinfer = False
        if options.dry_run and not self.device.is_emulated:
            raise CheckError(f"--dry-run needs an emulated library, and {library} is none")
        self.is_small = options.small or self.device.is_emulated
        self.output: Path | None = options.output
        if self.output is None and not self.is_small and not options.only_parity:
            self.output = ROOT / "docs" / "results" / "gpu" / file_name(self.device.name)
        self.document = document_head(sys.argv, ROOT) | {"device": self.device.describe()}

    def save(self) -> None:
        """Writes what there is; nothing where it has no place."""
        from gpu_check_report import write

        if self.output is not None:
            write(self.output, self.document)

    def phase(self, name: str, work: Callable[[], dict[str, Any]]) -> bool:
        """Does a phase, whatever becomes of it; returns whether nothing was wrong."""
        begin = time.monotonic()
        try:
            found = work()
            self.device.synchronize()
        except Exception as error:  # the phases before it are not to be lost
            found = {"failures": {name: f"{type(error).__name__}: {error}"}}
        if found.get("checked") == 0:
            found.setdefault("skipped", "nothing of it was done")
        found["seconds"] = time.monotonic() - begin
        self.document["phases"].setdefault(name, {}).update(found)
        self.save()
        failures = found.get("failures", {})
        is_skipped = "skipped" in found
        note = f"skipped: {found['skipped']}" if is_skipped else f"{found['seconds']:.1f} s"
        if found.get("left_out"):
            note += f", {len(found['left_out'])} left out"
        mark = "[red]✗[/]" if failures else "[yellow]-[/]" if is_skipped else "[green]✓[/]"
        self.console.print(f"{mark} {name} ({note})", highlight=False)
        for what, why in failures.items():
            self.console.print(f"  {what}: {why}", markup=False, highlight=False)
        return not failures

    def _progress(self, name: str, total: int) -> tuple[Progress, Callable[..., None]]:
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        # Drawn between measurements alone.
        progress = Progress(*columns, console=self.console, transient=True, auto_refresh=False)
        task = progress.add_task("", total=total)
        return progress, lambda *_: progress.update(task, advance=1, refresh=True)

    def parity(self) -> dict[str, Any]:
        """Compares with float64, and bits with bits."""
        from gpu_check_device import Budget
        from gpu_check_parity import check_parity, parity_shapes

        shapes = parity_shapes(self.is_small)
        progress, advance = self._progress("parity", len(shapes))
        with progress:
            return check_parity(self.device, shapes, Budget(self.options.parity_limit), advance)

    def sanitizer(self) -> dict[str, Any]:
        """Runs itself under compute-sanitizer."""
        if self.device.is_emulated:
            return {"skipped": "the emulator checks memory and races by itself"}
        folder = ROOT / "build" / "gpu_check"
        limit = self.options.sanitizer_limit
        return sanitize(Path(__file__).resolve(), self.built, limit, folder)

    def flashinfer(self) -> dict[str, Any]:
        """Has FlashInfer's kernels compiled, which takes minutes, before anything is timed."""
        from gpu_check_contenders import compile_flashinfer, has_flashinfer

        if self.device.is_emulated or not has_flashinfer():
            why = "the emulator cannot run it" if self.device.is_emulated else "it is not installed"
            return {"skipped": why}
        if not self.options.only_flashinfer:
            folder, limit = ROOT / "build" / "gpu_check", self.options.flashinfer_limit
            try:
                prepare_flashinfer(Path(__file__).resolve(), self.built, limit, folder)
            except CheckError as error:
                return {"left_out": {"flashinfer": str(error)}, "skipped": str(error)}
        compile_flashinfer(self.device)
        self.has_flashinfer = True
        return {}

    def timing(self) -> dict[str, Any]:
        """Times the grid."""
        from gpu_check_device import Budget
        from gpu_check_report import summarise, timing_tables
        from gpu_check_timing import Row, copy_speed, time_cases, timing_cases

        budget = Budget(self.options.timing_limit)
        copy = copy_speed(self.device, 1 << 16 if self.is_small else 1 << 30)
        cases = timing_cases(self.is_small)
        clocks = self.device.clocks()
        progress, advance = self._progress("timing", len(cases))
        rows: list[Row] = []

        def keep(row: Row | None) -> None:
            if row is not None:
                rows.append(row)
                self.document["phases"]["timing"] = {"rows": [r.to_json() for r in rows]}
                self.save()
            advance()

        with progress:
            left_out = time_cases(self.device, cases, budget, keep, flashinfer=self.has_flashinfer)
        self.console.print(*timing_tables(rows, copy))
        summary = summarise(rows, copy)
        self.console.print(summary)
        wrong = {
            f"{row.case}, {name}": why
            for row in rows
            for name, why in row.refusals.items()
            if name in row.plans
        }
        return {
            "checked": len(rows),
            "copy_gigabytes_per_second": copy / 1e9,
            "summary": summary,
            "clocks": {"before": clocks, "after": self.device.clocks()},
            "left_out": left_out,
            "failures": wrong,
        }

    def graph(self) -> dict[str, Any]:
        """Replays a captured step."""
        from gpu_check_parity import check_graph

        return check_graph(self.device)

    def operator(self) -> dict[str, Any]:
        """Compares the operator with the stock one."""
        from gpu_check_device import Budget
        from gpu_check_operator import compare_operators

        return compare_operators(self.device, self.is_small, Budget(self.options.operator_limit))

    def run(self) -> bool:
        """Does all phases; returns whether nothing was wrong."""
        if self.options.only_flashinfer:
            return self.phase("flashinfer", self.flashinfer)
        is_right = self.phase("parity", self.parity)
        if self.options.only_parity:
            return is_right
        for name in ("graph", "flashinfer", "timing", "operator", "sanitizer"):
            is_right &= self.phase(name, getattr(self, name))
        return is_right

    @property
    def skipped(self) -> list[str]:
        """The phases that say nothing of the kernel, since they were not done."""
        return [name for name, found in self.document["phases"].items() if "skipped" in found]


def require_device(library: Path) -> None:
    """Refuses a library that PyTorch's GPU, or the emulator, cannot run.

    Raises:
        CheckError: What to do about it.
    """
    import torch

    from lean_attention import LeanAttentionError, gpu

    try:
        backend = gpu.backend()
    except LeanAttentionError as error:
        raise CheckError(str(error)) from None
    if backend is None:
        raise CheckError(
            f"{library} was built without GPU kernels; build it with -DLEAN_ATTENTION_CUDA=ON, or "
            "leave --library out to have it built"
        )
    if backend == "emulator":
        return
    if not torch.cuda.is_available():
        raise CheckError("PyTorch finds no GPU; --dry-run tries this program without one")
    if {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}[backend] is None:
        raise CheckError(f"{library} is for {backend}, and PyTorch {torch.__version__} is not")


def find_library(options: argparse.Namespace) -> Path:
    """Returns the library that is asked for, or builds the one for this GPU."""
    if options.built is not None:
        if not options.built.is_file():
            raise CheckError(f"there is no library at {options.built}")
        return Path(options.built).resolve()
    if options.dry_run:
        raise CheckError("--dry-run needs --library .../liblean_attention_emulated.so")
    try:
        import torch
    except ImportError:
        raise CheckError("PyTorch is not installed; install a build of it for this GPU") from None
    if not torch.cuda.is_available():
        raise CheckError("PyTorch finds no GPU; --dry-run tries this program without one")
    major, minor = torch.cuda.get_device_capability()
    return build(ROOT, f"{major}{minor}", options.build_limit)


def main(arguments: list[str] | None = None) -> int:
    """Runs the check; returns the exit status."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    # A kernel that never ends would keep the program for ever.
    faulthandler.dump_traceback_later(
        60 + sum(getattr(options, f"{phase}_limit") for phase in _LIMITS), exit=True
    )
    begin = time.monotonic()
    try:
        check = Check(options, console, find_library(options))
        check.document["phases"]["build"] = {"seconds": time.monotonic() - begin}
        is_right = check.run()
    except CheckError as error:
        console.print(f"[red]✗[/] {error}", highlight=False)
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
    check.save()
    if check.skipped:
        console.print(f"[yellow]-[/] skipped: {', '.join(check.skipped)}", highlight=False)
    if check.output is not None:
        console.print(f"written to {check.output}", highlight=False)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
