"""tools/gpu_resources.py over what compilers wrote, without a compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "gpu_resources.py"
HALF_128 = "_ZN14lean_attention3gpu15DecodeAttentionINS0_4HalfES2_Li128EEEvNS0_10DecodeArgsIT_T0_EE"

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{symbol}' for 'sm_90'
ptxas info    : Function properties for {symbol}
    {stack} bytes stack frame, {stack} bytes spill stores, {stack} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""
CLANG = """\
a.h:1:1: remark: Function Name: {symbol} [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     SGPRs: 108 [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     VGPRs: 120 [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     AGPRs: 4 [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     ScratchSize [bytes/lane]: {scratch} [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     Occupancy [waves/SIMD]: 4 [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     SGPRs Spill: 108 [-Rpass-analysis=kernel-resource-usage]
a.h:1:1: remark:     VGPRs Spill: 7 [-Rpass-analysis=kernel-resource-usage]
"""


def write_backend(build: Path, backend: str, architectures: str, log: str) -> None:
    folder = build / f"lean_attention_gpu_{backend}"
    folder.mkdir(exist_ok=True)
    (folder / "compiler.txt").write_text(f"{backend} 1.0\n")
    (folder / "architectures.txt").write_text(f"{architectures}\n")
    (folder / "float16_128.log").write_text(log)


def write_cuda(build: Path, registers: int = 128, stack: int = 0) -> None:
    log = PTXAS.format(symbol=HALF_128, registers=registers, stack=stack)
    write_backend(build, "cuda", "90", log)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build folder in which blocks take 50 KiB of shared memory, or 16 on AMD."""
    programs = tmp_path / "tests" / "cpp"
    programs.mkdir(parents=True)
    for warp_size, size in ((32, 50 * 1024), (64, 16 * 1024)):
        program = programs / f"lean_attention_shared_bytes_{warp_size}"
        program.write_text(f"#!/bin/sh\necho 128 16 4 {size}\necho 128 16 16 {4 * size}\n")
        program.chmod(0o755)
    return tmp_path


def run(build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), str(build), "--page", str(build / "page.md"), *options]
    return subprocess.run(command, capture_output=True, text=True)


def rows(build: Path) -> list[str]:
    return [line for line in (build / "page.md").read_text().splitlines() if "`Decode" in line]


def test_a_row_says_what_a_kernel_takes_and_how_many_blocks_fit(build: Path) -> None:
    write_cuda(build)
    write_backend(build, "rocm", "gfx90a", CLANG.format(symbol=HALF_128, scratch=0))
    done = run(build)
    assert done.returncode == 0, done.stderr
    # 128 registers let four blocks live on sm_90; its 228 KiB hold four of 51 and one of 201. On
    # gfx90a the registers allow four; its 64 KiB hold four of 16 and one of 64.
    assert rows(build) == [
        "| `DecodeAttention<Half, Half, 128>` | gfx90a | 124 | 0 | 16.0 / 64.0 | 4 / 1 |",
        "| `DecodeAttention<Half, Half, 128>` | sm_90 | 128 | 0 | 50.0 / 200.0 | 4 / 1 |",
    ]


def test_registers_bound_the_blocks(build: Path) -> None:
    write_cuda(build, registers=129)  # allocated as 136
    run(build)
    assert rows(build)[0].endswith("| 3 / 1 |")


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_local_memory_fails(build: Path, options: tuple[str, ...]) -> None:
    write_cuda(build, stack=8)
    run(build)
    done = run(build, *options)
    assert done.returncode == 1
    assert "local memory is used by DecodeAttention<Half, Half, 128> on sm_90" in done.stderr


def test_scratch_fails(build: Path) -> None:
    write_backend(build, "rocm", "gfx90a", CLANG.format(symbol=HALF_128, scratch=64))
    done = run(build)
    assert done.returncode == 1
    assert "local memory is used by DecodeAttention<Half, Half, 128> on gfx90a" in done.stderr
    assert rows(build)[0].split(" | ")[3] == "64"


def test_check_compares_what_was_built(build: Path) -> None:
    write_cuda(build)
    write_backend(build, "rocm", "gfx90a", CLANG.format(symbol=HALF_128, scratch=0))
    run(build)
    for file in (build / "lean_attention_gpu_rocm").iterdir():
        file.unlink()
    before = (build / "page.md").read_text()
    assert run(build, "--check").returncode == 0
    write_cuda(build, registers=100)
    done = run(build, "--check")
    assert done.returncode == 1
    assert "page.md is not what was built" in done.stderr
    assert "+ | `DecodeAttention<Half, Half, 128>` | sm_90 | 100 |" in done.stdout
    assert (build / "page.md").read_text() == before


def test_other_compilers_are_not_compared(build: Path) -> None:
    write_cuda(build)
    run(build)
    write_cuda(build, registers=100)
    (build / "lean_attention_gpu_cuda" / "compiler.txt").write_text("cuda 2.0\n")
    done = run(build, "--check")
    assert done.returncode == 0
    assert "other compilers than cuda 2.0" in done.stdout


def test_several_amd_targets_in_one_build_are_refused(build: Path) -> None:
    write_backend(build, "rocm", "gfx90a;gfx942", CLANG.format(symbol=HALF_128, scratch=0))
    done = run(build)
    assert done.returncode == 1
    assert "one of LEAN_ATTENTION_ROCM_ARCHITECTURES at a time" in done.stderr


def test_a_folder_that_is_not_there_is_refused(build: Path) -> None:
    done = run(build / "nowhere", "--check")
    assert done.returncode == 1
    assert "there is no folder" in done.stderr


def test_a_build_without_compilers_for_gpus_passes(build: Path) -> None:
    done = run(build, "--check")
    assert done.returncode == 0
    assert "nothing to check" in done.stdout
