"""The library as a file: what it exports, what it needs, and how the package finds it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

import lean_attention
from lean_attention import gpu, kernels
from lean_attention.commands.doctor import advise, doctor
from lean_attention.errors import LeanAttentionError


def test_it_exports_the_entry_points_alone() -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", lean_attention.get_library_path()],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    names = {line.split()[-1] for line in symbols if line}
    assert "RegisterCustomOps" in names
    assert all(name == "RegisterCustomOps" or name.startswith("lean_attention_") for name in names)


def test_it_needs_nothing_but_the_cxx_runtime() -> None:
    needed = subprocess.run(
        ["readelf", "-d", lean_attention.get_library_path()],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    libraries = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "NEEDED" in line}
    prefixes = ("libstdc++.so", "libm.so", "libgcc_s.so", "libc.so", "ld-linux", "libpthread.so")
    assert all(name.startswith(prefixes) for name in libraries), libraries


def test_versions_agree() -> None:
    assert kernels.built_version() == lean_attention.__version__


def test_gpu_kernels_are_there_or_it_says_how_to_get_them() -> None:
    if gpu.backend() is None:
        with pytest.raises(LeanAttentionError, match="without GPU kernels; install it with 'pip"):
            gpu.decode(
                gpu.Step(
                    query=None,
                    key=None,
                    value=None,
                    key_cache=None,
                    value_cache=None,
                    seqlens_k=None,
                )
            )
    else:
        assert gpu.backend() in {"CUDA", "ROCm"}


def runnable_targets() -> list[str]:
    """The instruction sets of the library that this machine has, best first."""
    order = ["AVX512", "AVX2", "SSE4"]
    best = kernels.cpu_target()
    return order[order.index(best) :] if best in order else [str(best)]


def forced_target(name: str) -> str:
    """Returns the instruction set in use where the environment names one."""
    return subprocess.run(
        [sys.executable, "-c", "from lean_attention import kernels; print(kernels.cpu_target())"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"LEAN_ATTENTION_CPU_TARGET": name},
    ).stdout.strip()


@pytest.mark.parametrize("name", ["", "no such target", "AVX", "AVX512F"])
def test_an_instruction_set_that_is_unknown_is_ignored(name: str) -> None:
    assert forced_target(name) == kernels.cpu_target()


def test_an_instruction_set_is_forced_in_any_case() -> None:
    name = runnable_targets()[-1]
    assert [forced_target(text) for text in (name, name.lower(), name.title())] == [name] * 3


@pytest.mark.parametrize("target", runnable_targets())
def test_every_instruction_set_of_this_machine_is_right(target: str) -> None:
    tests = Path(__file__).parent / "test_schedules.py"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            tests,
            "-k",
            "edges or several",
            "-p",
            "no:cacheprovider",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"LEAN_ATTENTION_CPU_TARGET": target},
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEAN_ATTENTION_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(lean_attention.LeanAttentionError, match=r"LEAN_ATTENTION_LIBRARY has no"):
        lean_attention.get_library_path()


def test_a_file_that_is_no_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"not a library")
    monkeypatch.setenv("LEAN_ATTENTION_LIBRARY", str(other))
    with pytest.raises(lean_attention.LeanAttentionError, match="refused"):
        lean_attention.register_custom_ops(onnxruntime.SessionOptions())


def test_doctor_runs_the_operator() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lean_attention", "doctor"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "the operator runs" in done.stdout
    assert str(kernels.cpu_target()) in done.stdout
    assert f"GPU kernels: {gpu.backend() or 'none in this library'}" in done.stdout


CUDA = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
ROCM = ["ROCMExecutionProvider", "CPUExecutionProvider"]
CPU = ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("installed", "providers", "backend", "messages"),
    [
        (["onnxruntime"], CPU, None, []),
        (["onnxruntime-gpu"], CUDA, "CUDA", []),
        (["onnxruntime-rocm"], ROCM, "ROCm", []),
        (["onnxruntime"], CPU, "CUDA", [r"no CUDA.*'onnxruntime-gpu\[cuda,cudnn\]'"]),
        (["onnxruntime"], CPU, "ROCm", ["no ROCM.*'onnxruntime-rocm==1.22"]),
        (["onnxruntime-gpu"], CUDA, None, ["no kernels for CUDA.*LEAN_ATTENTION_CUDA=ON"]),
        (["onnxruntime-rocm"], ROCM, None, ["no kernels for ROCm.*LEAN_ATTENTION_ROCM=ON"]),
        (["onnxruntime-gpu"], CUDA, "ROCm", ["no ROCM", "no kernels for CUDA"]),
        (["onnxruntime", "onnxruntime-gpu"], CUDA, "CUDA", ["onnxruntime and onnxruntime-gpu lie"]),
    ],
)
def test_doctor_says_what_does_not_fit_together(
    installed: list[str], providers: list[str], backend: str | None, messages: list[str]
) -> None:
    advice = advise(installed, providers, backend)
    assert len(advice) == len(messages)
    for line, message in zip(advice, messages, strict=True):
        assert re.search(message, line)


def test_doctor_prints_what_does_not_fit_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "backend", lambda: "CUDA")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: CPU)
    doctor()
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]'" in capsys.readouterr().out


def test_import_without_onnxruntime_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'onnxruntime' else find(n, *a)\n"
        "import lean_attention"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "lean-attention[cpu]" in done.stderr
