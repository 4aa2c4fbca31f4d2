"""``lean-attention bench kernel``: one attention node against others and against memory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lean_attention.bench.contenders import CONTENDERS
from lean_attention.bench.kernel_config import DTYPES, KV_SCALES, KernelConfig
from lean_attention.bench.machine import usable_processors
from lean_attention.errors import LeanAttentionError

if TYPE_CHECKING:
    from lean_attention.bench.kernel import Entry, KernelTimes

__all__ = ["kernel"]

# Stock against itself within this, or no ratio of the run is worth much.
_TRUSTED = 0.05


def kernel(
    num_heads: Annotated[int, typer.Option(help="Query heads.")] = 32,
    kv_num_heads: Annotated[int, typer.Option(help="KV heads.")] = 8,
    head_size: Annotated[int, typer.Option(help="Elements of a head.")] = 128,
    context: Annotated[
        int, typer.Option(help="Tokens in each cache, the new one included.")
    ] = 4096,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens of each sequence, instead of --context and --batch.", metavar="N,N,..."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help=f"Type of the activations: {', '.join(DTYPES)}.")
    ] = "float32",
    kv_dtype: Annotated[
        str | None,
        typer.Option(help="Type of the cache: that of the activations (default), int8 or int4."),
    ] = None,
    kv_scales: Annotated[
        str, typer.Option(help=f"Scales of an integer cache: {' or '.join(KV_SCALES)}.")
    ] = "per-tensor",
    threads: Annotated[
        int | None, typer.Option(help="Threads of each contender; default: all processors.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Contenders, separated by commas or repeated: {', '.join(CONTENDERS)}; "
            "default: all.",
            metavar="NAME,...",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 15,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm",
            help="Reuse a few caches, as a model's layers do, instead of so many that each comes "
            "from memory. For short contexts.",
        ),
    ] = False,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Also measure the stock operator against itself.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="A file for all rounds' times.", metavar="FILE")
    ] = None,
) -> None:
    """Time one decode step of attention, against other implementations and a plain read.

    Results are checked before anything is timed. The contenders take turns; times are medians over
    the rounds, ratios medians of the rounds' ratios. Bytes are those of K and V, counted once.
    """
    from lean_attention.bench.kernel import STOCK_AGAIN, time_kernel
    from lean_attention.bench.kernel_report import to_document, write_text

    config = KernelConfig(
        lengths=_lengths(lengths, context, batch),
        num_heads=num_heads,
        kv_num_heads=kv_num_heads,
        head_size=head_size,
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        kv_scales=kv_scales,
        threads=usable_processors() if threads is None else threads,
        warm=warm,
    )
    names = _contenders(against)
    if self_check:
        names += [name for name in ("stock", STOCK_AGAIN) if name not in names]
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise LeanAttentionError(f"cannot write {json_file}: name a file in a folder that exists")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # Drawn between turns alone: a thread that draws would take a core from who is being timed.
    console = Console(stderr=True)
    progress = Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("starting", total=rounds)
        times = time_kernel(
            config,
            names,
            rounds=rounds,
            on_stage=lambda stage: progress.update(task, description=stage, refresh=True),
            on_round=lambda: progress.update(task, advance=1, refresh=True),
        )
    if json_file is not None:
        write_text(json_file, json.dumps(to_document(times), allow_nan=False) + "\n")
    Console(soft_wrap=True, highlight=False).print(_report(times))
    wrong = [entry.name for entry in times.entries if entry.wrong]
    if wrong:
        raise LeanAttentionError(
            f"{', '.join(wrong)} computed a wrong result and was not timed; please report this "
            "with the lines above"
        )
    if all(entry.rounds is None for entry in times.entries):
        raise LeanAttentionError("no contender takes this step; the lines above say why")


def _lengths(lengths: str | None, context: int, batch: int) -> tuple[int, ...]:
    if lengths is not None:
        try:
            return tuple(int(part) for part in lengths.split(","))
        except ValueError:
            raise LeanAttentionError(
                f"--lengths is {lengths!r}; it must be numbers with commas between, as 4096,512"
            ) from None
    for name, value, most in (("--context", context, 2**31 - 1), ("--batch", batch, 65536)):
        if not 1 <= value <= most:
            raise LeanAttentionError(f"{name} is {value}; it must be 1 to {most}")
    return (context,) * batch


def _contenders(against: list[str] | None) -> list[str]:
    asked = ",".join(against or CONTENDERS).split(",")
    names = list(dict.fromkeys(name.strip() for name in asked))
    for name in names:
        if name not in CONTENDERS:
            raise LeanAttentionError(f"--against names {name!r}; there are {', '.join(CONTENDERS)}")
    return names


def _report(times: "KernelTimes") -> Group:
    """Returns the table, what it is about, and who refused."""
    from lean_attention.bench.kernel import STOCK_AGAIN

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in ("ms", "quartiles", "GB/s", "roofline", "to stock"):
        table.add_column(heading, justify="right")
    stock = times.find("stock")
    for read in times.reads.values():
        table.add_row(*_cells(times, read, None), style="dim")
    for entry in times.entries:
        if entry.rounds is not None:
            table.add_row(*_cells(times, entry, stock))
    lines: list[Text | Table] = [Text(line) for line in _headlines(times)]
    lines.append(table)
    for entry in times.entries:
        if entry.refusal is not None:
            style = "bold red" if entry.wrong else "yellow"
            lines.append(Text.assemble((entry.name, style), f": {entry.refusal}"))
    again = times.find(STOCK_AGAIN)
    if stock is not None and again is not None:
        ratio = again.speedup_over(stock)
        if not abs(ratio - 1) <= _TRUSTED and again.rounds is not None:
            lines.append(
                Text(
                    f"! stock against itself is {ratio:.2f}x: this machine is too busy, or the "
                    "rounds too few, for ratios to be believed",
                    "bold yellow",
                )
            )
    return Group(*lines)


def _headlines(times: "KernelTimes") -> list[str]:
    config, copies = times.config, times.copies
    cache = config.kv_dtype
    if config.quantized:
        cache = f"{cache} ({config.kv_scales} scales)"
    if not config.padded:
        size = f"context {config.capacity:,}, batch {config.batch_size}"
    else:
        size = f"contexts {' + '.join(f'{length:,}' for length in config.lengths)}"
    threads = f"{config.threads} thread{'s' * (config.threads > 1)}"
    padding = " with their padding" if config.padded else ""
    place = "reused" if config.warm else "so that each comes from memory"
    return [
        f"{config.num_heads}/{config.kv_num_heads} heads of {config.head_size}, {config.dtype}, "
        f"cache {cache}, {size}, {threads}",
        f"{config.bytes_read / 1e6:,.3g} MB of K and V a step; {copies.count:,} copies, "
        f"{copies.count * config.bytes_held / 1e6:,.3g} MB{padding}, {place}; "
        f"{times.runs * copies.layers} steps a turn",
    ]


def _cells(times: "KernelTimes", entry: "Entry", stock: "Entry | None") -> list[str]:
    low, high = entry.quartiles
    speed = times.config.bytes_read / entry.seconds / 1e9
    compared = stock is not None and stock.rounds is not None
    return [
        entry.name,
        _milliseconds(entry.seconds),
        f"{_milliseconds(low)} to {_milliseconds(high)}",
        f"{speed:.1f}" if speed >= 1 else f"{speed:.2f}",
        f"{entry.speedup_over(times.roofline):.0%}",
        f"{entry.speedup_over(stock):.2f}x" if stock is not None and compared else "",
    ]


def _milliseconds(seconds: float) -> str:
    """Returns milliseconds with four digits."""
    return f"{1e3 * seconds:#.4g}".rstrip(".")
