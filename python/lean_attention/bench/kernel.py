"""One attention step computed by several contenders, checked first, then timed turn by turn."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from lean_attention.bench.contenders import (
    CONTENDERS,
    OURS,
    Contender,
    RefusedError,
    one_line,
    prepare,
)
from lean_attention.bench.kernel_config import Copies, KernelConfig
from lean_attention.bench.kernel_data import KernelData
from lean_attention.bench.machine import available_memory, last_level_cache_bytes
from lean_attention.bench.roofline import READ_STREAMS, MemoryRead, read_name
from lean_attention.errors import LeanAttentionError

__all__ = ["STOCK_AGAIN", "Entry", "KernelTimes", "time_kernel", "turn_order"]

STOCK_AGAIN = "stock again"
"""A second session of the stock operator: its ratio to the first is the measurement's own error."""

Times = NDArray[np.float64]

# A turn of the fastest contender lasts at least this long; one of the slowest, if it can, at most.
_TURN_SECONDS = 0.01
_LONGEST_TURN_SECONDS = 1.0


@dataclass(frozen=True)
class Entry:
    """How one contender did.

    Attributes:
        name: One of `CONTENDERS`, or `STOCK_AGAIN`.
        rounds: Seconds of a step in each round, [R]; None where it did not run.
        refusal: Why it did not run, in one line.
        error: The greatest error of a head's output, relative to that head's length as a vector.
        wrong: Whether that is beyond the tolerance, so that it was not timed.
    """

    name: str
    rounds: Times | None = None
    refusal: str | None = None
    error: float | None = None
    wrong: bool = False

    @property
    def seconds(self) -> float:
        """The median over the rounds; NaN where it did not run."""
        return math.nan if self.rounds is None else float(np.median(self.rounds))

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile over the rounds, in seconds."""
        if self.rounds is None:
            return math.nan, math.nan
        low, high = np.percentile(self.rounds, (25, 75))
        return float(low), float(high)

    def speedup_over(self, other: "Entry") -> float:
        """How many times as fast this is: the median of the ratios, round by round."""
        if self.rounds is None or other.rounds is None:
            return math.nan
        return float(np.median(other.rounds / self.rounds))


@dataclass(frozen=True)
class KernelTimes:
    """What a measurement found.

    Attributes:
        config: The step.
        copies: The caches that it rotated over.
        runs: Runs over a group of caches in each turn.
        entries: The contenders, in the order asked for.
        reads: Plain reads of the same bytes by `READ_STREAMS`.
    """

    config: KernelConfig
    copies: Copies
    runs: int
    entries: tuple[Entry, ...]
    reads: dict[int, Entry]

    @property
    def roofline(self) -> Entry:
        """The fastest of the reads."""
        return min(self.reads.values(), key=lambda read: read.seconds)

    def find(self, name: str) -> Entry | None:
        """Returns a contender's entry; None where it was not asked for."""
        return next((entry for entry in self.entries if entry.name == name), None)


def time_kernel(
    config: KernelConfig,
    contenders: Sequence[str] = CONTENDERS,
    *,
    rounds: int = 15,
    on_stage: Callable[[str], None] = lambda stage: None,
    on_round: Callable[[], None] = lambda: None,
) -> KernelTimes:
    """Lets contenders compute a step in turns, after their results have been checked.

    Each result is compared with a float64 computation, ours with the stock operator's as well,
    outputs and new cache rows being NaN beforehand. What is wrong is not timed.

    Args:
        config: The step.
        contenders: Names from `CONTENDERS`, and `STOCK_AGAIN`.
        rounds: Turns of each contender and each read, R; their order changes from round to round.
        on_stage: Told, in a few words, what comes next.
        on_round: Called after each round.

    Returns:
        The times of each, and of plain reads of the same bytes.

    Raises:
        LeanAttentionError: There is no memory for the caches, or a number is out of range.
    """
    if rounds < 1:
        raise LeanAttentionError(f"--rounds is {rounds}; it must be 1 or more")
    copies = config.copies(last_level_cache_bytes())
    _check_memory(config, copies)
    on_stage("drawing the caches")
    data = KernelData(config, copies)
    on_stage("computing the exact result")
    checker = _Checker(config, data.exact_output())
    entries: dict[str, Entry] = {}
    ready: dict[str, Contender] = {}
    for name in sorted(contenders, key=lambda name: name in OURS):
        on_stage(f"checking {name}")
        try:
            contender = prepare("stock" if name == STOCK_AGAIN else name, data)
            data.poison(0)
            contender.poison()
            _run(contender, 0)
        except RefusedError as error:
            entries[name] = Entry(name, refusal=str(error))
            continue
        entries[name] = checker.judge(name, contender)
        if not entries[name].wrong:
            ready[name] = contender
    times, runs = _take_turns(data, ready, rounds, on_stage, on_round)
    timed = {
        name: Entry(name, times[name], error=entries[name].error) if name in ready else entry
        for name, entry in entries.items()
    }
    return KernelTimes(
        config,
        copies,
        runs,
        tuple(timed[name] for name in contenders),
        {streams: Entry(read_name(streams), times[streams]) for streams in READ_STREAMS},
    )


def turn_order(count: int, number: int) -> list[int]:
    """Returns the order of a round's turns: the rows of a Latin square that is balanced.

    Over `count` rounds, twice as many where it is odd, each one has each place, and comes right
    after each other one, equally often: what a turn leaves behind (caches, clocks, sleeping
    threads) harms nobody more than others. (Williams, 1949.)
    """
    zigzag = [(i + 1) // 2 if i % 2 else -i // 2 for i in range(count)]
    order = [(step + number) % count for step in zigzag]
    return order[::-1] if count % 2 and number // count % 2 else order


def _check_memory(config: KernelConfig, copies: Copies) -> None:
    # The caches, and one head of one sequence in float64 with a copy of it, for the check.
    needed = copies.count * config.bytes_held + 4 * config.capacity * config.head_size * 8
    available = available_memory()
    if needed > 0.9 * available:
        raise LeanAttentionError(
            f"{copies.count} copies of this cache take {needed / 1e9:.1f} GB and "
            f"{available / 1e9:.1f} GB are free; choose a smaller --context or --batch"
        )


def _run(contender: Contender, group: int) -> None:
    try:
        contender.run(group)
    except Exception as error:  # ONNX Runtime and PyTorch raise several unrelated types.
        raise RefusedError(one_line(error)) from error


class _Checker:
    """Compares outputs, head by head, with the exact ones and with the stock operator's."""

    def __init__(self, config: KernelConfig, exact: NDArray[np.float64]) -> None:
        self._tolerance = config.tolerance
        self._exact = exact
        self._stock: NDArray[np.float64] | None = None

    def judge(self, name: str, contender: Contender) -> Entry:
        outputs = np.stack(
            [output.astype(np.float64).reshape(self._exact.shape) for output in contender.outputs()]
        )
        error = self._distance(outputs, self._exact)
        # Not the reverse comparison: an error of NaN must not pass.
        if not error <= self._tolerance:
            return self._wrong(name, "the exact result", error, self._tolerance)
        if name == "stock":
            self._stock = outputs
        elif name in OURS and self._stock is not None:
            apart = self._distance(outputs, self._stock)
            if not apart <= 2 * self._tolerance:
                return self._wrong(name, "the stock operator", apart, 2 * self._tolerance)
        return Entry(name, error=error)

    @staticmethod
    def _wrong(name: str, other: str, error: float, tolerance: float) -> Entry:
        return Entry(
            name,
            refusal=f"wrong result: {error:.1e} from {other}, and {tolerance:.1e} is allowed",
            error=error,
            wrong=True,
        )

    def _distance(self, outputs: NDArray[np.float64], others: NDArray[np.float64]) -> float:
        """Returns the greatest distance of a head's vectors, relative to the exact one's length.

        NaN anywhere makes it NaN.
        """
        norm = np.linalg.norm(self._exact, axis=-1)
        return float(np.max(np.linalg.norm(outputs - others, axis=-1) / norm))


def _take_turns(
    data: KernelData,
    ready: dict[str, Contender],
    rounds: int,
    on_stage: Callable[[str], None],
    on_round: Callable[[], None],
) -> tuple[dict[str | int, Times], int]:
    """Returns the seconds of a step by contender and by read, and the runs of each turn."""
    copies, threads = data.copies, data.config.threads
    groups = cycle(range(copies.sets))
    reads = [MemoryRead(data.valid_pieces(group)) for group in range(copies.sets)]

    def turn(who: str | int, runs: int) -> float:
        if isinstance(who, int):
            total = sum(reads[next(groups)](threads, who) for _ in range(runs))
        else:
            run = ready[who].run
            started = perf_counter()
            for _ in range(runs):
                run(next(groups))
            total = perf_counter() - started
        return total / (runs * copies.layers)

    on_stage("warming up")
    # The second turn counts: a first one also pays for what a session sets up.
    once = [min(turn(name, 1) for _ in range(2)) * copies.layers for name in ready] or [
        _TURN_SECONDS
    ]
    runs = min(math.ceil(_TURN_SECONDS / min(once)), int(_LONGEST_TURN_SECONDS / max(once)))
    runs = max(1, runs)

    on_stage("taking turns")
    everyone: list[str | int] = [*ready, *READ_STREAMS]
    times: dict[str | int, list[float]] = {who: [] for who in everyone}
    for number in range(rounds):
        for place in turn_order(len(everyone), number):
            who = everyone[place]
            if data.config.warm:
                turn(who, 1)
            times[who].append(turn(who, runs))
        on_round()
    return {who: np.array(seconds) for who, seconds in times.items()}, runs
