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


@pytest.mark.parametrize("value", ["1", "0", None])
def test_decisions_are_logged_where_asked_for(value: str | None) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LEAN_ATTENTION_EXPLAIN"}
    if value is not None:
        environment["LEAN_ATTENTION_EXPLAIN"] = value
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(Path(__file__).parent)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "attention: " in line]
    if value != "1":
        assert lines == []
        return
    (line,) = lines
    assert "attention: lean in " in line
    assert "2 sequences of 3005 keys in all, 1 query tokens, 8/2 heads of 64" in line
