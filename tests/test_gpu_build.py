"""Which GPU kernels a build has, as CMake decides it; nothing is compiled."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


def configured(build: Path, gpus: str | None, *options: str) -> tuple[str, str]:
    """Configures a build on a machine with some NVIDIA GPUs.

    Returns:
        What CMake says of GPU kernels or its error, and the architectures of CUDA's.
    """
    programs = build / "programs"
    programs.mkdir(parents=True)
    if gpus is not None:
        program = programs / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '{gpus}'\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", build, *options],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
    )
    said = " ".join((done.stdout + done.stderr).split())
    architectures = build / "lean_attention_gpu_cuda" / "architectures.txt"
    return said, architectures.read_text().strip() if architectures.exists() else ""


@needs_nvcc
@pytest.mark.parametrize(
    ("gpus", "options", "backend", "architectures"),
    [
        ("9.0\\n8.6\\n9.0\\n", [], "CUDA", "86;90"),
        ("7.5\\n8.6\\n99.0\\n", [], "CUDA", "86"),
        ("7.5\\n", [], "NONE", None),
        ("9.0\\n", ["-DLEAN_ATTENTION_CUDA=OFF"], "NONE", ""),
        ("9.0\\n", ["-DLEAN_ATTENTION_CUDA_ARCHITECTURES=80"], "CUDA", "80"),
        (None, [], "NONE", None),
        (None, ["-DLEAN_ATTENTION_CUDA=ON"], "CUDA", None),
    ],
    ids=[
        "two kinds",
        "one that is known",
        "too old",
        "off",
        "another",
        "no GPU",
        "on without a GPU",
    ],
)
def test_auto_builds_for_the_gpus_of_this_machine(
    gpus: str | None, options: list[str], backend: str, architectures: str | None, tmp_path: Path
) -> None:
    said, found = configured(tmp_path, gpus, "-DLEAN_ATTENTION_ROCM=OFF", *options)
    assert f"GPU kernels in the library: {backend}" in said
    if architectures is None:
        assert found.startswith("80;90")
    else:
        assert found == architectures


def test_two_vendors_in_one_library_are_refused(tmp_path: Path) -> None:
    both = ("-DLEAN_ATTENTION_CUDA=ON", "-DLEAN_ATTENTION_ROCM=ON")
    said, _ = configured(tmp_path, None, *both)
    assert "One library is for one vendor" in said


def test_a_missing_compiler_says_what_to_install(tmp_path: Path) -> None:
    said, _ = configured(tmp_path, None, "-DLEAN_ATTENTION_ROCM=ON", "-DLEAN_ATTENTION_HIPCC=")
    assert "hipcc and libamdhip64.so were not found: install ROCm, or hipcc" in said
