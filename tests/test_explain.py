"""LEAN_ATTENTION_EXPLAIN: the policy's decisions in ONNX Runtime's log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEP = """
import sys
sys.path.insert(0, sys.argv[1])
from gqa_node import make_case, run_session
case = make_case(num_heads=8, kv_num_heads=2, head_size=64, seqlens_k=[2999, 4], capacity=3000)
run_session(case.node.session(case.feeds, log_severity_level=2), case.feeds)
"""


BENCH = """
import sys
from lean_attention.__main__ import main
shape = ["--num-heads=4", "--kv-num-heads=2", "--head-size=16", "--context=40", "--warm"]
sys.argv[1:] = ["bench", "kernel", *shape, "--against=fixed_split,stock", "--rounds=1"]
main()
"""


def explained(program: str, value: str | None) -> list[str]:
    """Runs a program with ``LEAN_ATTENTION_EXPLAIN``; returns its lines about decisions."""
    environment = {k: v for k, v in os.environ.items() if k != "LEAN_ATTENTION_EXPLAIN"}
    if value is not None:
        environment["LEAN_ATTENTION_EXPLAIN"] = value
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stderr.splitlines() if "query tokens" in line]


@pytest.mark.parametrize("value", ["1", "0", None])
def test_decisions_are_logged_where_asked_for(value: str | None) -> None:
    lines = explained(STEP, value)
    if value != "1":
        assert lines == []
        return
    (line,) = lines
    assert "attention: lean in " in line
    assert "2 sequences of 3005 keys in all, 1 query tokens, 8/2 heads of 64" in line


@pytest.mark.parametrize("value", ["1", "0", None])
def test_the_benchmark_lets_them_through(value: str | None) -> None:
    lines = explained(BENCH, value)
    assert bool(lines) == (value == "1")
    assert all("fixed_split in " in line and "4/2 heads of 16" in line for line in lines)
