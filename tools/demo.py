"""The main job, end to end: a real model, rewritten, answering and measured against stock.

Exports SmolLM2-135M-Instruct (real weights) as a Phi-3 with GroupQueryAttention nodes, puts
LeanAttention into it, lets both answer one question and continue one long document, checks that
their tokens are the same, and prints how fast each of them decodes.
"""

import argparse
import os
import platform
import shutil
import sys
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import onnxruntime
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import lean_attention
from lean_attention import kernels
from lean_attention.bench import DecodeTimes, time_decode
from lean_attention.export import export_model
from lean_attention.runtime import DecoderModel, Tokenizer, generate

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = "smollm2-135m-instruct"
QUESTION = "Why is the sky blue? Answer in three sentences."
# Chapters of the Python language reference, which every CPython carries.
CHAPTERS = ("execmodel", "objects", "try", "function")
CONTEXTS = (64, 4000)

console = Console(soft_wrap=True, highlight=False)


def prepare(precision: str, int4_activations: str | None) -> dict[str, Path]:
    """Exports the model, once, and rewrites it; returns the folders of stock and rewritten."""
    variant = precision if int4_activations is None else f"int4-{int4_activations}-activations"
    # The tests' real_model looks for the same folders.
    folder = REPOSITORY / ".cache" / "models" / f"{NAME}-{variant}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        console.print(f"Exporting {NAME} ({variant}), once: one to two minutes")
        with console.status("Checking"):
            export_model(
                NAME,
                folder,
                precision=precision,
                int4_activations=int4_activations,
                report=lambda stage: console.print(f"  [dim]{stage}[/]"),
            )
    # Written anew each time: it takes seconds, and carries the library as just built.
    rewritten = folder.with_name(f"{folder.name}-lean")
    if rewritten.exists():
        shutil.rmtree(rewritten)
    result = lean_attention.rewrite(folder, rewritten)
    console.print(f"[green]✓[/] {result.headline} in {rewritten.relative_to(REPOSITORY)}")
    return {"stock": folder, "lean": rewritten}


def answer(models: dict[str, DecoderModel], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Both answer the question, in sight; returns their tokens."""
    console.print(f"\n[bold]Question:[/] {QUESTION}")
    prompt = tokenizer.encode_chat(QUESTION)
    tokens = {}
    for name, model in models.items():
        console.print(f"[bold cyan]{name}:[/] ", end="")
        result = generate(
            model,
            [prompt],
            max_new_tokens=120,
            tokenizer=tokenizer,
            on_text=lambda _, text: console.out(text, end="", highlight=False),
        )
        console.print()
        tokens[name] = result.tokens[0]
    return tokens


def agree(what: str, tokens: dict[str, list[int]]) -> bool:
    """Prints and returns whether the models chose the same tokens."""
    stock, lean = tokens["stock"], tokens["lean"]
    if stock == lean:
        console.print(f"[green]✓[/] {what} are the same, all {len(stock)} tokens")
        return True
    pairs = enumerate(zip(stock, lean, strict=False))
    first = next((i for i, (one, other) in pairs if one != other), min(len(stock), len(lean)))
    console.print(f"[red]✗[/] {what} differ from token {first} on")
    return False


def measure(models: dict[str, DecoderModel], tokenizer: Tokenizer) -> list[dict[str, DecodeTimes]]:
    """Both continue the document at each context; returns their times and tokens."""
    document = tokenizer.encode("\n\n".join(topics[chapter] for chapter in CHAPTERS))
    rounds = 9
    measured = []
    for context in CONTEXTS:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            what = f"reading {context} tokens of text, then decoding in turns"
            task = progress.add_task(what, total=rounds)
            times = time_decode(
                models,
                document[:context],
                rounds=rounds,
                on_round=partial(progress.advance, task),
            )
        measured.append(times)
    console.print(f"\n[bold]Text[/] of {context} tokens, and how lean continues it:")
    end = one_line(tokenizer.decode(document[context - 40 : context]))
    continuation = one_line(tokenizer.decode(list(times["lean"].tokens)))
    console.print(f"[dim]… {escape(end)}[/] [bold cyan]→[/] {escape(continuation)} …")
    return measured


def one_line(text: str) -> str:
    """Joins lines, and drops indentation."""
    return " ".join(text.split())


def compare(answers: dict[str, list[int]], measured: list[dict[str, DecodeTimes]]) -> bool:
    """Prints and returns whether all tokens of the models agree."""
    results = [agree("the answers", answers)]
    for times in measured:
        tokens = {name: list(of.tokens) for name, of in times.items()}
        context = times["stock"].context
        results.append(agree(f"the continuations of {context} tokens of text", tokens))
    return all(results)


def print_table(measured: list[dict[str, DecodeTimes]], numbers: str, threads: int) -> None:
    """Prints tokens per second and milliseconds per token of both, and the ratio."""
    table = Table(title=f"{NAME}, {numbers}, batch 1, {threads} threads")
    for column in ("context", "stock tok/s", "lean tok/s", "stock ms/tok", "lean ms/tok", "ratio"):
        table.add_column(column, justify="right")
    for times in measured:
        stock, lean = times["stock"], times["lean"]
        table.add_row(
            str(stock.context),
            f"{1 / stock.seconds_per_token:.1f}",
            f"{1 / lean.seconds_per_token:.1f}",
            f"{stock.seconds_per_token * 1e3:.2f}",
            f"{lean.seconds_per_token * 1e3:.2f}",
            f"{lean.ratio_to(stock):.2f}x",
        )
    console.print(table)
    console.print(
        f"[dim]medians of interleaved rounds; {platform.machine()}, {kernels.cpu_target()},\n"
        f"onnxruntime {onnxruntime.__version__}, lean-attention {lean_attention.__version__}[/]"
    )


def main() -> int:
    """Runs the demo; the exit status is 1 where tokens that can be compared differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("int4", "fp32"), default="int4")
    parser.add_argument(
        "--int4-activations",
        choices=("int8", "fp32"),
        help="with int4: fp32 (default), or int8 (faster; tokens cannot be compared)",
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    precision, activations = arguments.precision, arguments.int4_activations
    if precision == "int4":
        activations = activations or "fp32"
    elif activations is not None:
        parser.error("--int4-activations needs --precision int4")

    folders = prepare(precision, activations)
    with console.status("Loading both models"):
        models = {
            name: DecoderModel.load(folder, threads=arguments.threads, spin_between_runs=False)
            for name, folder in folders.items()
        }
        tokenizer = Tokenizer(folders["stock"])
    answers = answer(models, tokenizer)
    measured = measure(models, tokenizer)
    console.print()
    same = True
    if activations == "int8":
        console.print(
            "[yellow]![/] tokens are not compared: rounding activations to int8 carries a "
            "difference of 1e-6 in attention to 0.7 in the logits, and greedy tokens part"
        )
    else:
        same = compare(answers, measured)
    numbers = precision if activations is None else f"int4 with {activations} activations"
    print_table(measured, numbers, arguments.threads)
    return 0 if same else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except lean_attention.LeanAttentionError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
