"""Writes docs/gpu_resources.md: what the GPU kernels take of a multiprocessor.

Reads what the compilers said in a build with -DLEAN_ATTENTION_TESTS=ON. No GPU is needed or asked:
the blocks per multiprocessor follow from the vendors' published limits. Fails where a kernel uses
local memory, which is where registers are spilled to.
"""

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "gpu_resources.md"
BACKENDS = ("cuda", "rocm")
WARPS_OF_BLOCK = 4

KIB = 1024
NVIDIA_REGISTERS = 16384  # of a quarter of a multiprocessor, which has every fourth warp
NVIDIA_RESERVED = 1 * KIB  # of shared memory, in each block
# Warps of a multiprocessor, its shared memory. CUDA C++ Programming Guide, "Compute Capabilities".
NVIDIA_LIMITS = {
    "sm_80": (64, 164 * KIB),
    "sm_86": (48, 100 * KIB),
    "sm_89": (48, 100 * KIB),
    "sm_90": (64, 228 * KIB),
    "sm_100": (64, 228 * KIB),
}
AMD_SHARED = 64 * KIB  # LDS of a compute unit. CDNA 2 and CDNA 3 ISA guides.

HEADER = """\
# What the GPU kernels take

Written by `tools/gpu_resources.py` from what the compilers report; no GPU was asked. Local memory
is where spilled registers and arrays without registers live: it must be 0. Registers are those of a
thread, on AMD vector and accumulation registers together. Shared memory and the blocks that fit a
multiprocessor are given for 4 and for 16 query rows per KV head (query tokens times heads of a
group), at a batch of one; each sequence more takes 12 bytes. 0 blocks: the kernel does not fit and
the launcher refuses it.
"""
COLUMNS = (
    "Kernel",
    "Architecture",
    "Registers",
    "Local memory, bytes",
    "Shared memory, KiB",
    "Blocks per multiprocessor",
)


@dataclass(frozen=True)
class Usage:
    """One kernel on one architecture, as its compiler reports it."""

    kernel: str
    architecture: str
    registers: int
    local_bytes: int
    waves: int  # per SIMD that the registers allow; AMD alone reports it

    def blocks(self, shared_bytes: int) -> int:
        """Returns how many blocks of `shared_bytes` fit a multiprocessor."""
        if self.architecture not in NVIDIA_LIMITS:
            return min(self.waves, AMD_SHARED // shared_bytes)
        warps, shared = NVIDIA_LIMITS[self.architecture]
        by_registers = NVIDIA_REGISTERS // (math.ceil(self.registers * 32 / 256) * 256)
        by_shared = shared // (shared_bytes + NVIDIA_RESERVED)
        return min(by_registers, by_shared, warps // WARPS_OF_BLOCK)


def fail(message: str) -> None:
    """Ends the program with one line."""
    sys.exit(f"gpu_resources: {message}")


def demangled(symbol: str) -> str:
    """Returns a kernel's name as DecodeAttention<Half, 128>."""
    done = subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True)
    found = re.search(r"(\w+<.*>)\(", done.stdout.replace("lean_attention::gpu::", ""))
    return found.group(1) if found else done.stdout.strip()


def cuda_usages(log: str) -> Iterator[Usage]:
    """Yields what `ptxas -v` reports."""
    pattern = (
        r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame.*?"
        r"Used (\d+) registers"
    )
    for symbol, architecture, stack, registers in re.findall(pattern, log, re.DOTALL):
        yield Usage(demangled(symbol), architecture, int(registers), int(stack), waves=0)


def rocm_usages(log: str, architecture: str) -> Iterator[Usage]:
    """Yields what Clang's -Rpass-analysis=kernel-resource-usage reports."""
    pattern = r"remark: +([\w ]+?)(?: \[[\w/]+\])?: (\d+)"
    for part in log.split("Function Name: ")[1:]:
        found = {name: int(n) for name, n in re.findall(pattern, part)}
        registers = found["VGPRs"] + found["AGPRs"]
        yield Usage(
            demangled(part.split()[0]),
            architecture,
            registers,
            found["ScratchSize"],
            found["Occupancy"],
        )


def read_usages(build: Path) -> list[Usage]:
    """Returns the usages of all kernels in a build, in the table's order."""
    usages: list[Usage] = []
    for backend in BACKENDS:
        for log in build.glob(f"lean_attention_gpu_{backend}/*.log"):
            if backend == "cuda":
                usages += cuda_usages(log.read_text())
                continue
            # Clang does not say which architecture it speaks of.
            architectures = (log.parent / "architectures.txt").read_text().strip().split(";")
            if len(architectures) != 1:
                fail("build with one of LEAN_ATTENTION_ROCM_ARCHITECTURES at a time")
            usages += rocm_usages(log.read_text(), architectures[0])

    def order(usage: Usage) -> tuple[str, list[str | int]]:
        parts = re.split(r"(\d+)", usage.kernel)
        return usage.architecture, [int(part) if part.isdigit() else part for part in parts]

    return sorted(usages, key=order)


def read_compilers(build: Path) -> list[str]:
    """Returns the compilers of a build, as `nvcc 13.0.88`."""
    files = [build / f"lean_attention_gpu_{backend}" / "compiler.txt" for backend in BACKENDS]
    return [file.read_text().strip() for file in files if file.exists()]


def read_shared_bytes(build: Path, warp_size: int) -> dict[tuple[int, int], list[int]]:
    """Returns a block's shared memory by head size and bits of the cache, for 4 and 16 rows."""
    program = build / "tests" / "cpp" / f"lean_attention_shared_bytes_{warp_size}"
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    shared: dict[tuple[int, int], list[int]] = {}
    for line in done.stdout.splitlines():
        head_size, bits, _, size = map(int, line.split())
        shared.setdefault((head_size, bits), []).append(size)
    return shared


def row(cells: tuple[str, ...]) -> str:
    """Returns a row of the table."""
    return f"| {' | '.join(cells)} |"


def table_rows(usages: list[Usage], build: Path) -> list[str]:
    """Returns the rows of all kernels."""
    shared = {warp_size: read_shared_bytes(build, warp_size) for warp_size in (32, 64)}
    rows = []
    for usage in usages:
        head_size = int(re.findall(r"\d+", usage.kernel)[-1])
        bits = 8 if "signed char" in usage.kernel or "Fp8E4M3" in usage.kernel else 16
        sizes = shared[32 if usage.architecture in NVIDIA_LIMITS else 64][head_size, bits]
        cells = (
            f"`{usage.kernel}`",
            usage.architecture,
            str(usage.registers),
            str(usage.local_bytes),
            " / ".join(f"{size / KIB:.1f}" for size in sizes),
            " / ".join(str(usage.blocks(size)) for size in sizes),
        )
        rows.append(row(cells))
    return rows


def page_text(rows: list[str], compilers: list[str]) -> str:
    """Returns the whole page."""
    made_by = f"Compilers: {', '.join(compilers)}."
    rule = row(tuple("---" for _ in COLUMNS))
    return "\n".join([HEADER, made_by, "", row(COLUMNS), rule, *rows]) + "\n"


def compare(page: Path, rows: list[str], usages: list[Usage], compilers: list[str]) -> None:
    """Fails where the page says other things of the architectures that were built."""
    text = page.read_text()
    if not all(compiler in text for compiler in compilers):
        print(
            f"{page.name} was written with other compilers than {', '.join(compilers)}; "
            "only local memory was checked"
        )
        return
    built = {usage.architecture for usage in usages}
    old = {
        line
        for line in text.splitlines()
        if line.startswith("| `") and line.split(" | ")[1] in built
    }
    changed = sorted(old ^ set(rows))
    if changed:
        print("\n".join(("- " if line in old else "+ ") + line for line in changed))
        fail(f"{page.name} is not what was built: run tools/gpu_resources.py")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="a build folder")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page (%(default)s)")
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    options = parser.parse_args()
    if not options.build.is_dir():
        fail(f"there is no folder {options.build}: name a build folder, such as build/test")
    usages = read_usages(options.build)
    if not usages:
        print("no compiler for GPUs was found when this was built: nothing to check")
        return
    rows = table_rows(usages, options.build)
    compilers = read_compilers(options.build)
    if options.check:
        compare(options.page, rows, usages, compilers)
    else:
        options.page.write_text(page_text(rows, compilers))
    spilling = [u for u in usages if u.local_bytes > 0]
    names = ", ".join(f"{u.kernel} on {u.architecture}" for u in spilling)
    if spilling:
        fail(f"local memory is used by {names}")
    print(f"{len(usages)} kernels; local memory is used by none")


if __name__ == "__main__":
    main()
