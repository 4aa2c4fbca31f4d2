"""The call of onnxruntime-genai's model builder, and what other clients need beside its files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lean_attention.errors import LeanAttentionError
from lean_attention.export.plan import INT4_ACTIVATIONS, PRECISIONS, ExportPlan
from lean_attention.export.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["build_folder", "check_logits", "reference_logits"]

# Of the largest logit. int4 weights are other weights, so no bound holds for them.
LOGIT_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}

# The builder's default, symmetric rounding to nearest, leaves SmolLM2-135M repeating "The sky blue,
# the sky blue"; with these it answers as in float32.
INT4_SETTINGS = ("algo_config=k_quant", "is_symmetric=false")

CHECK_PROMPT = tuple(range(32, 48))


def build_folder(
    plan: ExportPlan, source: Path, tokenizer: "PreTrainedTokenizerFast", result: Path
) -> None:
    """Turns a Hugging Face folder into one for onnxruntime-genai, transformers and optimum.

    Args:
        plan: Names the precision, and the activations of int4.
        source: The folder that the builder reads.
        tokenizer: The model's tokenizer.
        result: The folder to write; created.
    """
    from onnxruntime_genai.models import builder

    provider = PRECISIONS[plan.precision]
    cache = str(source.parent / "cache")
    # Caches of the window's rows alone would have to hold 262,144 of them for Phi-3's 128k
    # models; the published ONNX models keep full caches as well.
    settings = ["windowed_kv_cache=false"]
    if plan.int4_activations is not None:
        settings += INT4_SETTINGS
        settings.append(f"accuracy_level={INT4_ACTIVATIONS[plan.int4_activations]}")
    place = ("", str(source), str(result), plan.precision, provider, cache)
    builder.create_model(*place, **builder.parse_extra_options(*place, settings))
    save_tokenizer(tokenizer, result, plan.config["max_position_embeddings"])
    config: dict[str, Any] = plan.config | {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "torch_dtype": "float16" if plan.precision == "fp16" else "float32",
    }
    # In the keys of transformers 4, as published: 5 reads them too, 4 does not read those of 5.
    (result / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def reference_logits(model: "PreTrainedModel") -> "NDArray[np.float32]":
    """Runs the original model on a fixed prompt.

    Returns:
        The logits of its last token, [vocab_size].
    """
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([CHECK_PROMPT])).logits[0, -1]
    return np.asarray(logits.float().numpy())


def check_logits(plan: ExportPlan, folder: Path, expected: "NDArray[np.float32]") -> float:
    """Compares the exported model with the original on the same prompt.

    Args:
        plan: Names the precision, and with it the tolerance.
        folder: The exported folder.
        expected: What ``reference_logits`` returned, [vocab_size].

    Returns:
        The largest difference of a logit, relative to the largest logit.

    Raises:
        LeanAttentionError: It is beyond the tolerance of the precision, or not a number.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    tokens = np.array([CHECK_PROMPT], dtype=np.int64)
    feeds = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    feeds["position_ids"] = np.arange(tokens.size, dtype=np.int64)[None]
    cache_type = np.float16 if plan.precision == "fp16" else np.float32
    empty = np.zeros((1, plan.spec.kv_num_heads, 0, plan.spec.head_size), cache_type)
    inputs = {value.name: feeds.get(value.name, empty) for value in session.get_inputs()}
    (logits,) = session.run(["logits"], inputs)
    difference = np.abs(logits[0, -1].astype(np.float32) - expected).max() / np.abs(expected).max()
    tolerance = LOGIT_TOLERANCE.get(plan.precision, np.inf)
    if not difference <= tolerance:
        raise LeanAttentionError(
            f"the exported {plan.spec.name} differs from the original by {difference:.1e} of the "
            f"largest logit, more than {tolerance:.0e}: try other versions of onnxruntime-genai "
            "and transformers"
        )
    return float(difference)
