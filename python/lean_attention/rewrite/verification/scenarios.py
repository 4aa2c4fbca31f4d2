"""What a model is verified on: prompts, decode steps, and how long and how ragged they are."""

from collections.abc import Iterator
from dataclasses import dataclass

from lean_attention.rewrite.verification.interface import Feed, Interface, Role

__all__ = ["DIMENSIONS", "Scenario", "Step", "scenarios"]

DIMENSIONS: dict[Role, tuple[str | None, ...]] = {
    Role.TOKEN_IDS: ("batch", "sequence"),
    Role.ATTENTION_MASK: ("batch", "total"),
    Role.POSITION_IDS: ("batch", "sequence"),
    Role.PAST: ("batch", None, "past", None),
    Role.SEQLENS_K: ("batch",),
    Role.QUERY_SEQLENS: ("batch",),
    Role.ATTENTION_BIAS: ("batch", "heads", "sequence", "total"),
    Role.NUMBERS: ("batch", "sequence", None),
}
"""What the sizes of an input mean; one that is not declared otherwise follows it."""

# Of all caches of a batch, which are held twice while two models are compared.
CACHE_BYTES = 128 << 20
# Several tiles of the operator, whose first is of 64 or 128 tokens.
LONG_CONTEXT = 600


@dataclass(frozen=True)
class Step:
    """One run of a model.

    Attributes:
        lengths: Tokens of each sequence after the run.
        new: Tokens of each sequence that the run brings; fewer than the longest's are padded.
        past_rows: Rows of the caches that go in.
        total: The width of the attention mask.
        chained: Whether the caches that go in are those that came out of the run before.
    """

    lengths: tuple[int, ...]
    new: tuple[int, ...]
    past_rows: int
    total: int
    chained: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return {
            "batch": len(self.new),
            "sequence": max(self.new),
            "past": self.past_rows,
            "total": self.total,
            "heads": 1,
        }

    def describe(self) -> str:
        """The run in a few words, as ``1 new token after 40, 13, 1``."""
        new = ", ".join(map(str, dict.fromkeys(self.new)))
        past = [length - count for length, count in zip(self.lengths, self.new, strict=True)]
        after = f" after {', '.join(map(str, past))}" if any(past) else ""
        batch = f" in a batch of {len(self.new)}" if len(self.new) > 1 else ""
        return f"{new} new token{'' if new == '1' else 's'}{after}{batch}"


@dataclass(frozen=True)
class Scenario:
    """Sequences that grow.

    Attributes:
        past: Tokens of each that are cached already, as random numbers.
        new: Tokens of each that the first run brings.
        steps: How many runs of one token each follow, on the caches that came out.
        spare: Rows of the caches beyond the longest sequence, as in buffers of a fixed size.
    """

    past: tuple[int, ...]
    new: tuple[int, ...]
    steps: int = 0
    spare: int = 0

    def runs(self, past_rows: int | None, total: int | None) -> Iterator[Step]:
        """The runs, one after the other.

        Args:
            past_rows: Rows of the caches where the model fixes them.
            total: The width of the attention mask where the model fixes it.
        """
        lengths = tuple(a + b for a, b in zip(self.past, self.new, strict=True))
        rows = max(self.past) + (max(self.new) + self.spare if self.spare else 0)
        yield Step(lengths, self.new, past_rows or rows, total or max(lengths))
        for _ in range(self.steps):
            rows = max(rows, *lengths)
            lengths = tuple(length + 1 for length in lengths)
            one = (1,) * len(lengths)
            yield Step(lengths, one, past_rows or rows, total or max(lengths), chained=True)


def scenarios(interface: Interface, *, ragged: bool) -> list[list[Step]]:
    """The runs on which two models are compared, grouped by scenario.

    Between them: batches of one to three, prompts with and without padding, steps of one and of
    three tokens after a past, lengths from one token to several tiles and past a sliding window,
    caches of exactly the past and larger ones, and caches that the model itself wrote.

    Args:
        interface: What the model takes, which limits all of it.
        ragged: Whether sequences of a batch may have pasts of different lengths, and caches spare
            rows: not where the past is plain tensors that new rows are appended to.
    """
    fixed = _fixed_sizes(interface)
    context = _longest(interface, fixed)
    past_window = (interface.window or 0) + 20
    # A window wider than all that can be tried changes nothing.
    far = min(context, max(LONG_CONTEXT, past_window if past_window <= context else 0)) - 1
    third = max(_longest(interface, fixed, batch=3) - 1, 0)
    pasts = (min(far, third), min(far, third) // 3, min(1, third))
    wanted = [
        Scenario((0,), (6,), steps=2),
        Scenario((0, 0), (12, 7), steps=2 if ragged else 0),
        Scenario((far,), (1,)),
        Scenario((min(far, 40),), (1,), spare=9 if ragged else 0),
        Scenario(pasts if ragged else (pasts[0],) * 3, (1, 1, 1)),
        Scenario((min(far, 20),), (3,)),
    ]
    runs = []
    for scenario in dict.fromkeys(_fit(each, fixed, context) for each in wanted):
        steps = list(scenario.runs(fixed.get("past"), fixed.get("total")))
        fitting = [step for step in steps if max(step.lengths) <= context]
        # A chain without caches that come out again has no second step.
        caches = any(cache.past for cache in interface.caches)
        runs.append([step for step in fitting if caches or not step.chained])
    return [steps for steps in runs if steps]


def _fit(scenario: Scenario, fixed: dict[str, int], context: int) -> Scenario:
    """The scenario in the sizes that the model fixes, within its context."""
    batch, sequence = fixed.get("batch"), fixed.get("sequence")
    past, new = scenario.past, scenario.new
    if batch is not None:
        past, new = ((rows * batch)[:batch] for rows in (past, new))
    limit = min(context, 1 << 30)
    new = tuple(min(sequence or count, limit) for count in new)
    past = tuple(max(0, min(rows, limit - max(new))) for rows in past)
    steps = scenario.steps if sequence in (None, 1) else 0
    return Scenario(past, new, steps, scenario.spare)


def _fixed_sizes(interface: Interface) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for feed in interface.feeds:
        for size, meaning in zip(feed.shape, _meanings(feed), strict=False):
            if isinstance(size, int) and meaning is not None and feed.role != Role.ATTENTION_BIAS:
                sizes.setdefault(meaning, size)
    return sizes


def _meanings(feed: Feed) -> tuple[str | None, ...]:
    if feed.role == Role.NUMBERS and len(feed.shape) not in (2, 3):
        return ()
    return DIMENSIONS.get(feed.role, ())


def _longest(interface: Interface, fixed: dict[str, int], batch: int = 1) -> int:
    """The most tokens of a sequence, by the rotary tables, the caches and the memory."""
    limits = [interface.rotary_rows, fixed.get("past"), fixed.get("total")]
    per_token = sum(
        feed.dtype.itemsize
        * (feed.shape[1] if isinstance(feed.shape[1], int) else 1)
        * (feed.shape[3] if isinstance(feed.shape[3], int) else 1)
        for feed in interface.feeds
        if feed.role == Role.PAST and len(feed.shape) == 4
    )
    limits.append(CACHE_BYTES // (per_token * batch) if per_token else LONG_CONTEXT)
    return max(1, min(limit for limit in limits if limit is not None))
