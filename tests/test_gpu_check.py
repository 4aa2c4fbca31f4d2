"""tools/gpu_check.py without a GPU: all its phases on the emulated library, and what it notices."""

import json
import os
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

import gpu_check_parity  # noqa: E402
from gpu_check_contenders import Case  # noqa: E402
from gpu_check_device import Budget, Device  # noqa: E402
from gpu_check_report import file_name, summarise, write  # noqa: E402
from gpu_check_steps import Shape, Truth, draw  # noqa: E402
from gpu_check_timing import Row, timing_cases  # noqa: E402
from lean_attention import gpu  # noqa: E402

PHASES = {"build", "parity", "graph", "timing", "operator", "sanitizer"}
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
    for name in PHASES - {"build", "sanitizer"}:
        assert document["phases"][name]["failures"] == {}, name
    assert document["phases"]["parity"]["checked"] == 3
    assert document["phases"]["graph"]["replays"] == 2
    operator = document["phases"]["operator"]["rows"]
    assert [set(row["micros"]) for row in operator] == [{"lean", "stock"}]
    rows = document["phases"]["timing"]["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["micros"].keys() == {"direct", "fixed_split", "lean", "torch"}, row["refusals"]
    assert "lean" in done.stdout


def test_without_time_it_says_what_it_left_out(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    limits = [f"--{phase}-limit=0" for phase in ("parity", "timing", "operator")]
    done = run_tool("--dry-run", "--library", LIBRARY, "--output", str(output), *limits)
    assert done.returncode == 0, done.stdout + done.stderr
    phases = json.loads(output.read_text(encoding="utf-8"))["phases"]
    assert [len(phases[name]["left_out"]) for name in ("parity", "timing", "operator")] == [3, 2, 1]
    assert "3 left out" in done.stdout


def test_a_dry_run_is_no_result() -> None:
    before = sorted((ROOT / "docs" / "results").rglob("*"))
    assert run_tool("--dry-run", "--library", LIBRARY, "--only-parity").returncode == 0
    assert sorted((ROOT / "docs" / "results").rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run"], "--dry-run needs --library"),
        (["--library", "nowhere.so"], "there is no library at nowhere.so"),
    ],
)
def test_what_it_cannot_do_is_one_line(arguments: list[str], message: str) -> None:
    done = run_tool(*arguments)
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


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
    assert found["fixed_split_over_lean"] == pytest.approx({"ragged": 4.0, "uniform": 1.0})
    assert found["torch_over_lean"] == pytest.approx(3**0.5)
    assert found["flashinfer_over_lean"] is None
    ratio, case = found["worst_to_the_better_of_direct_and_fixed_split"]
    assert (ratio, case) == (pytest.approx(0.6), "2000 x 1, 8/8, uniform")
    assert found["best_fraction_of_copy"] == pytest.approx(2 * 2 * 1000 * 8 * 128 / 1e-6 / 8e12)
    assert summarise([], 1.0)["fixed_split_over_lean"] == {"ragged": None, "uniform": None}


def test_the_grid_is_whole_and_its_lengths_are_ragged() -> None:
    cases = timing_cases(is_small=False)
    assert len({str(case) for case in cases}) == len(cases) == 100
    for case in cases:
        assert max(case.lengths) == case.context
        assert min(case.lengths) >= case.context // 16
        assert (len(set(case.lengths)) > 1) == case.ragged


def test_documents_are_whole_and_have_no_infinities(tmp_path: Path) -> None:
    path = tmp_path / "folder" / file_name("NVIDIA H200 (SXM)")
    assert path.name == "nvidia-h200-sxm.json"
    write(path, {"error": float("inf"), "rows": [{"nan": float("nan"), "right": 1.5}]})
    assert json.loads(path.read_text()) == {"error": None, "rows": [{"nan": None, "right": 1.5}]}
    assert list(path.parent.iterdir()) == [path]
