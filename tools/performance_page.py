"""Measures the kernel and writes docs/performance.md from the committed measurements.

    performance_page.py measure    what the plan holds and docs/results/ lacks, on this machine
    performance_page.py write      the page

A measurement is a run of ``lean-attention bench kernel`` in a process of its own. It is kept as
soon as it is there: ``measure`` may be stopped and started again.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lean_attention.bench.kernel_report import SCHEMA_VERSION, from_document, write_text
from lean_attention.bench.machine import Machine
from lean_attention.errors import LeanAttentionError
from performance_plan import PLAN, Item
from performance_tables import (
    Found,
    long_table,
    refusals,
    schedule_table,
    self_check,
    short_table,
    threads_table,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"
Documents = dict[str, dict[str, Any]]

INTRODUCTION = """\
# Performance

<!-- Written by tools/performance_page.py from docs/results/; change those, not this. -->

One decode step of attention: one query token for each sequence, its caches in one buffer for past
and present. `auto` is our operator as it decides for itself, stock is
`com.microsoft.GroupQueryAttention` on the CPU execution provider, PyTorch is
`scaled_dot_product_attention(enable_gqa=True)`.

All contenders run in one process over the same memory and take turns, in an order that changes from
round to round. Their thread pools spin during a run, as they do for users, and not after it; pools
of more threads than the machine has processors do not spin. Results are compared with a float64
computation before anything is timed. Times are medians over the rounds, ratios medians of the
rounds' ratios.
GB/s counts the bytes of K and V once. The caches are so many that each comes from memory, except
where it says otherwise.

*Heads* are query heads / KV heads, *size* is the head size; a context of `16384 + 2x1024 + 512` is
a batch of four sequences. *Aim* is what we set out to reach before the kernel was written, ✓ where
it was reached; the last part of the page says what keeps it from the others.

The reads are plain vector loads of the same bytes, by as many threads, in the same rounds. In *the
plain read* each thread goes through its part from begin to end. *The best read* is the fastest
one, which on some machines is a read in four places by turns: it keeps more misses in flight than
one place does.
"""


def read_results(path: Path) -> Documents:
    """Returns a machine's measurements by command; none where there is no such file yet.

    Raises:
        LeanAttentionError: The file is none of ours.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, runs = content["schema_version"], content["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise LeanAttentionError(f"{path} holds no measurements: {error!r}") from error
    if version != SCHEMA_VERSION:
        raise LeanAttentionError(
            f"{path} has schema version {version} and this program reads {SCHEMA_VERSION}; "
            "remove it and measure again"
        )
    return dict(runs)


def write_results(path: Path, documents: Documents) -> None:
    """Writes a machine's measurements, each on a line of its own, in the order of the plan."""
    lines = [
        f"{json.dumps(command)}: {json.dumps(documents[command])}"
        for command in PLAN.commands
        if command in documents
    ]
    text = f'{{"schema_version": {SCHEMA_VERSION}, "runs": {{\n' + ",\n".join(lines) + "\n}}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def results_name(machine: Machine) -> str:
    """Returns the name of a machine's file."""
    words = re.sub(r"\(r\)|\(tm\)|processor|cpu|@.*", " ", machine.cpu.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", f"{words} {machine.instruction_set or ''}".lower()).strip("-")
    return f"{slug}-{machine.processors}-processors.json"


def measure(folder: Path, only: str, again: bool, console: Console) -> int:
    """Runs what is missing; returns the exit status: 1 where a measurement failed."""
    path = folder / results_name(Machine.this())
    documents = read_results(path)
    wanted = [command for command in PLAN.commands if only in command]
    todo = [command for command in wanted if again or command not in documents]
    console.print(f"{len(todo)} of {len(wanted)} measurements to do, into {path}")
    failed = 0
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between measurements alone: drawing takes time from a core that is measured.
    with (
        Progress(*columns, console=console, transient=True, auto_refresh=False) as progress,
        tempfile.TemporaryDirectory() as scratch,
    ):
        task = progress.add_task("", total=len(todo))
        progress.refresh()
        for command in todo:
            output = Path(scratch) / "result.json"
            words = [*shlex.split(command)[1:], f"--json={output}"]
            done = subprocess.run(
                [sys.executable, "-m", "lean_attention", *words], capture_output=True, text=True
            )
            if done.returncode == 0:
                documents[command] = json.loads(output.read_text(encoding="utf-8"))
                write_results(path, documents)
            else:
                failed += 1
                reason = (done.stderr.strip() or "no message").splitlines()[-1]
                console.print(f"[red]✗[/] {command}\n  {reason}", highlight=False)
            progress.update(task, advance=1, refresh=True)
    console.print(f"{len(todo) - failed} done, {failed} failed")
    return 1 if failed else 0


def page(folder: Path, notes: Path) -> str:
    """Returns the text of the page."""
    machines = [read_results(path) for path in sorted(folder.glob("*.json"))]
    parts = [INTRODUCTION, *(machine_part(documents) for documents in machines if documents)]
    if notes.exists():
        parts.append(notes.read_text(encoding="utf-8"))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def machine_part(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns what was measured on one machine."""
    found = {command: from_document(document) for command, document in documents.items()}
    latest = max(documents.values(), key=lambda document: str(document["date"]))
    machine = Machine(**latest["machine"])
    title = f"{machine.cpu}, {machine.instruction_set}, {machine.processors} processors"
    return "\n".join(
        [
            f"## {title}\n",
            machine_lines(machine, documents),
            "### Long contexts\n",
            section(PLAN.long, found, long_table(PLAN.long, found)),
            "### Integer caches\n",
            section(PLAN.integer, found, long_table(PLAN.integer, found)),
            "### Batches and schedules\n",
            "Milliseconds (quartiles), and the ratio to stock.\n",
            section(PLAN.ragged, found, schedule_table(PLAN.ragged, found)),
            "### Short contexts\n",
            "Ratios to stock, by context. Thirty caches are reused, as the layers of a model are; "
            "a session\nruns thirty nodes at a time. Aim: never below 1, less the noise.\n",
            section(PLAN.short, found, short_table(PLAN.short, found)),
            "### Threads\n",
            "Milliseconds (quartiles) and ratio to stock, by the threads of the pool; ✗ marks what "
            "takes more\nthan a tenth longer than with fewer threads.\n",
            section(PLAN.threads, found, threads_table(PLAN.threads, found)),
        ]
    )


def section(items: tuple[Item, ...], found: Found, table: str) -> str:
    """Returns a table with what belongs to it."""
    commands = "\n".join(item.command for item in items if item.command in found)
    parts = [table, self_check(items, found), refusals(items, found)]
    if commands:
        parts.append(
            f"<details><summary>Commands</summary>\n\n```\n{commands}\n```\n\n</details>\n"
        )
    return "\n".join(part for part in parts if part)


def machine_lines(machine: Machine, documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the machine and the versions as a table."""

    def all_of(key: str) -> str:
        return ", ".join(sorted({str(document[key]) for document in documents.values()}))

    caches = ", ".join(
        f"{level} {size >> 10} KiB" if size < 1 << 20 else f"{level} {size >> 20} MiB"
        for level, size in machine.caches.items()
    )
    versions: dict[str, set[str]] = {}
    for document in documents.values():
        for name, version in document["versions"].items():
            versions.setdefault(name, set()).add(version)
    rows = {
        "instruction set": machine.instruction_set,
        "cores": f"{machine.cores} ({machine.processors} logical processors)",
        "caches": caches,
        "memory": f"{machine.memory / 2**30:.0f} GiB, large pages: {machine.huge_pages}",
        "system": f"{machine.kernel}, {machine.architecture}",
        "versions": ", ".join(f"{name} {' '.join(sorted(v))}" for name, v in versions.items()),
        "commit": all_of("commit"),
        "dates": ", ".join(sorted({str(d["date"])[:10] for d in documents.values()})),
    }
    return "| | |\n|---|---|\n" + "".join(f"| {k} | {v} |\n" for k, v in rows.items())


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=DOCS / "results", help="a folder")
    commands = parser.add_subparsers(dest="what", required=True)
    measuring = commands.add_parser("measure", help="measure what is missing on this machine")
    measuring.add_argument("--only", default="", help="text that a command must contain")
    measuring.add_argument("--again", action="store_true", help="also what is there already")
    writing = commands.add_parser("write", help="write the page")
    writing.add_argument("--page", type=Path, default=DOCS / "performance.md")
    writing.add_argument("--notes", type=Path, default=DOCS / "performance_notes.md")
    writing.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    arguments = parser.parse_args()
    console = Console(soft_wrap=True)
    if arguments.what == "measure":
        return measure(arguments.results, arguments.only, arguments.again, console)
    text = page(arguments.results, arguments.notes)
    if not arguments.check:
        write_text(arguments.page, text)
        console.print(f"wrote {arguments.page}")
        return 0
    if arguments.page.exists() and arguments.page.read_text(encoding="utf-8") == text:
        return 0
    console.print(f"{arguments.page} is out of date: run tools/performance_page.py write")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LeanAttentionError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
