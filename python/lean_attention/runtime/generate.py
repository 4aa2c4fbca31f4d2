"""The decode loop: prompts in, tokens or text out, every step timed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime.model import DecoderModel
from lean_attention.runtime.sampling import Sampler, Sampling
from lean_attention.runtime.session import DecodeSession
from lean_attention.runtime.tokenizer import Tokenizer

__all__ = ["Generation", "check_lengths", "decode", "generate", "stream_text"]

GREEDY = Sampling()


@dataclass
class Generation:
    """What a generation produced, and when.

    Attributes:
        prompt_tokens: Tokens of each prompt, [B].
        tokens: The new token ids of each row, the stop token included.
        finish_reasons: Of each row: ``stop`` (a stop token came) or ``length``.
        texts: The text of each row without special tokens; empty where no tokenizer took part.
        prefill_seconds: From the prompts to the first token of every row.
        step_seconds: For each later step, from feeding the tokens to having the next ones. What
            the caller does with a token in between is not counted.
    """

    prompt_tokens: list[int]
    tokens: list[list[int]]
    finish_reasons: list[str]
    texts: list[str] = field(default_factory=list)
    prefill_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """New tokens of all rows together."""
        return sum(map(len, self.tokens))

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens of all rows after their first, per second of the steps that made them; or NaN."""
        seconds = sum(self.step_seconds)
        return (self.num_tokens - len(self.tokens)) / seconds if seconds else float("nan")

    @property
    def seconds_per_step(self) -> float:
        """Mean time of a step, the time per output token of each row; NaN without steps."""
        return float(np.mean(self.step_seconds)) if self.step_seconds else float("nan")


def check_lengths(model: DecoderModel, lengths: Sequence[int], max_new_tokens: int) -> None:
    """Checks that prompts and answers fit into the model's context.

    Args:
        model: The model.
        lengths: Tokens of each prompt.
        max_new_tokens: The most new tokens of each.

    Raises:
        LeanAttentionError: No prompt, an empty one, no new tokens, or more tokens than the context
            holds; the message has both numbers.
    """
    context = model.context_length
    if not lengths:
        raise LeanAttentionError("there is no prompt; pass at least one")
    if max_new_tokens < 1:
        raise LeanAttentionError(f"at least one new token must be asked for, not {max_new_tokens}")
    for number, length in enumerate(lengths, 1):
        name = "the prompt" if len(lengths) == 1 else f"prompt {number}"
        if length < 1:
            raise LeanAttentionError(f"{name} is empty; pass some text")
        if length >= context:
            raise LeanAttentionError(
                f"{name} has {length} tokens, the model's context {context}; shorten it"
            )
        if length + max_new_tokens > context:
            raise LeanAttentionError(
                f"{name} of {length} tokens and {max_new_tokens} new ones exceed the model's "
                f"context of {context}; ask for at most {context - length}"
            )


def decode(
    session: DecodeSession,
    logits: npt.NDArray[np.float32],
    result: Generation,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop_tokens: Sequence[int] = (),
) -> Iterator[list[tuple[int, int]]]:
    """Chooses tokens and feeds them back until every row has finished.

    Rows that have finished are fed along, without effect, until the last one has.

    Args:
        session: With the prompts in its caches.
        logits: What `DecodeSession.prefill` or `DecodeSession.extend` returned.
        result: Filled as the tokens come; its rows are the session's. The time to choose the first
            tokens is added to ``prefill_seconds``.
        max_new_tokens: The most new tokens of a row.
        sampling: How to choose.
        stop_tokens: The ids that finish a row; none means that all rows get ``max_new_tokens``.

    Yields:
        For each step the new tokens, as (row, token id), of the rows that were not finished.

    Raises:
        LeanAttentionError: The cache is full, or the logits are not finite.
    """
    stops = frozenset(stop_tokens)
    sampler = Sampler(sampling, session.batch_size)
    active = [True] * session.batch_size
    started = perf_counter()
    chosen = sampler(logits)
    result.prefill_seconds += perf_counter() - started
    for step in range(max_new_tokens):
        if step:
            started = perf_counter()
            chosen = sampler(session.step(chosen, active))
            result.step_seconds.append(perf_counter() - started)
        new = [(row, token) for row, token in enumerate(chosen) if active[row]]
        for row, token in new:
            result.tokens[row].append(token)
            if token in stops:
                result.finish_reasons[row] = "stop"
                active[row] = False
        yield new
        if not any(active):
            return


def generate(
    model: DecoderModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 256,
    sampling: Sampling = GREEDY,
    stop_tokens: Sequence[int] | None = None,
    ignore_eos: bool = False,
    tokenizer: Tokenizer | None = None,
    on_text: Callable[[int, str], None] | None = None,
    on_step: Callable[[list[tuple[int, int]]], None] | None = None,
) -> Generation:
    """Continues prompts of token ids, all in one batch.

    Args:
        model: The model.
        prompts: Token ids, a list per row; of any lengths.
        max_new_tokens: The most new tokens of a row.
        sampling: How to choose.
        stop_tokens: Overrides the model's.
        ignore_eos: Whether rows go on past a stop token, so that all have ``max_new_tokens``.
        tokenizer: Makes the texts of the result.
        on_text: Called with (row, text) as text comes; needs ``tokenizer``. Never receives a part
            of a character.
        on_step: Called after each step with (row, token id) of every row that was not finished.

    Raises:
        LeanAttentionError: See `check_lengths`; caches beyond the memory; token ids outside the
            vocabulary; logits that are not finite; ``on_text`` without ``tokenizer``.
    """
    if on_text is not None and tokenizer is None:
        raise LeanAttentionError("text can only be streamed with a tokenizer; pass one")
    session, logits, result = _begin(model, prompts, max_new_tokens)
    stops = () if ignore_eos else model.stop_tokens if stop_tokens is None else stop_tokens
    streams = [tokenizer.stream() for _ in prompts] if tokenizer is not None else []
    for new in decode(
        session,
        logits,
        result,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_tokens=stops,
    ):
        for row, token in new if streams else ():
            text = "" if token in stops else streams[row].push(token)
            if text and on_text is not None:
                on_text(row, text)
        if on_step is not None:
            on_step(new)
    for row, stream in enumerate(streams):
        if (rest := stream.finish()) and on_text is not None:
            on_text(row, rest)
        result.texts.append(stream.text)
    return result


def stream_text(
    model: DecoderModel,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    max_new_tokens: int = 256,
    sampling: Sampling = GREEDY,
) -> Iterator[str]:
    """Continues one prompt of token ids and yields the text as it comes.

    Args:
        model: The model.
        tokenizer: That belongs to the model.
        prompt: Token ids.
        max_new_tokens: The most new tokens.
        sampling: How to choose.

    Raises:
        LeanAttentionError: As `generate`.
    """
    session, logits, result = _begin(model, [prompt], max_new_tokens)
    stream = tokenizer.stream()
    for new in decode(
        session,
        logits,
        result,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_tokens=model.stop_tokens,
    ):
        for _, token in new:
            if token not in model.stop_tokens and (text := stream.push(token)):
                yield text
    if rest := stream.finish():
        yield rest


def _begin(
    model: DecoderModel, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[DecodeSession, npt.NDArray[np.float32], Generation]:
    """Checks the lengths, computes the prompts, and begins the record."""
    lengths = [len(prompt) for prompt in prompts]
    check_lengths(model, lengths, max_new_tokens)
    session = DecodeSession(model, len(prompts), max(lengths) + max_new_tokens)
    started = perf_counter()
    logits = session.prefill(prompts)
    result = Generation(
        prompt_tokens=lengths,
        tokens=[[] for _ in prompts],
        finish_reasons=["length"] * len(prompts),
        prefill_seconds=perf_counter() - started,
    )
    return session, logits, result
