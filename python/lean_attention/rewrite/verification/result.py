"""What a verification found, output by output."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

__all__ = ["OutputCheck", "Verification"]

# Of more caches than these only the worst of each kind gets a line to read.
MAX_LINES_PER_KIND = 8


@dataclass(frozen=True)
class OutputCheck:
    """An output of both models, compared over all runs.

    Attributes:
        name: The output's name.
        kind: ``present_key`` or ``present_value`` of a cache; empty for all others.
        difference: Largest difference in that run in which it comes closest to the tolerance, or
            passes it the farthest. Of integers, in steps; infinite where one model gives numbers
            and the other does not.
        tolerance: What it may have been in that run.
        largest: The largest number of the source's output in that run.
        run: That run, in words.
        count: How many outputs the check stands for, of which it is the worst.
    """

    name: str
    kind: str
    difference: float
    tolerance: float
    largest: float
    run: str
    count: int = 1

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance

    @property
    def is_telling(self) -> bool:
        """Whether the tolerance is well below the numbers; where roundings grow large it is not."""
        return self.tolerance < self.largest / 4 or not self.tolerance

    @property
    def ratio(self) -> float:
        """The difference as a part of the tolerance."""
        if self.difference == 0:
            return 0.0
        return self.difference / self.tolerance if self.tolerance else float("inf")

    def to_dict(self) -> dict[str, object]:
        """The check as JSON takes it; an infinite difference is a text."""
        infinite = math.isinf(self.difference)
        return asdict(self) | {
            "passed": self.passed,
            "is_telling": self.is_telling,
            "difference": "infinite" if infinite else self.difference,
        }

    def __str__(self) -> str:
        """One line: mark, name, largest difference, tolerance."""
        mark = "✓" if self.passed else "x"
        which = self.name if self.count == 1 else f"{self.count} {self.kind}, worst {self.name}"
        return (
            f"{mark} {which}: largest difference {self.difference:.2g}, tolerance "
            f"{self.tolerance:.2g}, of numbers up to {self.largest:.2g} ({self.run})"
            f"{'' if self.is_telling else '; says little: roundings grow as far in the source'}"
        )


@dataclass(frozen=True)
class Verification:
    """Whether the rewritten model computes what the source computes.

    Attributes:
        outputs: One check for each output, in the model's order; empty where nothing was run.
        runs: On how many inputs both models were run.
        obstacle: Why nothing was compared; empty where it was.
        refused: Inputs that the source itself refuses, with ONNX Runtime's reason.
    """

    outputs: tuple[OutputCheck, ...] = ()
    runs: int = 0
    obstacle: str = ""
    refused: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether both models were compared and every output was close."""
        return not self.obstacle and not self.failed

    @property
    def failed(self) -> tuple[OutputCheck, ...]:
        """The outputs that were not close."""
        return tuple(output for output in self.outputs if not output.passed)

    def to_dict(self) -> dict[str, object]:
        """Everything, as JSON takes it."""
        return {
            "passed": self.passed,
            "obstacle": self.obstacle,
            "runs": self.runs,
            "refused": list(self.refused),
            "outputs": [output.to_dict() for output in self.outputs],
        }

    def __str__(self) -> str:
        """Why nothing was compared, or a line per output."""
        if self.obstacle:
            return f"not verified: {self.obstacle}"
        return "\n".join([*map(str, self.lines()), *map(str, self.refused)])

    def lines(self) -> Iterator[OutputCheck]:
        """The checks to print: all, or of many caches the worst of each kind."""
        kinds: dict[str, list[OutputCheck]] = {}
        for output in self.outputs:
            kinds.setdefault(output.kind or output.name, []).append(output)
        for outputs in kinds.values():
            many = len(outputs) > MAX_LINES_PER_KIND
            yield from [_worst(outputs)] if many else outputs


def _worst(outputs: Iterable[OutputCheck]) -> OutputCheck:
    outputs = list(outputs)
    return replace(max(outputs, key=lambda output: output.ratio), count=len(outputs))
