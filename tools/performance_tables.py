"""The tables of docs/performance.md, from measurements; Markdown."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from lean_attention.bench import KernelConfig, KernelTimes
from lean_attention.bench.kernel import STOCK_AGAIN, Entry
from lean_attention.bench.roofline import PLAIN_STREAMS
from performance_plan import LEAST_SHORT, MOST_SLOWER, Item

__all__ = ["long_table", "refusals", "schedule_table", "self_check", "short_table", "threads_table"]

Found = Mapping[str, KernelTimes]
"""Measurements by their command."""


def long_table(items: Sequence[Item], found: Found) -> str:
    """Returns one row per measurement: times, fractions of the reads, ratios, goals."""
    rows = []
    for item, times in _measured(items, found):
        ours, plain = times.entries[0], times.reads[PLAIN_STREAMS]
        of_plain = ours.speedup_over(plain)
        to_stock = _ratio(times, "stock")
        goals = []
        if item.goal.read is not None:
            goals.append(_goal(of_plain, item.goal.read, f"{item.goal.read:.0%} of the plain read"))
        if item.goal.stock is not None:
            goals.append(_goal(to_stock, item.goal.stock, f"{item.goal.stock:g}x stock"))
        rows.append(
            [
                *_step(times.config),
                _milliseconds(ours),
                _speed(times, ours),
                _speed(times, plain),
                _percent(of_plain),
                _percent(ours.speedup_over(times.roofline)),
                _times(to_stock),
                _times(_ratio(times, "torch")),
                "<br>".join(goals),
            ]
        )
    heads = ["heads", "size", "types", "context", "ms (quartiles)", "GB/s", "plain read, GB/s"]
    heads += ["of the plain read", "of the best read", "to stock", "to PyTorch", "aim"]
    return _table(heads, rows)


def schedule_table(items: Sequence[Item], found: Found) -> str:
    """Returns one row per measurement: each schedule's time and its ratio to stock."""
    names = ("auto", "lean", "fixed_split", "direct", "stock")
    rows = []
    for item, times in _measured(items, found):
        cells = []
        for name in names:
            entry = times.find(name)
            cell = "" if entry is None else _milliseconds(entry)
            if name != "stock" and cell:
                cell += f", {_times(_ratio(times, 'stock', name))}"
            cells.append(cell)
        goal = ""
        if item.goal.stock is not None:
            goal = _goal(_ratio(times, "stock"), item.goal.stock, f"{item.goal.stock:g}x stock")
        rows.append([*_step(times.config), *cells, goal])
    return _table(["heads", "size", "types", "context", *names, "aim"], rows)


def short_table(items: Sequence[Item], found: Found) -> str:
    """Returns a row per shape and a column per context, with ratios to stock."""
    contexts = sorted({item.config.capacity for item in items})
    rows = []
    for shape, group in _by_shape(items, found, lambda step: _step(step)[:3]):
        cells = {times.config.capacity: _ratio(times, "stock") for times in group}
        marks = {
            context: f"{_times(ratio)}{'' if ratio >= LEAST_SHORT else ' ✗'}"
            for context, ratio in cells.items()
        }
        rows.append([*shape, *(marks.get(context, "") for context in contexts)])
    return _table(["heads", "size", "types", *map(str, contexts)], rows)


def threads_table(items: Sequence[Item], found: Found) -> str:
    """Returns a row per step and a column per number of threads, with our times."""
    threads = sorted({item.config.threads for item in items})
    rows = []
    for shape, group in _by_shape(items, found, _step):
        ours = {times.config.threads: times for times in group}
        cells, fastest = [], math.inf
        for count in threads:
            if count not in ours:
                cells.append("")
                continue
            entry = ours[count].entries[0]
            slower = entry.seconds > MOST_SLOWER * fastest
            fastest = min(fastest, entry.seconds)
            ratio = _times(_ratio(ours[count], "stock"))
            cells.append(f"{_milliseconds(entry)}, {ratio}{' ✗' if slower else ''}")
        rows.append([*shape, *cells])
    return _table(["heads", "size", "types", "context", *map(str, threads)], rows)


def self_check(items: Sequence[Item], found: Found) -> str:
    """Returns a sentence about the stock operator measured against itself."""
    ratios = sorted(
        ratio
        for _, times in _measured(items, found)
        if not math.isnan(ratio := _ratio(times, "stock", STOCK_AGAIN))
    )
    if not ratios:
        return ""
    return (
        f"Stock against itself in these measurements: {_times(ratios[len(ratios) // 2])} in the "
        f"middle, {_times(ratios[0])} to {_times(ratios[-1])}.\n"
    )


def refusals(items: Sequence[Item], found: Found) -> str:
    """Returns a line for each reason for which contenders did not run."""
    reasons: dict[str, list[str]] = {}
    for _, times in _measured(items, found):
        for entry in times.entries:
            if entry.refusal is not None and entry.name != STOCK_AGAIN:
                line = f"{entry.name}, {_step(times.config)[2]}: {entry.refusal}"
                reasons.setdefault(line, [])
    return "".join(f"* not measured: {line}\n" for line in reasons)


def _measured(items: Iterable[Item], found: Found) -> Iterable[tuple[Item, KernelTimes]]:
    return ((item, found[item.command]) for item in items if item.command in found)


def _by_shape(
    items: Sequence[Item], found: Found, key: Callable[[KernelConfig], list[str]]
) -> Iterable[tuple[list[str], list[KernelTimes]]]:
    """Returns what was measured, items of one shape, which follow one another, together."""
    for shape, group in groupby(_measured(items, found), lambda pair: key(pair[1].config)):
        yield shape, [times for _, times in group]


def _step(config: KernelConfig) -> list[str]:
    """Returns the first cells of a row: heads, size, types, contexts."""
    types = config.dtype
    if config.quantized:
        types += f", {config.kv_dtype} {config.kv_scales}"
    counts = [(length, len(list(same))) for length, same in groupby(config.lengths)]
    contexts = " + ".join(f"{count}x{n}" if count > 1 else str(n) for n, count in counts)
    return [f"{config.num_heads}/{config.kv_num_heads}", str(config.head_size), types, contexts]


def _ratio(times: KernelTimes, other: str, name: str | None = None) -> float:
    """Returns how many times as fast as another a contender, ours by default, is; NaN: unknown."""
    entry = times.entries[0] if name is None else times.find(name)
    against = times.find(other)
    if entry is None or against is None:
        return math.nan
    return entry.speedup_over(against)


def _goal(value: float, least: float, text: str) -> str:
    return f"{text} {'✓' if value >= least else '✗'}"


def _milliseconds(entry: Entry) -> str:
    if entry.rounds is None:
        return "—"
    low, high = entry.quartiles
    return f"{1e3 * entry.seconds:.3g} ({1e3 * low:.3g} to {1e3 * high:.3g})"


def _speed(times: KernelTimes, entry: Entry) -> str:
    if entry.rounds is None:
        return "—"
    return f"{times.config.bytes_read / entry.seconds / 1e9:.3g}"


def _percent(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.0%}"


def _times(value: float) -> str:
    if math.isnan(value):
        return "—"
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; a sentence where there are no rows."""
    if not rows:
        return "Not measured on this machine.\n"
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
