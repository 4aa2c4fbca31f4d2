"""``lean-attention bench kernel`` times only what is right, over memory that is cold, in turns."""

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from lean_attention.__main__ import app
from lean_attention.bench import KernelConfig, time_kernel
from lean_attention.bench import kernel as kernel_module
from lean_attention.bench.contenders import CONTENDERS, Contender, prepare
from lean_attention.bench.kernel import STOCK_AGAIN, turn_order
from lean_attention.bench.kernel_config import Copies
from lean_attention.bench.kernel_data import KernelData
from lean_attention.bench.kernel_report import from_document, to_document
from lean_attention.bench.machine import Machine, available_memory
from lean_attention.bench.roofline import READ_STREAMS, MemoryRead
from lean_attention.errors import LeanAttentionError
from reference import Step, attention

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE_TOOL = REPOSITORY / "tools" / "performance_page.py"

TINY = KernelConfig((40,), num_heads=4, kv_num_heads=2, head_size=16, threads=2, warm=True)
TINY_FLAGS = ["--num-heads=4", "--kv-num-heads=2", "--head-size=16", "--context=40", "--warm"]
FLOATS = ("float32", "float16", "bfloat16")


def of_type(config: KernelConfig, dtype: str, kv_dtype: str | None = None) -> KernelConfig:
    return replace(config, dtype=dtype, kv_dtype=kv_dtype or dtype)


# The roofline.


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_read_takes_in_every_byte_once(threads: int, streams: int) -> None:
    rng = np.random.default_rng(0)
    sizes = (0, 1, 7, 8, 63, 64, 65, 1000, 65537, 3_000_001)
    pieces = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    expected = 0
    for piece in pieces:
        padded = np.resize(np.zeros(1, np.uint8), -(-piece.size // 8) * 8)
        padded[: piece.size] = piece
        expected ^= int(np.bitwise_xor.reduce(padded.view(np.uint64), initial=0))
    read = MemoryRead([(piece.ctypes.data, piece.nbytes) for piece in pieces])
    assert read(threads, streams) > 0
    assert read.combined == expected


@pytest.mark.parametrize(
    ("pieces", "threads", "streams"),
    [
        ([(0, 8)], 1, 1),
        ([(0, -1)], 1, 1),
        ([], 1, 1),
        ([(0, 0)], 0, 1),
        ([(0, 0)], 1025, 1),
        ([(0, 0)], 1, 3),
    ],
)
def test_a_read_refuses_what_it_cannot_do(
    pieces: list[tuple[int, int]], threads: int, streams: int
) -> None:
    with pytest.raises(LeanAttentionError, match="invalid argument"):
        MemoryRead(pieces)(threads, streams)


def test_the_read_of_a_ragged_step_covers_the_valid_rows_alone() -> None:
    config = replace(TINY, lengths=(40, 3))
    data = KernelData(config, Copies(2, 3))
    assert sum(size for _, size in data.valid_pieces(1)) == 3 * config.bytes_read
    starts = {part[1, 1].ctypes.data for part in data.cache(1, 2)}
    assert starts < {address for address, _ in data.valid_pieces(1)}


# The step and its exact result.


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_exact_result_is_the_references(dtype: str) -> None:
    config = of_type(replace(TINY, lengths=(40, 1, 17)), dtype)
    data = KernelData(config, Copies(1, 1))
    past_key, past_value = (part.astype(np.float64) for part in data.cache(0, 0))

    def heads(array: NDArray[Any]) -> NDArray[np.float64]:
        return array.astype(np.float64).reshape(3, 1, -1, config.head_size)

    step = Step(
        heads(data.query),
        heads(data.key),
        heads(data.value),
        past_key,
        past_value,
        lengths=np.array(config.lengths, np.int64),
        queries=np.ones(3, np.int64),
    )
    expected = attention(step).output.reshape(3, config.num_heads, config.head_size)
    np.testing.assert_allclose(data.exact_output(), expected, rtol=0, atol=1e-12)


def test_all_copies_are_the_same_and_new_rows_are_poisoned() -> None:
    config = replace(TINY, lengths=(40, 3))
    data = KernelData(config, Copies(2, 2))
    first = data.cache(0, 0)
    for group, layer in ((0, 1), (1, 0), (1, 1)):
        for part, other in zip(first, data.cache(group, layer), strict=True):
            assert part.tobytes() == other.tobytes()
            assert not np.shares_memory(part, other)
    for part in first:
        for b, length in enumerate(config.lengths):
            assert np.isfinite(part[b, :, : length - 1]).all()
            assert np.isnan(part[b, :, length - 1 :]).all()


@pytest.mark.parametrize("cache", [1 << 20, 32 << 20, 256 << 20])
@pytest.mark.parametrize("length", [1, 100, 5000, 200_000])
def test_caches_are_too_many_to_stay_in_the_processor(length: int, cache: int) -> None:
    config = KernelConfig((length,))
    copies = config.copies(cache)
    total = copies.count * config.bytes_read
    assert total >= max(256 << 20, 4 * cache)
    assert copies.sets >= 2
    assert total < 2 * max(256 << 20, 4 * cache) + 2 * config.bytes_read


@pytest.mark.parametrize(("length", "count"), [(1, 30), (512, 30), (8192, 4), (100_000, 1)])
def test_warm_caches_are_a_models(length: int, count: int) -> None:
    copies = KernelConfig((length,), warm=True).copies(32 << 20)
    assert (copies.sets, copies.layers) == (1, count)


# Who is timed.


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, lengths=(40, 3, 17)),
        of_type(TINY, "float16"),
        of_type(TINY, "float32", "int8"),
        replace(of_type(TINY, "float16", "int4"), kv_scales="per-channel"),
        of_type(TINY, "bfloat16"),
        replace(TINY, warm=False, lengths=(3000,), num_heads=8, kv_num_heads=8, head_size=64),
    ],
    ids=lambda config: f"{config.dtype}-{config.kv_dtype}-{len(config.lengths)}-{config.warm}",
)
def test_contenders_are_right_or_refuse(config: KernelConfig) -> None:
    rounds = 3
    seen: list[None] = []
    times = time_kernel(
        config, (*CONTENDERS, STOCK_AGAIN), rounds=rounds, on_round=lambda: seen.append(None)
    )
    assert len(seen) == rounds
    assert [entry.name for entry in times.entries] == [*CONTENDERS, STOCK_AGAIN]
    for entry in times.entries:
        assert not entry.wrong, entry
        if entry.rounds is None:
            assert entry.refusal
            assert "\n" not in entry.refusal
        else:
            assert entry.rounds.shape == (rounds,)
            assert (entry.rounds > 0).all()
            assert entry.error is not None
            assert entry.error <= config.tolerance
    for streams in READ_STREAMS:
        assert times.reads[streams].seconds > 0
    stock = times.find("stock")
    assert stock is not None
    if config.dtype != "bfloat16":
        assert stock.speedup_over(stock) == 1


def test_a_refusal_does_not_stop_the_others() -> None:
    times = time_kernel(of_type(TINY, "float32", "int8"), ("torch", "stock"), rounds=1)
    torch, stock = times.entries
    assert torch.refusal == "PyTorch has no attention over int8 caches"
    assert stock.rounds is not None


class Faulty:
    """A real contender, and something that it does wrong."""

    def __init__(self, real: Contender, data: KernelData, fault: str) -> None:
        """Wraps a contender."""
        self._real, self._data, self._fault = real, data, fault

    def run(self, group: int) -> None:
        """Runs, or does not."""
        if self._fault == "does nothing":
            return
        if self._fault == "misses one key":
            self._data.cache(0, 0)[0][0, 0, 7] = -100 * self._data.query[0, 0, :16]
        self._real.run(group)

    def poison(self) -> None:
        """Poisons the real outputs."""
        self._real.poison()

    def outputs(self) -> Sequence[NDArray[Any]]:
        """Returns spoiled copies."""
        outputs = [np.array(output) for output in self._real.outputs()]
        last = outputs[-1].reshape(-1, 16)
        if self._fault == "exchanges two heads of the last layer":
            last[[2, 3]] = last[[3, 2]]
        if self._fault == "is off by a thousandth":
            last[1] *= 1.001
        if self._fault == "leaves out an element":
            last[1, 5] = np.nan
        return outputs


def with_faulty(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> Callable[[str, KernelData], Contender]:
    def prepare_faulty(name: str, data: KernelData) -> Contender:
        real = prepare(name, data)
        return Faulty(real, data, fault) if name == "lean" else real

    monkeypatch.setattr(kernel_module, "prepare", prepare_faulty)
    return prepare_faulty


@pytest.mark.parametrize("others", [[], ["stock"]], ids=str)
@pytest.mark.parametrize(
    "fault",
    [
        "does nothing",
        "leaves out an element",
        "misses one key",
        "exchanges two heads of the last layer",
        "is off by a thousandth",
    ],
)
def test_what_is_wrong_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, fault: str, others: list[str]
) -> None:
    with_faulty(monkeypatch, fault)
    times = time_kernel(TINY, [*others, "lean"], rounds=1)
    *right, lean = times.entries
    assert all(entry.rounds is not None for entry in right)
    assert lean.wrong
    assert lean.rounds is None
    assert lean.refusal is not None
    assert "wrong result" in lean.refusal


def test_the_command_fails_on_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with_faulty(monkeypatch, "does nothing")
    result = CliRunner().invoke(
        app, ["bench", "kernel", *TINY_FLAGS, "--against=lean,stock", "--rounds=1"]
    )
    assert isinstance(result.exception, LeanAttentionError)
    assert "lean computed a wrong result" in str(result.exception)
    assert "lean: wrong result" in result.stdout


@pytest.mark.parametrize("count", range(2, 10))
def test_each_comes_after_each_equally_often(count: int) -> None:
    rounds = [turn_order(count, number) for number in range(count * (1 + count % 2))]
    assert all(sorted(order) == list(range(count)) for order in rounds)
    places = Counter(place for order in rounds for place in enumerate(order))
    assert (len(places), len(set(places.values()))) == (count**2, 1)
    pairs = Counter(pair for order in rounds for pair in pairwise(order))
    assert (len(pairs), len(set(pairs.values()))) == (count * (count - 1), 1)


def test_turns_are_taken_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Recorder:
        def __init__(self, real: Contender, name: str) -> None:
            self._real, self._name = real, name

        def run(self, group: int) -> None:
            if seen[-1:] != [self._name]:
                seen.append(self._name)
            self._real.run(group)

        def poison(self) -> None:
            self._real.poison()

        def outputs(self) -> Sequence[NDArray[Any]]:
            return self._real.outputs()

    monkeypatch.setattr(
        kernel_module, "prepare", lambda name, data: Recorder(prepare(name, data), name)
    )
    names = ["stock", "lean", "direct"]
    everyone = [*names, *READ_STREAMS]
    time_kernel(TINY, names, rounds=7)
    expected = [everyone[place] for number in range(7) for place in turn_order(5, number)]
    wanted = [name for name in expected if name in names]
    wanted = [name for i, name in enumerate(wanted) if i == 0 or wanted[i - 1] != name]
    assert seen[-len(wanted) :] == wanted


# The command.


def run(*flags: str) -> Any:
    return CliRunner().invoke(app, ["bench", "kernel", *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-heads=9", "--kv-num-heads=4"], "num_heads is 9, which is no multiple"),
        (["--context=0"], "--context is 0"),
        (["--batch=-1"], "--batch is -1"),
        (["--batch=1000000000"], "--batch is 1000000000; it must be 1 to 65536"),
        (["--lengths=4,0"], "the context is 0"),
        (["--lengths=4;5"], "--lengths is '4;5'"),
        (["--dtype=float64"], "dtype is 'float64'"),
        (["--kv-dtype=int7"], "kv_dtype is 'int7'"),
        (["--kv-dtype=float16"], "a cache of floats has the activations' type"),
        (["--kv-dtype=int4", "--head-size=33"], "it must be even"),
        (["--kv-scales=per-row"], "kv_scales is 'per-row'"),
        (["--threads=0"], "threads is 0"),
        (["--against=lean,fast"], "--against names 'fast'"),
        (["--rounds=0"], "--rounds is 0"),
        (["--context=2000000000"], "GB are free"),
        (["--json=absent/file.json"], "cannot write absent/file.json"),
        ([*TINY_FLAGS, "--against=torch", "--kv-dtype=int8", "--rounds=1"], "no contender takes"),
    ],
)
def test_the_command_refuses_in_one_line(flags: list[str], message: str) -> None:
    result = run(*flags)
    assert isinstance(result.exception, LeanAttentionError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_memory_is_checked_before_it_is_taken() -> None:
    config = KernelConfig((2**31 - 1,), head_size=256)
    before = available_memory()
    with pytest.raises(LeanAttentionError, match="GB are free"):
        time_kernel(config)
    assert before - available_memory() < 1 << 30


def test_the_command_prints_a_row_for_each() -> None:
    result = run(*TINY_FLAGS, "--against=lean,stock", "--against=torch", "--rounds=2")
    assert result.exit_code == 0, result.exception
    rows = [line.split()[0] for line in result.stdout.splitlines()[3:] if line]
    assert rows[:4] == ["plain", "4-way", "lean", "stock"]
    assert rows[4].startswith("torch")
    assert "4/2 heads of 16, float32, cache float32, context 40, batch 1" in result.stdout
    assert "30 copies, 0.307 MB, reused" in result.stdout


def test_the_size_of_ragged_caches_is_said_to_hold_their_padding() -> None:
    result = run(*TINY_FLAGS, "--lengths=40,9", "--against=lean", "--rounds=1")
    assert "0.0125 MB of K and V a step; 30 copies" in result.stdout
    assert "0.614 MB with their padding, reused" in result.stdout


@pytest.mark.parametrize(
    "flags",
    [
        [*TINY_FLAGS, "--self-check", "--threads=2"],
        [*TINY_FLAGS, "--lengths=40,9,2", "--kv-dtype=int4", "--kv-scales=per-channel"],
    ],
)
def test_a_document_holds_everything(tmp_path: Path, flags: list[str]) -> None:
    file = tmp_path / "result.json"
    result = run(*flags, "--against=auto,stock,torch", "--rounds=2", f"--json={file}")
    assert result.exit_code == 0, result.exception
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    document = json.loads(file.read_text())
    assert document["versions"]["onnxruntime"]
    assert Machine(**document["machine"]) == Machine.this()
    times = from_document(document)
    assert from_document(json.loads(json.dumps(to_document(times)))).config == times.config
    for entry, stored in zip(times.entries, document["contenders"], strict=True):
        assert (entry.rounds is None) == (stored["seconds"] is None) == (entry.refusal is not None)
    words = shlex.split(document["command"])
    assert words[:3] == ["lean-attention", "bench", "kernel"]
    again = tmp_path / "again.json"
    assert run(*words[3:], f"--json={again}").exit_code == 0
    repeated = json.loads(again.read_text())
    for key in ("step", "command", "copies", "bytes_read"):
        assert repeated[key] == document[key]


@pytest.mark.parametrize("document", [{}, {"schema_version": 0}, {"schema_version": 1}], ids=str)
def test_other_documents_are_refused(document: dict[str, int]) -> None:
    with pytest.raises(LeanAttentionError, match=r"schema version|no measurement"):
        from_document(document)


# The page.


def page_tool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PAGE_TOOL, *arguments], capture_output=True, text=True, env=os.environ
    )


def test_the_page_is_measured_bit_by_bit_and_written(tmp_path: Path) -> None:
    results, page, notes = tmp_path / "results", tmp_path / "page.md", tmp_path / "notes.md"
    one = "--num-heads=9 --kv-num-heads=3 --head-size=64 --context=1 "
    first = page_tool("--results", results, "measure", "--only", one)
    assert first.returncode == 0, first.stderr
    assert "1 of 1 measurements to do" in first.stdout
    assert "0 of 1" in page_tool("--results", results, "measure", "--only", one).stdout

    notes.write_text("# What was tried\n\nThis and that.\n")
    write = ["--results", str(results), "write", "--page", str(page), "--notes", str(notes)]
    assert page_tool(*write, "--check").returncode == 1
    assert page_tool(*write).returncode == 0
    assert page_tool(*write, "--check").returncode == 0
    text = page.read_text()
    assert "| 9/3 | 64 | float32 | " in text
    assert f"lean-attention bench kernel {one}" in text
    assert text.endswith(notes.read_text())
    page.write_text(text.replace("9/3", "9/9"))
    assert page_tool(*write, "--check").returncode == 1


def test_the_committed_page_is_what_the_tool_writes() -> None:
    docs = REPOSITORY / "docs"
    if not any((docs / "results").glob("*.json")):
        assert not (docs / "performance.md").exists()
        return
    done = page_tool("write", "--check")
    assert done.returncode == 0, done.stdout
