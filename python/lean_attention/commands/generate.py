"""``lean-attention generate``: a model answers, the text streamed as it comes."""

import codecs
import io
import math
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lean_attention.errors import LeanAttentionError

if TYPE_CHECKING:
    from lean_attention.runtime import Generation, Tokenizer

__all__ = ["generate"]


def generate(
    model: Annotated[
        Path,
        typer.Argument(help="A model file, or a folder of onnxruntime-genai.", metavar="MODEL"),
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="A prompt; repeat it for a batch.", metavar="TEXT")
    ] = None,
    prompt_file: Annotated[
        list[Path] | None, typer.Option(help="A file with one prompt; may be repeated.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.", metavar="TEXT")] = None,
    chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Whether to use the model's chat template.")
    ] = True,
    max_new_tokens: Annotated[int, typer.Option(help="The most new tokens of a prompt.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens up to this.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes a drawn answer repeatable.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads; default: ONNX Runtime's choice.")
    ] = None,
    provider: Annotated[str, typer.Option(help="Where it runs: cpu, cuda or rocm.")] = "cpu",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of the answer.")
    ] = False,
    context: Annotated[
        int | None, typer.Option(help="The context length, where the model's files name none.")
    ] = None,
) -> None:
    """Continue prompts with a model whose attention is stock or rewritten.

    The text goes to standard output, all else to standard error.
    """
    from lean_attention.runtime import DecoderModel, Sampling, Tokenizer, check_lengths
    from lean_attention.runtime import generate as run

    texts = [*(prompt or []), *map(_read, prompt_file or [])]
    if not texts:
        raise LeanAttentionError("there is no prompt; pass --prompt TEXT or --prompt-file FILE")
    _replace_what_stdout_cannot_encode()
    # Read as it is imported. Its warnings are about models that it would run itself.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sampling = Sampling(temperature, top_k, top_p, seed)
    console = Console(stderr=True)
    with console.status("loading the model"):
        loaded = DecoderModel.load(
            model, threads=threads, provider=provider, context_length=context
        )
        tokenizer = Tokenizer(loaded.folder)
        prompts = [_encode(tokenizer, text, system, chat) for text in texts]
        check_lengths(loaded, [len(ids) for ids in prompts], max_new_tokens)
    stops = {*loaded.stop_tokens, *tokenizer.stop_tokens}

    display = _Stream(console) if len(texts) == 1 else _Bar(console, len(texts), max_new_tokens)
    with display:
        result = run(
            loaded,
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop_tokens=sorted(stops),
            ignore_eos=ignore_eos,
            tokenizer=tokenizer,
            on_text=display.on_text,
            on_step=display.on_step,
        )
    if len(texts) == 1:
        _write("\n")
    else:
        for text, answer in zip(texts, result.texts, strict=True):
            # As Text: brackets of a prompt are no markup.
            console.rule(Text(text if len(text) <= 60 else text[:59] + "…"), align="left")
            _write(answer + "\n")
    console.print(_summary(result), style="dim", highlight=False)


class _Stream(AbstractContextManager["_Stream"]):
    """Text to standard output as it comes; a spinner until the first."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("reading the prompt")

    def __enter__(self) -> "_Stream":
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def on_text(self, row: int, text: str) -> None:
        del row
        self._status.stop()
        _write(text)

    def on_step(self, new: list[tuple[int, int]]) -> None:
        """Nothing: the text itself shows that it goes on."""


class _Bar(AbstractContextManager["_Bar"]):
    """A progress bar over all tokens of a batch; the texts are printed afterwards."""

    def __init__(self, console: Console, rows: int, max_new_tokens: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("generating", total=rows * max_new_tokens)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_text(self, row: int, text: str) -> None:
        """Nothing: rows come interleaved."""

    def on_step(self, new: list[tuple[int, int]]) -> None:
        self._progress.advance(self._task, len(new))


def _replace_what_stdout_cannot_encode() -> None:
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and codecs.lookup(stdout.encoding).name != "utf-8":
        stdout.reconfigure(errors="replace")


def _write(text: str) -> None:
    """Writes to standard output at once."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # The reader has seen enough; typer ends the command quietly.
        raise
    except OSError as error:
        # The text is still buffered: let the interpreter's last flush succeed.
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        raise LeanAttentionError(
            f"cannot write the answer to standard output: {error.strerror}"
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LeanAttentionError(f"cannot read the prompt in {path}: {error}") from error


def _encode(tokenizer: "Tokenizer", text: str, system: str | None, chat: bool) -> list[int]:
    if not text.strip():
        raise LeanAttentionError("a prompt is empty; pass some text")
    if chat and tokenizer.has_chat_template:
        return tokenizer.encode_chat(text, system)
    if system is not None:
        raise LeanAttentionError(
            "--system needs a chat template, which is switched off or which this model has not"
        )
    return tokenizer.encode(text)


def _summary(result: "Generation") -> str:
    """Returns the last line: how many tokens, how fast."""
    parts = [f"{sum(result.prompt_tokens)} + {result.num_tokens} tokens"]
    if not math.isnan(result.seconds_per_step):
        parts.append(f"{result.decode_tokens_per_second:.1f} tokens/s")
        parts.append(f"{1e3 * result.seconds_per_step:.1f} ms per step")
    parts.append(f"first token after {result.prefill_seconds:.2f} s")
    return ", ".join(parts)
