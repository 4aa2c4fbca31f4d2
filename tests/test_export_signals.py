"""An export that is ended from outside: no worker goes on, nothing half-written stays."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

for package in ("torch", "onnxruntime_genai", "onnxscript"):
    pytest.importorskip(package)


def processes_naming(path):
    """The running processes whose command line holds a path."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(path).encode() in entry.read_bytes():
                found.append(entry.parent.name)
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_signal_ends_the_worker_at_once_and_leaves_nothing(number, tmp_path):
    with export_at_work(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(timeout=40) not in (0, -number)
    assert not any(tmp_path.iterdir())
    assert not processes_naming(tmp_path)


def test_worker_ends_when_its_parent_is_killed(tmp_path):
    with export_at_work(tmp_path) as process:
        assert len(processes_naming(tmp_path)) == 2
        process.kill()
        process.wait()
    until = time.monotonic() + 20
    while (left := processes_naming(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


@contextlib.contextmanager
def export_at_work(folder):
    """A process of the command whose worker is at its first stage."""
    # Large enough to be at work for much longer than the time allowed below.
    # Whoever started the tests may have had them ignore these: a shell's background job does.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from lean_attention.commands.export import _Stages; from lean_attention import __main__; "
        "_Stages.begin = lambda self, line: print(line, flush=True); __main__.main()"
    )
    command = [sys.executable, "-c", code, "export", "phi-3-mini-4k", str(folder / "m")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"Making")
        assert [path.name for path in folder.iterdir()] != ["m"]
        yield process
