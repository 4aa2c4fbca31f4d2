"""One generation in progress: its caches, its lengths, and the runs that extend them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime.cache import KVCache
from lean_attention.runtime.model import DecoderModel
from lean_attention.runtime.reasons import first_line

__all__ = ["DecodeSession"]

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

# Most models compute the logits of every prompt position, though only the last is of use. Prompts
# are cut so that these, and the scores of stock attention with them, stay about this size.
PREFILL_LOGITS_BYTES = 256 << 20


class DecodeSession:
    """Rows of tokens with their KV caches, extended by prompts and by single tokens.

    Every row keeps its own length: prompts of a batch may differ in length and are padded on the
    right. A row's results are those that it would have alone, as far as the model's matrix products
    round alike for one row and for several. In float32 they were seen to; ONNX Runtime's int4 ones
    (MatMulNBits) do not.

    With LongRoPE the width of a run chooses the rotary table. When the longest row comes to more
    tokens than the switch length (or back, by `rewind`), everything cached so far is computed
    again with the other table, inside the call that crosses it. A batch has one table: the longest
    row decides for all, as in transformers.

    Attributes:
        model: The model.
        batch_size: Rows B.
        capacity: Tokens that each row can hold.
        cache: The KV caches.
    """

    def __init__(self, model: DecoderModel, batch_size: int = 1, capacity: int | None = None):
        """Allocates everything that the steps need.

        Args:
            model: The model.
            batch_size: Rows B.
            capacity: Tokens that each row can hold; None means the model's context length.

        Raises:
            LeanAttentionError: ``capacity`` is beyond the model's context, or the caches would not
                fit into memory.
        """
        if batch_size < 1:
            raise LeanAttentionError(f"a batch needs at least one row, not {batch_size}")
        capacity = model.context_length if capacity is None else capacity
        if not 1 <= capacity <= model.context_length:
            raise LeanAttentionError(
                f"room for {capacity} tokens was asked for; the model's context is "
                f"{model.context_length}"
            )
        self.model = model
        self.batch_size = batch_size
        self.capacity = capacity
        self.cache = KVCache(model, batch_size, capacity)
        self._history: list[list[int]] | None = [[] for _ in range(batch_size)]
        # A list: on a few numbers NumPy is the slower one, and this is in every step.
        self._lengths = [0] * batch_size
        self._long_table = False
        self._ids: Ids = np.zeros((batch_size, 1), np.int64)
        self._positions: Ids = np.zeros((batch_size, 1), np.int64)
        self._columns: Ids = np.arange(capacity, dtype=np.int64)
        # Rows of equal length share one run of ones; ragged ones are written out at every step.
        self._ones: Ids = np.ones(batch_size * capacity, np.int64)
        self._ones_address = self._ones.ctypes.data
        self._mask: Ids | None = None
        self._logits: Logits = np.zeros((batch_size, model.vocab_size), np.float32)
        self._raw_logits: npt.NDArray[Any] = (
            self._logits
            if model.logits_dtype == np.float32
            else np.zeros(self._logits.shape, model.logits_dtype)
        )
        self._binding = model.session.io_binding()
        self.cache.bind(self._binding)
        _bind(self._binding.bind_input, "input_ids", self._ids)
        if model.takes_position_ids:
            _bind(self._binding.bind_input, "position_ids", self._positions)
        _bind(self._binding.bind_output, "logits", self._raw_logits[:, None, :])

    @property
    def lengths(self) -> list[int]:
        """Tokens cached of each row, [B]; a copy."""
        return list(self._lengths)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Logits:
        """Begins anew with one prompt per row.

        Args:
            prompts: B lists of token ids, of any lengths.

        Returns:
            The logits after each row's last token, [B, V]; overwritten by the next call.

        Raises:
            LeanAttentionError: An empty prompt, one longer than the capacity, a token id outside
                the vocabulary, or a number of prompts other than B.
        """
        if len(prompts) != self.batch_size:
            raise LeanAttentionError(
                f"{len(prompts)} prompts for a batch of {self.batch_size} rows; pass one per row"
            )
        rows = [self._check(row, prompt, 0) for row, prompt in enumerate(prompts)]
        self._history = [row.tolist() for row in rows]
        self._long_table = self._is_long(max(map(len, rows)))
        self._compute(rows)
        return self._logits

    def extend(self, tokens: Sequence[int]) -> Logits:
        """Appends tokens to what is cached, the next turn of a conversation; batch of one only.

        The last token that a generation chose has not been fed yet: begin ``tokens`` with it.

        Args:
            tokens: Token ids.

        Returns:
            The logits after the last token, [1, V]; overwritten by the next call.

        Raises:
            LeanAttentionError: A batch of several rows, no tokens, more than fit, or a token id
                outside the vocabulary.
        """
        if self.batch_size != 1:
            raise LeanAttentionError(
                f"only a batch of one can be extended, this one has {self.batch_size} rows"
            )
        start = self._lengths[0]
        new = self._check(0, tokens, start)
        self._choose_table(start + len(new))
        self._append(0, new)
        if self._history is not None:
            self._history[0] += new.tolist()
        return self._logits

    def step(self, tokens: Sequence[int], advance: Sequence[bool] | None = None) -> Logits:
        """Appends one token to every row.

        Args:
            tokens: One id per row, [B].
            advance: Which rows grow, [B]; None means all. The others are fed too, as a batch is
                computed whole, and forget the token at once: their lengths stay.

        Returns:
            The logits after the tokens, [B, V]; overwritten by the next call.

        Raises:
            LeanAttentionError: A row is empty or full, or ``tokens`` are not B token ids.
        """
        total = max(self._lengths) + 1
        if total > self.capacity:
            raise LeanAttentionError(
                f"all {self.capacity} tokens of the cache are used; create the session with more"
            )
        if not all(self._lengths):
            raise LeanAttentionError("a row has no tokens yet; prefill the session first")
        try:
            self._ids[:, 0] = tokens
        except (OverflowError, TypeError, ValueError) as error:
            raise _not_token_ids("the step") from error
        self._choose_table(total)
        if self.model.takes_position_ids:
            self._positions[:, 0] = self._lengths
        self._run(self._binding, [length + 1 for length in self._lengths], total)
        for row in range(self.batch_size):
            if advance is None or advance[row]:
                self._lengths[row] += 1
                if self._history is not None:
                    self._history[row].append(int(tokens[row]))
        if self._raw_logits is not self._logits:
            np.copyto(self._logits, self._raw_logits)
        return self._logits

    def rewind(self, length: int) -> None:
        """Forgets all but the first tokens of every row.

        Args:
            length: Tokens to keep of each row, at most what the shortest has.

        Raises:
            LeanAttentionError: A row is shorter than ``length``.
        """
        shortest = min(self._lengths)
        if not 0 <= length <= shortest:
            raise LeanAttentionError(
                f"cannot rewind to {length} tokens, the shortest row has {shortest}"
            )
        self._lengths = [length] * self.batch_size
        if self._history is not None:
            for history in self._history:
                del history[length:]

    def synthesise(self, lengths: Sequence[int], seed: int = 0) -> None:
        """Begins anew with caches full of noise, to measure long contexts without their prompts.

        Args:
            lengths: Tokens that each row shall seem to hold, [B].
            seed: Of the noise.

        Raises:
            LeanAttentionError: A length is not in [1, capacity], or their number is not B.
        """
        wanted = [int(length) for length in lengths]
        if len(wanted) != self.batch_size or not 1 <= min(wanted) <= max(wanted) <= self.capacity:
            raise LeanAttentionError(
                f"lengths {wanted} for {self.batch_size} rows of up to {self.capacity} "
                "tokens; pass one per row, each in that range"
            )
        self.cache.randomise(seed)
        self._lengths = wanted
        self._history = None
        self._long_table = self._is_long(max(wanted))

    def _check(self, row: int, tokens: Sequence[int], start: int) -> Ids:
        """Returns the tokens as an array, or raises where they cannot follow ``start`` others."""
        try:
            new = np.asarray(tokens).reshape(-1)
        except ValueError as error:  # lists of several lengths
            raise _not_token_ids(f"prompt {row + 1}") from error
        if not len(new):
            raise LeanAttentionError(f"prompt {row + 1} has no tokens")
        # Numbers beyond 64 bits and text have another kind.
        if new.dtype.kind not in "iu":
            raise _not_token_ids(f"prompt {row + 1}")
        if start + len(new) > self.capacity:
            raise LeanAttentionError(
                f"prompt {row + 1} brings its row to {start + len(new)} tokens, its cache holds "
                f"{self.capacity}; shorten it or ask for more room"
            )
        if new.min() < 0 or new.max() >= self.model.vocab_size:
            bad = int(new.min() if new.min() < 0 else new.max())
            raise LeanAttentionError(
                f"prompt {row + 1} has the token id {bad}, the model's are 0 to "
                f"{self.model.vocab_size - 1}; use the tokenizer that belongs to it"
            )
        return new.astype(np.int64, copy=False)

    def _is_long(self, total: int) -> bool:
        return self.model.rope_switch is not None and total > self.model.rope_switch

    def _choose_table(self, total: int) -> None:
        """Computes the cache again when a run of this width takes the other rotary table."""
        if self._is_long(total) == self._long_table:
            return
        self._long_table = not self._long_table
        if not any(self._lengths):
            return
        if self._history is None:
            raise LeanAttentionError(
                f"a synthetic context cannot cross {self.model.rope_switch} tokens, where this "
                "model changes its rotary tables; begin on the other side"
            )
        self._compute([np.asarray(history, np.int64) for history in self._history])

    def _compute(self, rows: list[Ids]) -> None:
        """Fills the caches from their beginning, together where that pays, else row by row."""
        longest = max(map(len, rows))
        self._lengths = [0] * self.batch_size
        # A padded run must be exactly as wide as its longest prompt: wider ones, which force the
        # long rotary table, count as continuations, and those cannot be batched. Window-sized
        # caches take no padding at all.
        together = (
            not self.model.last_logits_only
            and self.model.window_rows == 1
            and self._long_table == self._is_long(longest)
            and len(rows) * longest <= self._chunk_tokens()
        )
        if together and len(rows) > 1:
            self._append_padded(rows, longest)
        else:
            for row, tokens in enumerate(rows):
                self._append(row, tokens)

    def _chunk_tokens(self) -> int:
        """Returns how many tokens one prefill run may have."""
        per_token = self.model.vocab_size * self.model.logits_dtype.itemsize
        return max(64, PREFILL_LOGITS_BYTES // per_token)

    def _append_padded(self, rows: list[Ids], longest: int) -> None:
        """Computes all prompts in one run, padded on the right."""
        ids = np.full((len(rows), longest), self.model.pad_token, np.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
        positions = np.broadcast_to(self._columns[:longest], ids.shape).copy()
        lengths = [len(tokens) for tokens in rows]
        logits = np.empty((*ids.shape, self.model.vocab_size), self.model.logits_dtype)
        binding = self._prefill_binding(None, ids, positions, logits)
        self._run(binding, lengths, longest)
        self._lengths = lengths
        self._logits[:] = logits[np.arange(len(rows)), np.array(lengths) - 1]

    def _append(self, row: int, tokens: Ids) -> None:
        """Appends tokens to one row in runs of limited size; sets the row's logits."""
        width = self._chunk_tokens()
        logits: npt.NDArray[Any] = np.empty(0, self.model.logits_dtype)
        for start in range(0, len(tokens), width):
            ids = np.ascontiguousarray(tokens[None, start : start + width])
            first = self._lengths[row]
            end = first + ids.shape[1]
            positions = np.ascontiguousarray(self._columns[None, first:end])
            rows = 1 if self.model.last_logits_only else ids.shape[1]
            if logits.shape[:2] != (1, rows):
                logits = np.empty((1, rows, self.model.vocab_size), self.model.logits_dtype)
            binding = self._prefill_binding(row, ids, positions, logits)
            total = end
            if self._long_table and self.model.rope_switch is not None:
                # Zeros on the right make the first runs of a long prompt take its table, too.
                total = max(end, self.model.rope_switch + 1)
            self._run(binding, [end], total)
            self._lengths[row] = end
        self._logits[row] = logits[0, -1]

    def _prefill_binding(
        self, row: int | None, ids: Ids, positions: Ids, logits: npt.NDArray[Any]
    ) -> onnxruntime.IOBinding:
        binding = self.model.session.io_binding()
        self.cache.bind(binding, row)
        _bind(binding.bind_input, "input_ids", ids)
        if self.model.takes_position_ids:
            _bind(binding.bind_input, "position_ids", positions)
        _bind(binding.bind_output, "logits", logits)
        return binding

    def _run(self, binding: onnxruntime.IOBinding, lengths: list[int], total: int) -> None:
        """Runs the model on what is bound, with a mask of ``lengths`` ones in rows of ``total``."""
        address = self._ones_address
        if min(lengths) < total:
            if self._mask is None:
                self._mask = np.empty(self.batch_size * self.capacity, np.int64)
            mask = self._mask[: len(lengths) * total].reshape(-1, total)
            np.less(self._columns[:total], np.array(lengths)[:, None], out=mask, casting="unsafe")
            address = self._mask.ctypes.data
        binding.bind_input("attention_mask", "cpu", 0, np.int64, (len(lengths), total), address)
        try:
            self.model.session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime raises several unrelated types
            raise LeanAttentionError(
                f"ONNX Runtime cannot run {self.model.path}: {first_line(error)}"
            ) from error


def _not_token_ids(name: str) -> LeanAttentionError:
    return LeanAttentionError(
        f"{name} has something else than a token id, a whole number, per token; use the tokenizer "
        "that belongs to the model"
    )


def _bind(method: Any, name: str, array: npt.NDArray[Any]) -> None:
    """Binds an array's memory, which the caller keeps alive until the run is over."""
    method(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
