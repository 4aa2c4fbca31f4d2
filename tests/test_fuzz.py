"""Random calls, ours against the stock operator and float64; `make fuzz` tries many more."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuzz import __main__ as command
from fuzz import differences, oracle
from fuzz.call import OURS, STOCK, Call, Outcome, run
from fuzz.differences import ONLY_OURS, ONLY_STOCK, Difference
from fuzz.oracle import DisagreementError, check
from fuzz.script import as_script
from fuzz.search import search
from fuzz.slices import find_fatal_call
from gqa_node import make_case, needs_stock

PAGE = Path(__file__).parent.parent / "docs" / "operator.md"
pytestmark = needs_stock(1, 32)


def decode_call(**changes: object) -> Call:
    """One token after four, in a cache of eight rows."""
    shape = {"num_heads": 2, "kv_num_heads": 1, "head_size": 32, "seqlens_k": [4], "capacity": 8}
    case = make_case(**{**shape, **changes})
    return Call(case.node, case.feeds)


def test_random_calls_agree() -> None:
    tally = search(300)
    # Were nearly all refused, little would be compared.
    assert tally["both"] > 50
    assert tally["ours"] > 20
    assert tally["neither"] > 20


@pytest.mark.parametrize("difference", ONLY_STOCK, ids=lambda row: row.why)
def test_what_only_stock_accepts(difference: Difference) -> None:
    call = difference.change(decode_call())
    assert run(call, STOCK).accepted
    assert not run(call, OURS).accepted
    assert check(call, other_schedule="lean", other_threads=2) == (False, True)


@pytest.mark.parametrize("difference", ONLY_OURS, ids=lambda row: row.why)
def test_what_only_ours_accepts(difference: Difference) -> None:
    call = difference.change(decode_call())
    assert not run(call, STOCK).accepted
    assert check(call, other_schedule="lean", other_threads=2) == (True, False)


@pytest.mark.parametrize("rows,by_stock", [(ONLY_STOCK, True), (ONLY_OURS, False)])
def test_each_difference_is_needed_and_on_the_page(
    rows: list[Difference], by_stock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    for row in rows:
        assert f"| {row.why} |" in page
        call = row.change(decode_call())
        others = [other for other in rows if other is not row]
        monkeypatch.setattr(differences, "ONLY_STOCK" if by_stock else "ONLY_OURS", others)
        with pytest.raises(DisagreementError, match=r"only (stock|ours) accepts this"):
            check(call, other_schedule="lean", other_threads=2)


def _spoil_output(outcome: Outcome) -> None:
    outcome.results[0][..., -1] += np.asarray(0.01, outcome.results[0].dtype)


def _spoil_new_row(outcome: Outcome) -> None:
    outcome.results[1][0, 0, 4, 3] += 1


def _spoil_old_row(outcome: Outcome) -> None:
    outcome.results[2][0, 0, 1, 3] += 1


def _spoil_tail(outcome: Outcome) -> None:
    outcome.results[1][0, 0, 6, 0] = 1


FAULTS = {
    "the output is off": _spoil_output,
    "rows 4 to 5 are not the new ones": _spoil_new_row,
    "rows before 4 differ from the past's": _spoil_old_row,
    "rows past 5 (are not zero|were written)": _spoil_tail,
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("message", FAULTS)
def test_faults_are_noticed(message: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    call = replace(decode_call(), shared=shared)
    assert check(call, other_schedule="lean", other_threads=1) == (True, True)

    def run_badly(call: Call, op: tuple[str, str]) -> Outcome:
        outcome = run(call, op)
        if op == OURS:
            FAULTS[message](outcome)
        return outcome

    monkeypatch.setattr(oracle, "run", run_badly)
    with pytest.raises(DisagreementError, match=message):
        check(call, other_schedule="lean", other_threads=1)


def test_other_bits_and_changed_inputs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = decode_call()

    def run_badly(call: Call, op: tuple[str, str]) -> Outcome:
        outcome = run(call, op)
        if call.attribute("schedule", "auto") == "lean":
            outcome.results[0][0, 0, 0] = np.nextafter(outcome.results[0][0, 0, 0], np.float32(9))
        return replace(outcome, changed=("query",)) if call.threads == 3 else outcome

    monkeypatch.setattr(oracle, "run", run_badly)
    with pytest.raises(DisagreementError, match=r"schedule lean .* other bits in output"):
        check(call, other_schedule="lean", other_threads=2)
    with pytest.raises(DisagreementError, match=r"the call changed \['query'\]"):
        check(replace(call, threads=3), other_schedule="direct", other_threads=2)


def test_a_failure_is_a_small_program_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that ours had no window."""

    def run_badly(call: Call, op: tuple[str, str]) -> Outcome:
        return run(call.with_attributes(local_window_size=-1) if op == OURS else call, op)

    monkeypatch.setattr(oracle, "run", run_badly)
    with pytest.raises(DisagreementError, match="the output is off") as found:
        search(300)
    call = found.value.call
    assert sum(array.size for array in call.feeds.values()) < 2000
    script = str(found.value).split("\n\n", 1)[1]
    program = f"{script}\nprint(results['LeanGroupQueryAttention'][0].shape())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    shape = list(call.feeds["query"].shape[:2])
    assert printed.stdout.endswith(f"{[*shape, call.node.num_heads * call.head_size]}\n")


def _swapped(call: Call, one: str, other: str) -> Call:
    if not {one, other} <= call.feeds.keys():
        return call
    return call.with_feeds(**{one: call.feeds[other], other: call.feeds[one]})


def _later(call: Call) -> Call:
    """A position more for each rotation."""
    if "position_ids" not in call.feeds:
        return call
    rows = len(call.feeds.get("cos_cache", ()))
    return call.with_feeds(position_ids=np.minimum(call.feeds["position_ids"] + 1, rows - 1))


# What an operator would do that had a part of the contract wrong.
MISTAKES: dict[str, Callable[[Call], Call]] = {
    "no window": lambda call: call.with_attributes(local_window_size=-1),
    "no softcap": lambda call: call.with_attributes(softcap=0.0),
    "no scale": lambda call: call.with_attributes(scale=0.0),
    "no smooth softmax": lambda call: call.with_attributes(smooth_softmax=0),
    "the other rotation": lambda call: call.with_attributes(
        rotary_interleaved=1 - call.attribute("rotary_interleaved", 0)
    ),
    "no sink": lambda call: call.with_feeds(head_sink=None),
    "no bias": lambda call: call.with_feeds(attention_bias=None),
    "no positions": lambda call: call.with_feeds(position_ids=None),
    "later positions": _later,
    "scales swapped": lambda call: _swapped(call, "k_scale", "v_scale"),
    "norms swapped": lambda call: _swapped(call, "q_norm_weight", "k_norm_weight"),
    "one epsilon": lambda call: call.with_attributes(q_norm_epsilon=1e-6),
    "no query_seqlens": lambda call: call.with_feeds(query_seqlens=None),
    "key and value swapped": lambda call: _swapped(call, "key", "value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_random_calls_find_an_operator_that_has(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_badly(call: Call, op: tuple[str, str]) -> Outcome:
        return run(MISTAKES[mistake](call) if op == OURS else call, op)

    monkeypatch.setattr(oracle, "run", run_badly)
    with pytest.raises(DisagreementError):
        search(1000, shrinks=False)  # It ends with the first that is found.


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_program_computes_what_the_call_did(dtype: type, tmp_path: Path) -> None:
    call = decode_call(dtype=dtype, cache="int8", rotary_half=8, seqlens_k=[4, 7])
    wanted = run(replace(call, shared=True), OURS).results
    program = f"{as_script(call)}\nfor found in results['LeanGroupQueryAttention']:\n"
    program += "    print(found.numpy().tobytes().hex())\n"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split()[-3] == wanted[0].tobytes().hex()


def test_a_call_that_ends_the_process_is_a_program_too(tmp_path: Path) -> None:
    call = decode_call()
    fatal = call.with_feeds(position_ids=np.zeros(1, np.int64))
    for name, kept in (("1", call), ("2", fatal)):
        (tmp_path / name).write_bytes(pickle.dumps(kept))
    assert find_fatal_call(str(tmp_path)) == f"the process ended\n\n{as_script(fatal)}"


def test_the_command_counts_what_it_tried() -> None:
    settings = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "FUZZ_EXAMPLES": "20"}
    settings["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{settings['PYTHONPATH']}"
    settings |= {"FUZZ_SEED": "1", "FUZZ_PROCESSES": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz"],
        capture_output=True,
        text=True,
        env=os.environ | settings,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("20 calls, FUZZ_SEED=1\n20 calls in ")


def test_the_command_fails_with_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUZZ_EXAMPLES", "300")
    monkeypatch.setenv("FUZZ_SEED", "1")
    # In this process, where the mistake is.
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(oracle, "find_wrong_caches", lambda *_, **__: "no cache is right")
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert "# stock: no cache is right\n# The program above shows it.\n" in printed
    compile(printed.split("\n", 1)[1], "program", "exec")
