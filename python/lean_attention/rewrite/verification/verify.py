"""The source and the rewritten model on the same inputs, one after the other."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from rich.console import Console
from rich.progress import Progress

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.files import link_or_copy
from lean_attention.rewrite.gqa_node import DOMAIN
from lean_attention.rewrite.model_file import external_locations
from lean_attention.rewrite.report import NodeReport
from lean_attention.rewrite.verification.comparison import (
    LARGE,
    difference,
    largest,
    moved,
    sensitivity,
    tolerance,
    valid_part,
)
from lean_attention.rewrite.verification.disturbance import DRAW, SIZE, disturb
from lean_attention.rewrite.verification.interface import Interface, read_interface
from lean_attention.rewrite.verification.memory import lacks_memory
from lean_attention.rewrite.verification.result import OutputCheck, Verification
from lean_attention.rewrite.verification.scenarios import Step, scenarios
from lean_attention.rewrite.verification.session import Arrays, CpuSession, RunError

__all__ = ["verify"]

# Errors and their size; of small ones more, since a single draw may be small by chance.
DRAWS = ((6011.31, 1), (7919.73, 1), (7013.17, LARGE))
Part = npt.NDArray[Any]


@dataclass
class _Wanted:
    """An output of the source in one run.

    Attributes:
        part: Its valid elements.
        dtype: Its type.
        small, large: How far small and large errors of the source's attention moved it.
    """

    part: Part
    dtype: np.dtype[Any]
    small: float = 0.0
    large: float = 0.0


Run = tuple[int, int]
"""A run's scenario, and its place in it."""


def verify(
    source: Path,
    stock: onnx.ModelProto,
    rewritten: onnx.ModelProto,
    staged: Path,
    nodes: tuple[NodeReport, ...],
) -> Verification:
    """Runs both models in ONNX Runtime's CPU provider and compares every output.

    Three models are loaded, one after another: the source, the source with disturbed attention
    (which gives the tolerances, see ``comparison.tolerance``), and the rewritten one. Each goes
    through the same scenarios on the same random inputs, and in chained steps on its own caches.

    Args:
        source: The source's model file.
        stock: The model before its attention was replaced.
        rewritten: The model after that.
        staged: The rewritten model's file, beside the data files that both refer to. Further files
            are made there and removed again.
        nodes: The replaced nodes.

    Returns:
        One check per output, or why nothing was compared.

    Raises:
        RunError: The source runs, and the rewritten model does not.
        LeanAttentionError: The operator library is missing or refused.
    """
    if obstacle := lacks_memory("its weights", _weights(staged, stock)):
        return Verification(obstacle=obstacle)
    try:
        interface = read_interface(rewritten)
        ragged = read_interface(stock).has_attention
        groups = scenarios(interface, ragged=ragged)
    except LeanAttentionError as error:
        return Verification(obstacle=str(error))
    checker = _Checker(interface, groups, _bits(rewritten))
    with _extra_files(staged) as folder_file, _progress(groups) as tick:
        original, disturbed = folder_file("source"), folder_file("disturbed")
        link_or_copy(source, original)
        disturbed.write_bytes(disturb(stock, {node.op for node in nodes}).SerializeToString())
        try:
            checker.learn(_session(original, interface, stock), tick)
        except RunError as error:
            return Verification(
                obstacle=f"ONNX Runtime's CPU provider cannot run the source model: {error}"
            )
        except LeanAttentionError as error:
            return Verification(obstacle=str(error))
        if not checker.wanted:
            return Verification(obstacle=checker.refused[0])
        if blind := checker.without_numbers():
            return Verification(
                obstacle=f"the source model's {blind} is not finite on random inputs"
            )
        try:
            checker.measure(_session(disturbed, interface, stock), tick)
        except RunError as error:
            return Verification(obstacle=f"no tolerance can be measured: {error}")
        return checker.compare(staged, interface, rewritten, tick)


class _Checker:
    """Keeps the source's outputs, and compares others with them."""

    def __init__(self, interface: Interface, groups: list[list[Step]], bits: int) -> None:
        self.wanted: dict[Run, dict[str, _Wanted]] = {}
        self.refused: list[str] = []
        self._outputs = interface.outputs
        self._kinds = {cache.present: cache.part for cache in interface.caches}
        self._groups = groups
        self._bits = bits

    def learn(self, session: CpuSession, tick: Callable[[], None]) -> None:
        """Notes the source's outputs; a scenario that it refuses is no scenario."""
        for group in range(len(self._groups)):
            self._learn_scenario(session, group, tick)

    def _learn_scenario(self, session: CpuSession, group: int, tick: Callable[[], None]) -> None:
        steps = self._groups[group]
        try:
            for index, outputs in enumerate(session.run(steps, group, tick)):
                parts = self._parts(outputs, steps[index])
                self.wanted[group, index] = {
                    name: _Wanted(part, outputs[name].dtype) for name, part in parts.items()
                }
        except RunError as error:
            step = steps[sum((group, index) in self.wanted for index in range(len(steps)))]
            self.refused.append(f"the source model refuses {step.describe()}: {error}")

    def without_numbers(self) -> str:
        """The first output that never holds a finite number; empty where there is none."""
        for name in self._outputs:
            parts = [wanted[name].part for wanted in self.wanted.values()]
            if any(part.size for part in parts) and not any(
                np.isfinite(part).any() for part in parts
            ):
                return name
        return ""

    def measure(self, session: CpuSession, tick: Callable[[], None]) -> None:
        """Notes how far each output moves in a disturbed model."""
        for draw, size in DRAWS:
            more = {DRAW: np.array(draw, np.float32), SIZE: np.array(size, np.float32)}
            for run, name, part in self._runs(session, tick, more):
                wanted = self.wanted[run][name]
                if size == LARGE:
                    wanted.large = moved(part, wanted.part)
                else:
                    wanted.small = max(wanted.small, moved(part, wanted.part))

    def compare(
        self, path: Path, interface: Interface, model: onnx.ModelProto, tick: Callable[[], None]
    ) -> Verification:
        """The rewritten model against all that was noted."""
        worst: dict[str, OutputCheck] = {}
        try:
            for run, name, part in self._runs(_session(path, interface, model), tick):
                wanted = self.wanted[run][name]
                check = OutputCheck(
                    name,
                    self._kinds.get(name, ""),
                    difference(part, wanted.part),
                    tolerance(sensitivity(wanted.small, wanted.large), wanted.part, wanted.dtype),
                    largest(wanted.part),
                    self._groups[run[0]][run[1]].describe(),
                )
                if name not in worst or check.ratio > worst[name].ratio:
                    worst[name] = check
        except RunError as error:
            raise RunError(f"ONNX Runtime does not run the rewritten model: {error}") from error
        checks = tuple(worst[name] for name in self._outputs)
        return Verification(checks, len(self.wanted), refused=tuple(self.refused))

    def _runs(
        self, session: CpuSession, tick: Callable[[], None], more: Arrays | None = None
    ) -> Iterator[tuple[Run, str, Part]]:
        """The valid elements of each output in each run that the source did."""
        for group, steps in enumerate(self._groups):
            done = [steps[i] for i in range(len(steps)) if (group, i) in self.wanted]
            for index, outputs in enumerate(session.run(done, group, tick, more)):
                for name, part in self._parts(outputs, steps[index]).items():
                    yield (group, index), name, part

    def _parts(self, outputs: Arrays, step: Step) -> dict[str, Part]:
        return {
            name: valid_part(array, step, is_cache=name in self._kinds, bits=self._bits)
            for name, array in outputs.items()
        }


def _session(path: Path, interface: Interface, model: onnx.ModelProto) -> CpuSession:
    uses_library = any(opset.domain == DOMAIN for opset in model.opset_import)
    return CpuSession(path, interface, uses_library=uses_library)


def _bits(model: onnx.ModelProto) -> int:
    """The bits of a cache's value where the model says them."""
    return max(
        (
            attribute.i
            for holder in (model.graph, *model.functions)
            for node in holder.node
            for attribute in node.attribute
            if attribute.name == "kv_cache_bit_width"
        ),
        default=0,
    )


def _weights(staged: Path, model: onnx.ModelProto) -> int:
    """The bytes of a model's data files."""
    return sum((staged.parent / place).stat().st_size for place in external_locations(model))


@contextmanager
def _extra_files(staged: Path) -> Iterator[Callable[[str], Path]]:
    """Names of files beside the staged model that are gone in the end."""
    with tempfile.TemporaryDirectory(prefix=".verify.", dir=staged.parent) as unique:
        made: list[Path] = []

        def path(name: str) -> Path:
            # Beside it and not inside: data files are named from the model's own folder.
            made.append(staged.parent / f"{Path(unique).name}.{name}.onnx")
            return made[-1]

        try:
            yield path
        finally:
            for each in made:
                each.unlink(missing_ok=True)


@contextmanager
def _progress(groups: list[list[Step]]) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal; yields what to call after each run."""
    console = Console(stderr=True)
    total = sum(len(steps) for steps in groups) * (2 + len(DRAWS))
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Verifying", total=total)
        yield lambda: progress.advance(task)
