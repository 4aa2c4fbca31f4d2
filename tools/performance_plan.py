"""What docs/performance.md shows: sections of measurements, and what is aimed at."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lean_attention.bench import KernelConfig
from lean_attention.bench.kernel import STOCK_AGAIN
from lean_attention.bench.kernel_report import command_line

__all__ = ["LEAST_SHORT", "MOST_SLOWER", "PLAN", "Goal", "Plan"]

LEAST_SHORT = 0.97
"""What the ratio to stock may come down to at short contexts: 1, and the noise."""
MOST_SLOWER = 1.1
"""What a step with more threads may take of the time of one with fewer."""


@dataclass(frozen=True)
class Goal:
    """What one measurement aims at; None: nothing.

    Attributes:
        read: Fraction of the plain read's speed.
        stock: Times as fast as the stock operator.
    """

    read: float | None = None
    stock: float | None = None


@dataclass(frozen=True)
class Item:
    """One measurement.

    Attributes:
        config: The step.
        contenders: Who takes part; the first is the one that tables are about.
        goal: What it aims at.
        rounds: Turns of each contender; more where they are short.
    """

    config: KernelConfig
    contenders: tuple[str, ...]
    goal: Goal = Goal()
    rounds: int = 9

    @property
    def command(self) -> str:
        """The command that measures it; also what names it in results."""
        return command_line(self.config, list(self.contenders), self.rounds)


def _step(
    heads: str,
    size: int,
    *lengths: int,
    dtype: str = "float32",
    kv: str | None = None,
    scales: str = "per-tensor",
    threads: int = 2,
    warm: bool = False,
) -> KernelConfig:
    """Returns a step whose heads are given as "32/8"."""
    query_heads, kv_heads = map(int, heads.split("/"))
    return KernelConfig(
        lengths, query_heads, kv_heads, size, dtype, kv or dtype, scales, threads, warm
    )


_ALL = ("auto", "stock", "torch")
_SCHEDULES = ("auto", "lean", "fixed_split", "direct", "stock")
_PAIR = ("auto", "stock")
_CHECKED = ("auto", "stock", STOCK_AGAIN)


def _long() -> Iterator[Item]:
    kilo = 1024
    for step, goal in (
        (_step("32/8", 128, 32 * kilo), Goal(0.85, 4)),
        (_step("32/8", 128, 32 * kilo, dtype="float16"), Goal(0.85, 20)),
        (_step("32/8", 128, 32 * kilo, dtype="bfloat16"), Goal(0.85)),
        (_step("24/8", 128, 16 * kilo), Goal(0.85)),
        (_step("24/8", 128, 16 * kilo, dtype="float16"), Goal(0.85, 12)),
        (_step("40/10", 128, 16 * kilo), Goal(0.85)),
        (_step("8/8", 128, 16 * kilo, dtype="float16"), Goal(0.85)),
        (_step("32/32", 96, 8 * kilo), Goal(0.85)),
        (_step("32/32", 96, 4 * kilo), Goal(stock=1.1)),
        (_step("32/32", 80, 2 * kilo), Goal()),
        (_step("32/4", 128, 16 * kilo), Goal(0.70)),
        (_step("32/4", 128, 16 * kilo, dtype="float16"), Goal(0.70, 25)),
        (_step("64/8", 64, 8 * kilo), Goal(0.70)),
        (_step("9/3", 64, 7 * kilo), Goal(stock=2.5)),
    ):
        yield Item(step, _ALL, goal)


def _integer() -> Iterator[Item]:
    for kv, goal in (("int8", Goal(0.60, 5)), ("int4", Goal(0.40, 10))):
        for scales, dtype in product(("per-tensor", "per-channel"), ("float32", "float16")):
            step = _step("32/8", 128, 32 * 1024, dtype=dtype, kv=kv, scales=scales)
            yield Item(step, _PAIR, goal)
    yield Item(_step("64/8", 64, 7700, kv="int8"), _PAIR)


def _ragged() -> Iterator[Item]:
    ragged = (16384, 1024, 1024, 512)
    yield Item(_step("32/8", 128, *ragged), _SCHEDULES, Goal(stock=5))
    yield Item(_step("32/8", 128, *ragged, dtype="float16"), _SCHEDULES)
    yield Item(_step("32/8", 128, 8192, *(256,) * 15), _SCHEDULES)
    yield Item(_step("32/8", 128, *(2048,) * 8), _SCHEDULES)
    yield Item(_step("32/8", 128, 32 * 1024), _SCHEDULES)
    yield Item(_step("6/1", 128, 32 * 1024), _SCHEDULES)


def _short() -> Iterator[Item]:
    shapes = (
        ("32/8", 128, "float32"),
        ("32/8", 128, "float16"),
        ("24/8", 128, "float32"),
        ("32/32", 96, "float32"),
        ("32/4", 128, "float32"),
        ("9/3", 64, "float32"),
    )
    for (heads, size, dtype), length in product(shapes, (1, 4, 16, 64, 128, 256, 512)):
        step = _step(heads, size, length, dtype=dtype, warm=True)
        yield Item(step, _CHECKED, Goal(stock=LEAST_SHORT), rounds=41)


def _threads() -> Iterator[Item]:
    for (heads, size, lengths), threads in product(
        (
            ("32/8", 128, (16384,)),
            ("32/8", 128, (16384, 1024, 1024, 512)),
            ("9/3", 64, (512,)),
        ),
        (1, 2, 3, 4, 8),
    ):
        warm = max(lengths) <= 512
        step = _step(heads, size, *lengths, threads=threads, warm=warm)
        yield Item(step, _PAIR, rounds=41 if warm else 9)


@dataclass(frozen=True)
class Plan:
    """The sections of the page, each a list of measurements."""

    long: tuple[Item, ...]
    integer: tuple[Item, ...]
    ragged: tuple[Item, ...]
    short: tuple[Item, ...]
    threads: tuple[Item, ...]

    @property
    def commands(self) -> list[str]:
        """All commands, each once, in the order of the page."""
        sections = (self.long, self.integer, self.ragged, self.short, self.threads)
        return list(dict.fromkeys(item.command for section in sections for item in section))


PLAN = Plan(tuple(_long()), tuple(_integer()), tuple(_ragged()), tuple(_short()), tuple(_threads()))
