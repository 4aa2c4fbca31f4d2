"""The main job, end to end: a real model, rewritten, answering and measured against stock.

Exports SmolLM2-135M-Instruct (real weights) as a Phi-3 with GroupQueryAttention nodes, puts
LeanAttention into it, lets both answer one question and continue one long document, checks that
their tokens are the same, and prints how fast each of them decodes.
"""

import argparse
import os
import platform
import sys
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import onnxruntime
from rich.console import Console
from rich.progress import Progress
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
CHAPTERS = ("objects", "types", "specialnames", "naming")
CONTEXTS = (64, 4096)

console = Console(highlight=False)


def prepare(precision: str) -> dict[str, Path]:
    """Exports and rewrites the model, once; returns the folders of stock and rewritten."""
    folder = REPOSITORY / ".cache" / "models" / f"{NAME}-{precision}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        export_model(NAME, folder, precision=precision)
    # Written anew each time: it costs nothing, and carries the library as just built.
    rewritten = folder.with_name(f"{folder.name}-lean")
    if rewritten.exists():
        for file in rewritten.iterdir():
            file.unlink()
        rewritten.rmdir()
    result = lean_attention.rewrite(folder, rewritten)
    console.print(f"[green]✓[/] {result.headline} in {rewritten.relative_to(REPOSITORY)}")
    return {"stock": folder, "lean": rewritten}


def answer(models: dict[str, DecoderModel], tokenizer: Tokenizer) -> bool:
    """Both answer the question; returns whether their tokens agree."""
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
    return report_agreement("the answers", tokens)


def report_agreement(what: str, tokens: dict[str, list[int]]) -> bool:
    """Prints and returns whether the models chose the same tokens."""
    stock, lean = tokens["stock"], tokens["lean"]
    if stock == lean:
        console.print(f"[green]✓[/] {what} are the same, all {len(stock)} tokens")
        return True
    first = next(i for i, pair in enumerate(zip(stock, lean, strict=False)) if pair[0] != pair[1])
    console.print(f"[red]✗[/] {what} differ from token {first} on")
    return False


def measure(
    models: dict[str, DecoderModel], tokenizer: Tokenizer
) -> tuple[list[dict[str, DecodeTimes]], bool]:
    """Both continue the document at each context; returns the times and whether tokens agree."""
    document = tokenizer.encode("\n\n".join(topics[chapter] for chapter in CHAPTERS))
    rounds = 9
    measured, agree = [], True
    for context in CONTEXTS:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"decoding at {context} tokens of context", total=rounds)
            times = time_decode(
                models,
                document[:context],
                rounds=rounds,
                on_round=partial(progress.advance, task),
            )
        measured.append(times)
        tokens = {name: list(of.tokens) for name, of in times.items()}
        agree &= report_agreement(f"the continuations of {context} tokens of text", tokens)
    text = tokenizer.stream()
    continuation = "".join(text.push(token) for token in measured[-1]["lean"].tokens)
    console.print(f"[dim]… {' '.join(continuation.split())[:160]} …[/]")
    return measured, agree


def print_table(measured: list[dict[str, DecodeTimes]], precision: str, threads: int) -> None:
    """Prints tokens per second and milliseconds per token of both, and the ratio."""
    table = Table(title=f"{NAME}, {precision}, greedy decode, batch 1, {threads} threads")
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
        f"[dim]medians of interleaved rounds; {platform.machine()}, {kernels.cpu_target()}, "
        f"onnxruntime {onnxruntime.__version__}, lean-attention {lean_attention.__version__}[/]"
    )


def main() -> int:
    """Runs the demo; the exit status is 1 where the tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("int4", "fp32"), default="int4")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()

    folders = prepare(arguments.precision)
    models = {
        name: DecoderModel.load(folder, threads=arguments.threads, allow_spinning=False)
        for name, folder in folders.items()
    }
    tokenizer = Tokenizer(folders["stock"])
    same_answer = answer(models, tokenizer)
    measured, same_text = measure(models, tokenizer)
    print_table(measured, arguments.precision, arguments.threads)
    return 0 if same_answer and same_text else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except lean_attention.LeanAttentionError as error:
        console.print(f"[bold red]error:[/] {error}", markup=True)
        sys.exit(1)
