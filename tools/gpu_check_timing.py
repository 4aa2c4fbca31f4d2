"""How long steps take under each schedule, and what others make of them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

from gpu_check_contenders import HEAD_SIZE, Case, Contenders, step_of
from gpu_check_device import Budget, Device

__all__ = ["Row", "copy_speed", "time_cases", "timing_cases"]

HEADS = ((32, 32), (32, 8), (32, 4), (8, 1))
_KIB = 1024
_MOST_COPIES = 3
_ROUNDS = (5, 30)
_ROUND_SECONDS = 0.3  # for the rounds of one case


@dataclass(frozen=True)
class Row:
    """What was measured of a case: medians and quartiles in microseconds, by contender."""

    case: Case
    mean_length: float
    bytes_read: int
    copies: int
    rounds: int
    micros: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    refusals: dict[str, str]
    plans: dict[str, str]
    backends: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON's types, with the speeds that follow."""
        return {
            **asdict(self),
            "case": asdict(self.case),
            "mean_over_longest": self.mean_length / self.case.context,
            "gigabytes_per_second": {n: self.bytes_read / t / 1e3 for n, t in self.micros.items()},
        }


def timing_cases(is_small: bool) -> list[Case]:
    """Returns the grid; what matters most comes first, should the time not suffice."""
    if is_small:
        return [Case(200, (200, 20), 4, 2, True), Case(150, (150,), 8, 1, False)]
    return list(_grid())


def _grid() -> Iterator[Case]:
    for context in (16 * _KIB, 64 * _KIB, 4 * _KIB, 256 * _KIB, _KIB):
        for batch in (4, 1, 16):
            for heads in HEADS:
                for ragged in (True, False) if batch > 1 else (False,):
                    yield Case(context, _lengths(context, batch, ragged), *heads, ragged)


def _lengths(context: int, batch: int, ragged: bool) -> tuple[int, ...]:
    if not ragged:
        return (context,) * batch
    draws = random.Random(batch * context)
    return (context, *(draws.randint(context // 16, context) for _ in range(batch - 1)))


class Arena:
    """Random numbers from which all caches are cut: filling memory takes longer than reading it."""

    def __init__(self, device: Device, elements: int) -> None:
        """Fills memory."""
        self.numbers = torch.empty(elements, dtype=torch.float16, device=device.torch)
        for part in self.numbers.split(1 << 28):
            part.normal_()

    def caches(self, case: Case, copy: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns K and V [B, K, C, H] of one of a case's copies."""
        shape = (len(case.lengths), case.kv_num_heads, case.context, HEAD_SIZE)
        count = case.cache_elements
        parts = self.numbers[2 * copy * count : 2 * (copy + 1) * count].split(count)
        return parts[0].view(shape), parts[1].view(shape)


def copy_speed(device: Device, elements: int) -> float:
    """Returns the bytes per second, read and written, of the device's own copy: the roofline."""
    source = torch.zeros(elements, dtype=torch.float16, device=device.torch)
    target = torch.empty_like(source)
    seconds = [device.seconds([lambda: target.copy_(source)])[0] for _ in range(7)]
    return 2 * source.nbytes / median(seconds)


def _time_case(case: Case, device: Device, arena: Arena, *, flashinfer: bool) -> Row:
    copies = min(_MOST_COPIES, arena.numbers.numel() // (2 * case.cache_elements))
    steps = [step_of(case, device, arena.caches(case, copy)) for copy in range(copies)]
    contenders = Contenders(case, device, steps, flashinfer=flashinfer)
    names = list(contenders.runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    rounds, total = 0, 0.0
    least, most = (2, 2) if device.is_emulated else _ROUNDS
    order = random.Random(0)
    while rounds < least or (rounds < most and total < _ROUND_SECONDS):
        order.shuffle(names)
        copy = rounds % copies
        times = device.seconds([contenders.runs[name][copy] for name in names])
        for name, time in zip(names, times, strict=True):
            seconds[name].append(time)
        total += sum(times)
        rounds += 1
    quarters = {name: quantiles(times, n=4, method="inclusive") for name, times in seconds.items()}
    return Row(
        case,
        sum(case.lengths) / len(case.lengths),
        case.bytes_read,
        copies,
        rounds,
        {name: median(times) * 1e6 for name, times in seconds.items()},
        {name: (q[0] * 1e6, q[2] * 1e6) for name, q in quarters.items()},
        contenders.refusals,
        contenders.plans,
        contenders.backends,
    )


def time_cases(
    device: Device,
    cases: list[Case],
    budget: Budget,
    keep: Callable[[Row | None], object],
    *,
    flashinfer: bool = False,
) -> dict[str, str]:
    """Times cases until the time is over.

    Args:
        device: Where.
        cases: In this order.
        budget: What it keeps.
        keep: Called after each case, with what was measured; None: it was left out.
        flashinfer: Whether FlashInfer takes part.

    Returns:
        Why those were left out that were.
    """
    largest = 2 * max(case.cache_elements for case in cases)
    # The rest is for what the comparison with float64 takes.
    arena = Arena(device, min(largest, int(0.5 * device.free_bytes) // 2))
    left_out: dict[str, str] = {}
    for case in cases:
        row = None
        if 2 * case.cache_elements > arena.numbers.numel():
            left_out[str(case)] = "its caches do not fit"
        elif budget.is_spent:
            left_out[str(case)] = "no time was left"
        else:
            try:
                row = _time_case(case, device, arena, flashinfer=flashinfer)
            except torch.OutOfMemoryError:
                left_out[str(case)] = "the memory did not suffice"
        keep(row)
    return left_out
