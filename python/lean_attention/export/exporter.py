"""``export_model``: checks first, then a child process, then one rename."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.export.catalogue import load_model
from lean_attention.export.plan import check_room, make_plan
from lean_attention.export.wheel import find_weights

__all__ = ["export_model"]

# What the model builder imports, and what reads GGUF files.
NEEDED_MODULES = ("torch", "transformers", "onnxruntime_genai", "onnx_ir", "onnxscript", "gguf")


def export_model(
    name: str,
    destination: str | os.PathLike[str],
    *,
    layers: int | None = None,
    precision: str = "fp32",
    int4_activations: str | None = None,
    hidden_scale: float = 1.0,
    vocab_size: int | None = None,
    seed: int = 0,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Builds one model of the catalogue as a folder that onnxruntime-genai runs.

    The attention is always the real one: heads, KV heads, head size, rotary settings, window.
    Random weights take the place of real ones, and the rest can be made smaller. Nothing needs a
    network, except real weights that are neither installed nor cached.

    The folder holds ``model.onnx`` and its data, ``genai_config.json``, the tokenizer (one token
    per byte for random models) and ``config.json``, so that transformers 4.57 and 5 read it too.
    onnxruntime-genai prefills a ``phi3`` model again when its 4,097th token comes.

    Args:
        name: One of ``model_names()``.
        destination: The folder to create; its parent must exist, it must not.
        layers: The number of decoder layers; 2 by default, all of them for real weights.
        precision: ``fp32`` or ``int4`` for the CPU execution provider (cache in float32),
            ``fp16`` for CUDA (it loads on the CPU provider as well).
        int4_activations: With ``int4`` only: what its matrices are multiplied with. ``int8``, the
            default, is the model builder's and the fast one; ``fp32`` takes about twice as long,
            and its tokens do not depend on the last bits of the attention.
        hidden_scale: In (0, 1]: multiplies the MLP's width and the vocabulary, and the hidden
            size unless the model has LongRoPE, each rounded to a multiple of 64. optimum takes
            the head size to be hidden_size / num_heads: keep 1.0 for it.
        vocab_size: The vocabulary itself, in place of the scaled one; at least 259.
        seed: Seeds the random weights.
        report: Called with one line as each stage begins.

    Returns:
        The absolute path of the folder.

    Raises:
        LeanAttentionError: An unknown name, a bad value, a destination that exists, a
            missing package, too little memory or disk, no network for real weights, or a model
            that does not equal its original. The destination does not exist then.
    """
    report = report or (lambda line: None)
    target = Path(destination).absolute()
    sizes: dict[str, Any] = {
        "layers": layers,
        "precision": precision,
        "int4_activations": int4_activations,
        "hidden_scale": hidden_scale,
        "vocab_size": vocab_size,
        "seed": seed,
    }
    spec = load_model(name)
    plan = make_plan(spec, **sizes)
    _check_target(target)
    _check_packages()
    check_room(plan, target.parent)
    weights = None if spec.weights is None else find_weights(spec.weights, report)
    with _scratch_folder(target) as scratch:
        result = scratch / "result"
        job = {
            "name": name,
            "sizes": sizes,
            "weights": None if weights is None else str(weights),
            "scratch": str(scratch),
            "result": str(result),
        }
        _run_worker(job, scratch, report)
        _check_target(target)
        result.rename(target)
    return target


def _check_target(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise LeanAttentionError(
            f"{target} exists and is never overwritten: choose another destination or remove it"
        )
    if not target.parent.is_dir():
        raise LeanAttentionError(f"{target.parent} is not a folder: create it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise LeanAttentionError(f"{target.parent} cannot be written to: choose another place")


def _check_packages() -> None:
    missing = [module for module in NEEDED_MODULES if find_spec(module) is None]
    if missing:
        raise LeanAttentionError(
            f"exporting needs {', '.join(missing)}: pip install 'lean-attention[genai]'"
        )


@contextlib.contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target, on its file system, gone at the end whatever happens."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_worker(job: dict[str, Any], scratch: Path, report: Callable[[str], None]) -> None:
    job_file, log = scratch / "job.json", scratch / "worker.log"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-m", "lean_attention.export.worker", str(job_file)]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    error = None
    with (
        log.open("wb") as log_stream,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log_stream,
            stdin=subprocess.DEVNULL,
            env=environment,
            text=True,
        ) as worker,
    ):
        try:
            assert worker.stdout is not None
            for line in worker.stdout:
                message = json.loads(line)
                if "stage" in message:
                    report(message["stage"])
                error = message.get("error", error)
        except BaseException:
            worker.kill()
            worker.wait()
            raise
    if error is not None:
        raise LeanAttentionError(error)
    if worker.returncode == -signal.SIGKILL:
        raise LeanAttentionError(
            f"exporting {job['name']} was killed, most likely for lack of memory: export fewer "
            "layers or a smaller hidden scale"
        )
    if worker.returncode != 0:
        raise LeanAttentionError(_failure(job["name"], log))


def _failure(name: str, log: Path) -> str:
    """Keeps the worker's output, and returns the line that names its last error and that file."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    handle, kept = tempfile.mkstemp(prefix="lean-attention-export-", suffix=".log")
    os.close(handle)
    shutil.copyfile(log, kept)
    reason = lines[-1] if lines else "the process ended without a word"
    return f"exporting {name} failed: {reason} (all of its output is in {kept})"
