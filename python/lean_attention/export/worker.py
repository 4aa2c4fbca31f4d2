"""The child process of an export: ``python -m lean_attention.export.worker JOB.json``.

torch, transformers and the model builder print, log, grow and change the interpreter's path; here
they may. Standard output carries one JSON object a line for the parent: ``{"stage": TEXT}`` as
each stage begins, ``{"error": TEXT}`` for a failure that the user can mend. All else goes to
standard error, which the parent keeps for the case of another failure.
"""

import contextlib
import json
import os
import select
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from lean_attention.errors import LeanAttentionError
from lean_attention.export.builder import build_folder, check_logits, reference_logits
from lean_attention.export.catalogue import load_model
from lean_attention.export.plan import make_plan
from lean_attention.export.random_weights import make_random_model
from lean_attention.export.real_weights import make_real_model

__all__ = ["main"]


def main() -> int:
    """Runs the job; returns the exit status."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    channel = sys.stdout
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    with contextlib.redirect_stdout(sys.stderr):
        try:
            _export(job, channel)
        except LeanAttentionError as error:
            _send(channel, "error", str(error))
            return 1
    return 0


def _export(job: dict[str, Any], channel: TextIO) -> None:
    plan = make_plan(load_model(job["name"]), **job["sizes"])
    scratch, result = Path(job["scratch"]), Path(job["result"])
    if job["weights"] is None:
        _send(channel, "stage", f"Making {plan.num_layers} layers of random weights")
        model, tokenizer = make_random_model(plan)
    else:
        _send(channel, "stage", "Reading the real weights and checking their Phi-3 form")
        model, tokenizer = make_real_model(plan, Path(job["weights"]))
    expected = reference_logits(model)
    source = scratch / "huggingface"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    del model
    _send(channel, "stage", f"Building the {plan.precision} ONNX model")
    build_folder(plan, source, tokenizer, result)
    shutil.rmtree(source)
    _send(channel, "stage", "Comparing its logits with the original's")
    difference = check_logits(plan, result, expected)
    print(f"largest difference of a logit, relative: {difference:.2e}")


def _end_with_parent(channel: TextIO) -> None:
    """Ends this process when the parent, the one reader of the channel, is gone."""
    waiter = select.poll()
    # No event is asked for: the loss of the reader is reported in any case.
    waiter.register(channel.fileno(), 0)
    waiter.poll()
    os._exit(1)


def _send(channel: TextIO, kind: str, text: str) -> None:
    print(json.dumps({kind: text}), file=channel, flush=True)


if __name__ == "__main__":
    sys.exit(main())
