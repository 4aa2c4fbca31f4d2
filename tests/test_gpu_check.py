"""tools/gpu_check.py without a GPU: all its phases on the emulated library, and what it notices."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import gpu_check  # noqa: E402
import gpu_check_operator  # noqa: E402
import gpu_check_parity  # noqa: E402
from gpu_check_build import CheckError, prepare_flashinfer, sanitize  # noqa: E402
from gpu_check_contenders import Case, Contenders, step_of  # noqa: E402
from gpu_check_device import Budget, Device  # noqa: E402
from gpu_check_report import file_name, summarise, timing_tables, write  # noqa: E402
from gpu_check_steps import Shape, Truth, draw  # noqa: E402
from gpu_check_timing import Row, timing_cases  # noqa: E402
from lean_attention import gpu  # noqa: E402

PHASES = {"build", "parity", "graph", "flashinfer", "timing", "operator", "sanitizer"}
SKIPPED = {"flashinfer", "sanitizer"}
LIBRARY = os.environ.get("LEAN_ATTENTION_LIBRARY", "")


@pytest.fixture(autouse=True)
def _on_the_emulator() -> None:
    assert gpu.backend() == "emulator", (
        "these tests need LEAN_ATTENTION_LIBRARY=.../liblean_attention_emulated.so, and the "
        f"library's backend is {gpu.backend()}"
    )


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_dry_run_goes_through_every_phase(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    done = run_tool("--dry-run", "--library", LIBRARY, "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(output.read_text(encoding="utf-8"))
    assert document["device"]["emulated"]
    assert document["phases"].keys() == PHASES
    for name in SKIPPED:
        assert document["phases"][name]["skipped"]
        assert f"- {name} (skipped: " in done.stdout
    assert "- skipped: flashinfer, sanitizer" in done.stdout
    for name in PHASES - {"build", *SKIPPED}:
        assert f"✓ {name} (" in done.stdout
        assert document["phases"][name]["failures"] == {}, name
    assert document["phases"]["parity"]["checked"] == 3
    assert document["phases"]["graph"]["replays"] == 2
    operator = document["phases"]["operator"]["rows"]
    assert [set(row["micros"]) for row in operator] == [{"lean", "stock"}]
    rows = document["phases"]["timing"]["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["micros"].keys() == {"direct", "fixed_split", "lean", "torch"}, row["refusals"]
        assert row["backends"].keys() == {"torch"}
        assert row["backends"]["torch"] in {"math", "flash_attention"}
    assert "lean" in done.stdout


def test_without_time_it_says_what_it_left_out(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    limits = [f"--{phase}-limit=0" for phase in ("parity", "timing", "operator")]
    done = run_tool("--dry-run", "--library", LIBRARY, "--output", str(output), *limits)
    assert done.returncode == 0, done.stdout + done.stderr
    phases = json.loads(output.read_text(encoding="utf-8"))["phases"]
    assert [len(phases[name]["left_out"]) for name in ("parity", "timing", "operator")] == [3, 2, 1]
    for name, count in (("parity", 3), ("timing", 2), ("operator", 1)):
        assert f"- {name} (skipped: nothing of it was done, {count} left out)" in done.stdout
    assert "- skipped: parity, flashinfer, timing, operator, sanitizer" in done.stdout


def test_what_is_found_is_said_at_once() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--dry-run"]
    command += ["--library", LIBRARY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("✓ parity"):
                assert running.poll() is None
                break
        else:
            pytest.fail("it never said what it found")
        running.kill()


def test_a_dry_run_is_no_result() -> None:
    before = sorted((ROOT / "docs" / "results").rglob("*"))
    assert run_tool("--dry-run", "--library", LIBRARY, "--only-parity").returncode == 0
    assert sorted((ROOT / "docs" / "results").rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run"], "--dry-run needs --library"),
        (["--library", "nowhere.so"], "there is no library at nowhere.so"),
        (["--library", __file__], "test_gpu_check.py does not load"),
    ],
)
def test_what_it_cannot_do_is_one_line(arguments: list[str], message: str) -> None:
    done = run_tool(*arguments)
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("backend", "has_gpu", "message"),
    [
        (None, True, "mine.so was built without GPU kernels; build it with -DLEAN_ATTENTION_CUDA"),
        ("CUDA", False, "PyTorch finds no GPU"),
        ("CUDA", True, "mine.so is for CUDA, and PyTorch"),
        ("ROCm", True, "mine.so is for ROCm, and PyTorch"),
    ],
)
def test_libraries_that_cannot_run_here_are_refused_before_anything(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, has_gpu: bool, message: str
) -> None:
    monkeypatch.setattr(gpu, "backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(CheckError, match=message):
        gpu_check.require_device(Path("mine.so"))


# In compute-sanitizer's place: says what it was given, and does what the tool's name is to do.
SANITIZER = """#!/bin/sh
echo "caching off: $PYTORCH_NO_CUDA_MEMORY_CACHING; $*"
case "$2" in {tool}) {what};; esac
"""


@pytest.mark.parametrize(
    ("tool", "what", "expected"),
    [
        ("memcheck", "true", {"passed": ["memcheck", "racecheck"]}),
        ("racecheck", "exit 9", {"passed": ["memcheck"], "failures": ["racecheck"]}),
        ("memcheck", "exec sleep 60", {"passed": ["racecheck"], "left_out": ["memcheck"]}),
    ],
)
def test_the_sanitizers_tools_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str, what: str, expected: dict[str, Any]
) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(SANITIZER.format(tool=tool, what=what))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = sanitize(Path("script.py"), Path("mine.so"), 4, tmp_path / "logs")
    for name in ("passed", "failures", "left_out"):
        assert list(found[name]) == expected.get(name, []), found
    assert found["tool_seconds"].keys() == {"memcheck", "racecheck"}
    # One that hangs is stopped after its half of the time.
    assert (found["tool_seconds"][tool] > 1.9) == ("sleep" in what)
    logs = {
        name: (tmp_path / "logs" / f"{name}.log").read_text() for name in ("memcheck", "racecheck")
    }
    assert "caching off: 1; --tool memcheck" in logs["memcheck"]
    assert "caching off: ; --tool racecheck" in logs["racecheck"]
    assert "script.py --library mine.so --only-parity --small" in logs["racecheck"]


def test_flashinfer_is_compiled_within_a_limit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(*sys.argv[1:])")
    prepare_flashinfer(script, Path("mine.so"), 30, tmp_path)
    log = tmp_path / "flashinfer.log"
    assert log.read_text() == "--library mine.so --only-flashinfer\n"
    script.write_text("print('begun'); import time; time.sleep(60)")
    with pytest.raises(CheckError, match="took more than 1 s"):
        prepare_flashinfer(script, Path("mine.so"), 1, tmp_path)
    assert log.read_text() == "begun\n"
    script.write_text("raise SystemExit('no compiler')")
    with pytest.raises(CheckError, match="ends: no compiler"):
        prepare_flashinfer(script, Path("mine.so"), 30, tmp_path)


def test_a_provider_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnTheCpu:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(gpu_check_operator.onnxruntime, "InferenceSession", OnTheCpu)
    monkeypatch.setattr(gpu_check_operator, "provider_for", lambda _: "CUDAExecutionProvider")
    message = "has CUDAExecutionProvider and runs on CPUExecutionProvider"
    with pytest.raises(CheckError, match=message):
        gpu_check_operator.compare_operators(Device(), True, Budget(60))


def _wrong_output(step: gpu.Step, out: torch.Tensor) -> None:
    gpu.decode(step, out=out).mul_(1.01)


def _wrong_row(step: gpu.Step, out: torch.Tensor) -> None:
    gpu.decode(step, out=out)
    step.value_cache[0, 0, 139].zero_()


def _bit_of_the_output(step: gpu.Step, out: torch.Tensor) -> None:
    _last_bit(gpu.decode(step, out=out))


def _bit_of_a_cache(step: gpu.Step, out: torch.Tensor) -> None:
    gpu.decode(step, out=out)
    _last_bit(step.key_cache[0, 0, 0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda **_: None, "an error inf"),
        (_wrong_output, "an error"),
        (_wrong_row, "an error"),
        (_bit_of_the_output, "other bits than of a launch"),
        (_bit_of_a_cache, "other bits than of a launch"),
    ],
)
def test_faults_of_replays_are_noticed(
    monkeypatch: pytest.MonkeyPatch, what: Any, message: str
) -> None:
    """In a replay's place comes something that is wrong."""
    right = gpu.decode
    captured: dict[str, Any] = {}

    def decode(step: gpu.Step, *, out: Any, workspace: gpu.Workspace) -> Any:
        captured.update(step=step, out=out)
        return right(step, out=out, workspace=workspace)

    def capture(_: Device, run: Any) -> Any:
        monkeypatch.setattr(gpu_check_parity.gpu, "decode", decode)
        run()
        monkeypatch.setattr(gpu_check_parity.gpu, "decode", right)
        return lambda: what(**captured)

    monkeypatch.setattr(Device, "capture", capture)
    failures = gpu_check_parity.check_graph(Device())["failures"]
    assert failures["(140, 5, 30)"].startswith(message)


def test_contenders_whose_replay_writes_nothing_are_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def capture(_: Device, run: Any) -> Any:
        output = run()
        return lambda: output

    monkeypatch.setattr(Device, "capture", capture)
    case = Case(40, (40, 7), 4, 2, True)
    caches = (torch.randn(2, 2, 40, 128).half(), torch.randn(2, 2, 40, 128).half())
    found = Contenders(case, Device(), [step_of(case, Device(), caches)])
    assert found.runs == {}
    assert found.refusals.keys() == {"direct", "fixed_split", "lean", "torch"}
    assert all(why.startswith("wrong: an error inf") for why in found.refusals.values())


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Breaks the kernel's results: of launch ``at``, by ``what``."""
    state: dict[str, Any] = {"at": 0, "launches": 0, "what": None}
    right = gpu.decode

    def decode(step: gpu.Step, **how: Any) -> Any:
        output = right(step, **how)
        if state["launches"] == state["at"]:
            state["what"](step, output)
        state["launches"] += 1
        return output

    monkeypatch.setattr(gpu_check_parity.gpu, "decode", decode)
    return state


def _last_bit(tensor: torch.Tensor) -> None:
    tensor.view(torch.int16).flatten()[-1] ^= 1


@pytest.mark.parametrize(
    ("at", "what", "message"),
    [
        (0, lambda _, output: output.mul_(1.01), "an error"),
        (0, lambda _, output: output[-1].fill_(torch.nan), "an error inf"),
        (0, lambda step, _: step.key_cache[0, 1, 139].zero_(), "an error"),
        (0, lambda step, _: step.value_cache[0, 1, 139].add_(0.01), "an error"),
        (0, lambda step, _: step.key_cache[0, 1, 3].zero_(), "rows of the cache changed"),
        (0, lambda step, _: step.value_cache[1, 0, 9].zero_(), "rows of the cache changed"),
        (3, lambda _, output: _last_bit(output), "other bits under {'schedule': <Schedule.FIXED"),
        (6, lambda _, output: _last_bit(output), "other bits under the policy, run again"),
    ],
)
def test_faults_are_noticed(broken: dict[str, Any], at: int, what: Any, message: str) -> None:
    broken |= {"at": at, "what": what}
    shape = Shape((140, 1, 129), rotary_half=16)
    found = gpu_check_parity.check_parity(Device(), [shape], Budget(60), lambda: None)
    assert found["checked"] == 1
    assert list(found["failures"]) == [str(shape)]
    assert found["failures"][str(shape)].startswith(message)


def test_the_truth_knows_windows_sinks_and_softcaps() -> None:
    # Other implementations of these are in tests/reference.py; the kernel agrees with both.
    shapes = [
        Shape((60, 9), options={"local_window_size": 7}),
        Shape((60, 9), sink=True, options={"softcap": 2.0}),
        Shape((60, 9), tokens=3, bias=True, rotary_half=8, options={"rotary_interleaved": True}),
    ]
    for shape in shapes:
        step = draw(shape, torch.device("cpu"))
        truth = Truth.of(draw(shape, torch.device("cpu")), shape.lengths)
        assert truth.error(gpu.decode(step)) > 1  # the new rows are still NaN in its cache
        assert Truth.of(step, shape.lengths).error(gpu.decode(step)) <= 1
        plain = replace(step, local_window_size=-1, softcap=0.0, head_sink=None, cos_cache=None)
        assert Truth.of(plain, shape.lengths).error(gpu.decode(step)) > 1


def row(ragged: bool, context: int = 1000, **micros: float) -> Row:
    case = Case(context, (context,), 8, 8, ragged)
    return Row(case, 500.0, case.bytes_read, 1, 5, micros, {}, {}, {})


def test_summaries_are_of_the_rows_that_tell() -> None:
    rows = [
        row(True, direct=8.0, fixed_split=4.0, lean=2.0, torch=6.0),
        row(True, direct=9.0, fixed_split=8.0, lean=1.0),
        row(False, 2000, direct=3.0, fixed_split=5.0, lean=5.0, torch=5.0),
        row(False, torch=1.0),
    ]
    found = summarise(rows, 8e12)
    ragged, uniform = found["ragged"], found["uniform"]
    assert ragged["fixed_split_over_lean"] == pytest.approx(4.0)
    assert uniform["fixed_split_over_lean"] == pytest.approx(1.0)
    assert ragged["torch_over_lean"] == pytest.approx(3.0)
    assert uniform["torch_over_lean"] == pytest.approx(1.0)
    assert ragged["flashinfer_over_lean"] is None
    worst = "worst_to_the_better_of_direct_and_fixed_split"
    assert ragged[worst] == (pytest.approx(2.0), "1000 x 1, 8/8, ragged")
    assert uniform[worst] == (pytest.approx(0.6), "2000 x 1, 8/8, uniform")
    assert ragged["best_fraction_of_copy"] == pytest.approx(2 * 2 * 1000 * 8 * 128 / 1e-6 / 8e12)
    assert set(summarise([], 1.0)["ragged"].values()) == {None}


def test_ragged_and_uniform_batches_have_tables_of_their_own() -> None:
    rows = [row(True, lean=2.0), row(False, lean=1.0), row(True, 2000, lean=3.0)]
    ragged, uniform = timing_tables(rows, 8e12)
    assert list(ragged.columns[0].cells) == ["1000 x 1, 8/8, ragged", "2000 x 1, 8/8, ragged"]
    assert list(uniform.columns[0].cells) == ["1000 x 1, 8/8, uniform"]
    assert str(ragged.title).startswith("Microseconds of ragged batches")
    assert len(timing_tables(rows[1:2], 8e12)) == 1


def test_the_grid_is_whole_and_its_lengths_are_ragged() -> None:
    cases = timing_cases(is_small=False)
    assert len({str(case) for case in cases}) == len(cases) == 100
    for case in cases:
        assert max(case.lengths) == case.context
        assert min(case.lengths) >= case.context // 16
        assert (len(set(case.lengths)) > 1) == case.ragged


def test_the_page_names_every_phase_and_its_limit() -> None:
    page = (ROOT / "docs" / "gpu_check.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d*)", page, re.MULTILINE))
    assert rows.keys() == PHASES
    options = gpu_check.parse([])
    for name in PHASES - {"graph"}:
        assert float(rows[name]) == getattr(options, f"{name}_limit"), name


def test_documents_are_whole_and_have_no_infinities(tmp_path: Path) -> None:
    path = tmp_path / "folder" / file_name("NVIDIA H200 (SXM)")
    assert path.name == "nvidia-h200-sxm.json"
    write(path, {"error": float("inf"), "rows": [{"nan": float("nan"), "right": 1.5}]})
    assert json.loads(path.read_text()) == {"error": None, "rows": [{"nan": None, "right": 1.5}]}
    assert list(path.parent.iterdir()) == [path]
