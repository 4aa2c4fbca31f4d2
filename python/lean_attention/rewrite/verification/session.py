"""One model run over all scenarios in ONNX Runtime's CPU provider."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import register_custom_ops
from lean_attention.rewrite.verification.feeds import make_feeds
from lean_attention.rewrite.verification.interface import Interface
from lean_attention.rewrite.verification.scenarios import Step

__all__ = ["Arrays", "CpuSession", "RunError"]

Arrays = dict[str, npt.NDArray[Any]]
FATAL = 4


class RunError(LeanAttentionError):
    """ONNX Runtime cannot load or run a model; the message is its own first line."""


class CpuSession:
    """A session of the CPU provider.

    Args:
        path: The model file.
        interface: Its inputs and outputs.
        uses_library: Whether it needs the operator library.

    Raises:
        RunError: ONNX Runtime cannot load the model.
        LeanAttentionError: The operator library is missing or refused.
    """

    def __init__(self, path: Path, interface: Interface, *, uses_library: bool) -> None:
        """Loads the model."""
        import onnxruntime

        self._interface = interface
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL
        # Threads that spin after a run would take the cores from the next model.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if uses_library:
            register_custom_ops(options)
        try:
            self._session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime raises several unrelated types.
            raise RunError(_first_line(error)) from error

    def run(
        self,
        steps: Sequence[Step],
        seed: int,
        tick: Callable[[], None],
        more: Arrays | None = None,
    ) -> Iterator[Arrays]:
        """Runs the steps of one scenario, each chained one on the caches of the one before.

        Args:
            steps: The runs.
            seed: Of the inputs: the same for all models that are compared.
            tick: Called after each run.
            more: Inputs that this model has beside the others'.

        Yields:
            The outputs of each run, by name.

        Raises:
            RunError: ONNX Runtime refuses the inputs.
        """
        before: Arrays = {}
        for index, step in enumerate(steps):
            feeds = make_feeds(self._interface, step, (seed, index)) | (more or {})
            if step.chained:
                for cache in self._interface.caches:
                    if cache.past:
                        feeds[cache.past] = before[cache.present]
            try:
                outputs = self._session.run(list(self._interface.outputs), feeds)
            except Exception as error:  # Several unrelated types here, too.
                raise RunError(_first_line(error)) from error
            before = dict(zip(self._interface.outputs, map(np.asarray, outputs), strict=True))
            tick()
            yield before


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
