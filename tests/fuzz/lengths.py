"""Draws how many tokens and rows the sequences of a call have."""

from dataclasses import dataclass

from hypothesis import strategies as st

LONG = 700  # rows: three tiles of most head sizes


@dataclass(frozen=True)
class Lengths:
    """How many tokens each sequence has, and the cache rows; see the operator's inputs."""

    tokens: int  # S
    lengths: list[int]  # T
    past_rows: int | None  # None: no past is given
    total: int
    query_lengths: list[int] | None = None
    appends: bool = True

    @property
    def valid_rows(self) -> list[int]:
        """Of each sequence the rows of the past that may be read; those after them never are."""
        if not self.appends:
            return self.lengths
        if self.query_lengths is None and self.total == self.tokens:
            return [0] * len(self.lengths)  # A first prompt.
        counts = self.query_lengths or [self.tokens] * len(self.lengths)
        return [length - count for length, count in zip(self.lengths, counts, strict=True)]


def _batches(draw: st.DrawFn, most: int) -> int:
    return draw(st.integers(1, most), label="batch")


def _rows(draw: st.DrawFn, least: int) -> int:
    """A number of cache rows from `least` on: mostly a few, at times several tiles."""
    return draw(st.integers(least, least + 20) | st.integers(least, max(least, LONG)), label="rows")


def _decode(draw: st.DrawFn) -> Lengths:
    """One token; the cache is one buffer with room, or grows by a row."""
    batch, most = _batches(draw, 5), _rows(draw, 1)
    lengths = draw(st.lists(st.integers(1, most), min_size=batch, max_size=batch), label="lengths")
    longest = max(lengths)
    if longest == 1 and draw(st.booleans(), label="no past"):
        return Lengths(1, lengths, None, 1)
    if draw(st.booleans(), label="grows"):
        return Lengths(1, lengths, longest - 1, longest)
    return Lengths(1, lengths, most, draw(st.integers(longest, most), label="total"))


def _chunk(draw: st.DrawFn) -> Lengths:
    """Several tokens of one sequence after a past."""
    tokens = draw(st.integers(2, 8) | st.integers(2, 20), label="tokens")
    most = _rows(draw, tokens + 1)
    length = draw(st.integers(tokens + 1, most), label="length")
    if draw(st.booleans(), label="grows"):
        return Lengths(tokens, [length], length - tokens, length)
    return Lengths(tokens, [length], most, draw(st.integers(length, most), label="total"))


def _prompt(draw: st.DrawFn) -> Lengths:
    """First prompts, padded on the right."""
    tokens = draw(st.integers(1, 8) | st.integers(1, 20), label="tokens")
    batch = _batches(draw, 4)
    lengths = draw(
        st.lists(st.integers(1, tokens) | st.just(tokens), min_size=batch, max_size=batch),
        label="lengths",
    )
    past = draw(st.none() | st.just(0) | st.integers(tokens, tokens + 20), label="past rows")
    return Lengths(tokens, lengths, past, tokens)


def _padded_chunk(draw: st.DrawFn) -> Lengths:
    """Chunks of a batch, padded on the right; some entries idle."""
    tokens = draw(st.integers(1, 8) | st.integers(1, 20), label="tokens")
    batch, most = _batches(draw, 4), _rows(draw, tokens)
    parts = []
    for _ in range(batch):
        past = draw(st.integers(0, most - tokens), label="past")
        parts.append((past, draw(st.integers(0 if past else 1, tokens), label="query_seqlens")))
    lengths = [past + count for past, count in parts]
    longest = max(past for past, _ in parts)
    rows = draw(st.sampled_from([longest, most]) | st.integers(longest, most), label="past rows")
    # All tokens of the call must fit the cache, or it grows.
    least = max(*lengths, tokens, longest + tokens if rows < longest + tokens else 0)
    total = least + draw(st.sampled_from([0, 0, 1, 4]), label="room")
    return Lengths(tokens, lengths, rows, total, [count for _, count in parts])


def _shared_layer(draw: st.DrawFn) -> Lengths:
    """No new keys and values: another layer has put them into the cache."""
    tokens = draw(st.integers(1, 8) | st.integers(1, 20), label="tokens")
    batch = _batches(draw, 4 if tokens == 1 else 1)
    most = _rows(draw, tokens)
    lengths = draw(
        st.lists(st.integers(tokens, most), min_size=batch, max_size=batch), label="lengths"
    )
    total = draw(st.integers(max(lengths), most), label="total")
    return Lengths(tokens, lengths, most, total, appends=False)


KINDS = (_decode, _chunk, _prompt, _padded_chunk, _shared_layer)
