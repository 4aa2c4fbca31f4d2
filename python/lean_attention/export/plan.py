"""Settles the sizes of one export, and whether this machine has room for it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.export.catalogue import ModelSpec
from lean_attention.export.tokenizer import NUM_BYTE_TOKENS

__all__ = [
    "DEFAULT_LAYERS",
    "INT4_ACTIVATIONS",
    "PRECISIONS",
    "ExportPlan",
    "check_room",
    "make_plan",
]

# Enough for a chain of caches, and small: the real numbers of layers are 30 to 40.
DEFAULT_LAYERS = 2

# The builder makes fp16 models for the CUDA execution provider alone; they load on the CPU too.
PRECISIONS = {"fp32": "cpu", "int4": "cpu", "fp16": "cuda"}

# What an int4 matrix is multiplied with, and MatMulNBits' accuracy_level for it. int8 is the
# builder's default and the fast one (12 ms a token of SmolLM2-135M, where fp32 takes 27), but its
# rounding carries a difference of 1e-6 in the attention to 0.7 in the logits: two exact attentions
# then part company after a few tokens. With fp32 they do not.
INT4_ACTIVATIONS = {"int8": 4, "fp32": 1}

# Widths stay multiples of this: int4 quantises blocks of 32 along a row.
WIDTH_STEP = 64

SMALLEST_VOCABULARY = -(-NUM_BYTE_TOKENS // WIDTH_STEP) * WIDTH_STEP

# Resident before any weight: torch, transformers, the builder.
BASE_MEMORY = 1 << 30

# Copies of the float32 weights resident at the peak: 2.1 (fp32) to 2.4 (int4) were measured.
COPIES_IN_MEMORY = 2.5

STORED_BYTES_PER_WEIGHT = {"fp32": 4.0, "fp16": 2.0, "int4": 0.75}


@dataclass(frozen=True)
class ExportPlan:
    """Everything that decides what an export writes.

    Attributes:
        spec: The model as published.
        config: Its ``config.json`` with the sizes of this export.
        precision: A key of ``PRECISIONS``.
        int4_activations: A key of ``INT4_ACTIVATIONS``, or None where the precision is not int4.
        seed: Seeds the random weights.
    """

    spec: ModelSpec
    config: dict[str, Any]
    precision: str
    int4_activations: str | None
    seed: int

    @property
    def num_layers(self) -> int:
        """The number of decoder layers exported."""
        return int(self.config["num_hidden_layers"])

    def num_weights(self, num_layers: int) -> int:
        """Counts the weights of this model with ``num_layers`` layers; norms and biases aside."""
        hidden, mlp = self.config["hidden_size"], self.config["intermediate_size"]
        query = self.spec.num_heads * self.spec.head_size
        key_value = 2 * self.spec.kv_num_heads * self.spec.head_size
        # Phi-3 gates its MLP (gate, up, down); Phi-2 does not (fc1, fc2).
        mlp_matrices = 2 if self.config["model_type"] == "phi" else 3
        layer = hidden * (2 * query + key_value) + mlp_matrices * hidden * mlp
        tables = 1 if self.config["tie_word_embeddings"] else 2
        return int(num_layers * layer + tables * self.config["vocab_size"] * hidden)

    def memory_bytes(self, num_layers: int) -> int:
        """Estimates the peak memory of an export with ``num_layers`` layers."""
        return int(BASE_MEMORY + COPIES_IN_MEMORY * 4 * self.num_weights(num_layers))

    def disk_bytes(self, num_layers: int) -> int:
        """Estimates the disk space of one: the float32 folder the builder reads, and its result."""
        stored = 4 + STORED_BYTES_PER_WEIGHT[self.precision]
        return int(stored * self.num_weights(num_layers))


def make_plan(
    spec: ModelSpec,
    *,
    layers: int | None,
    precision: str,
    int4_activations: str | None,
    hidden_scale: float,
    vocab_size: int | None,
    seed: int,
) -> ExportPlan:
    """Applies the sizes asked for to a published configuration.

    Raises:
        LeanAttentionError: A value is out of range or fits no other, or real weights were to be
            cut.
    """
    if precision not in PRECISIONS:
        raise LeanAttentionError(
            f"precision {precision!r} is not one of {', '.join(PRECISIONS)}: choose one of these"
        )
    int4_activations = _checked_activations(precision, int4_activations)
    if seed < 0:
        raise LeanAttentionError(f"the seed is {seed}; it must be 0 or more")
    config = dict(spec.config)
    # Spelled out, because hidden_size / num_heads no longer gives it once hidden_size is scaled.
    config["head_dim"] = spec.head_size
    if spec.weights is not None:
        if layers not in (None, spec.num_layers) or hidden_scale != 1.0 or vocab_size is not None:
            raise LeanAttentionError(
                f"{spec.name} has real weights and is exported whole: leave out the number of "
                "layers, the hidden scale and the vocabulary size"
            )
    else:
        config["num_hidden_layers"] = _checked_layers(spec, layers)
        _scale(config, spec, hidden_scale, vocab_size)
    return ExportPlan(spec, config, precision, int4_activations, seed)


def check_room(plan: ExportPlan, folder: Path) -> None:
    """Refuses an export for which the free memory, or the disk of ``folder``, is too small.

    Raises:
        LeanAttentionError: It would not fit; the message says how many layers would.
    """
    free = {"memory": _free_memory(), "disk space": shutil.disk_usage(folder).free}
    estimate = {"memory": plan.memory_bytes, "disk space": plan.disk_bytes}

    def fits(num_layers: int) -> bool:
        return all(estimate[kind](num_layers) <= free[kind] for kind in free)

    if fits(plan.num_layers):
        return
    kind = next(kind for kind in free if estimate[kind](plan.num_layers) > free[kind])
    most = next((n for n in range(plan.num_layers - 1, 0, -1) if fits(n)), 0)
    remedy = (
        f"--layers {most} would fit"
        if most
        else "not even one layer fits: lower --hidden-scale or --vocab-size"
    )
    raise LeanAttentionError(
        f"{plan.spec.name} with {plan.num_layers} layers needs about "
        f"{_gigabytes(estimate[kind](plan.num_layers))} of {kind}, and "
        f"{_gigabytes(free[kind])} are free; {remedy}"
    )


def _checked_activations(precision: str, activations: str | None) -> str | None:
    if activations is not None and activations not in INT4_ACTIVATIONS:
        raise LeanAttentionError(
            f"int4 activations {activations!r} are not one of {', '.join(INT4_ACTIVATIONS)}: "
            "choose one of these"
        )
    if precision == "int4":
        return activations or "int8"
    if activations is not None:
        raise LeanAttentionError(
            f"int4 activations {activations!r} were asked for with precision {precision!r}: "
            "leave them out, or choose precision int4"
        )
    return None


def _checked_layers(spec: ModelSpec, layers: int | None) -> int:
    if layers is None:
        return DEFAULT_LAYERS
    if not 1 <= layers <= spec.num_layers:
        raise LeanAttentionError(
            f"{layers} layers were asked for; {spec.name} has 1 to {spec.num_layers}"
        )
    return layers


def _scale(
    config: dict[str, Any], spec: ModelSpec, hidden_scale: float, vocab_size: int | None
) -> None:
    if not 0.0 < hidden_scale <= 1.0:
        raise LeanAttentionError(f"the hidden scale is {hidden_scale}; it must be in (0, 1]")
    published_vocabulary = int(config["vocab_size"])
    if vocab_size is not None and not NUM_BYTE_TOKENS <= vocab_size <= published_vocabulary:
        raise LeanAttentionError(
            f"a vocabulary of {vocab_size} was asked for; {spec.name} takes {NUM_BYTE_TOKENS} "
            f"(every byte and the special tokens) to {published_vocabulary}"
        )

    def scaled(width: int) -> int:
        return max(WIDTH_STEP, round(width * hidden_scale / WIDTH_STEP) * WIDTH_STEP)

    if hidden_scale != 1.0:
        config["intermediate_size"] = scaled(int(config["intermediate_size"]))
        # transformers derives the length of the LongRoPE factor lists from hidden_size.
        if not spec.is_longrope:
            config["hidden_size"] = scaled(int(config["hidden_size"]))
        config["vocab_size"] = max(scaled(published_vocabulary), SMALLEST_VOCABULARY)
        while config["vocab_size"] in _other_widths(config, spec):
            config["vocab_size"] += WIDTH_STEP
    if vocab_size is not None:
        if vocab_size in _other_widths(config, spec):
            raise LeanAttentionError(
                f"a vocabulary of {vocab_size} equals the width of another matrix, by which the "
                f"model builder tells them apart: try {vocab_size - 1}"
            )
        config["vocab_size"] = vocab_size


def _other_widths(config: dict[str, Any], spec: ModelSpec) -> set[int]:
    """The output widths of a layer's matrices.

    The model builder takes any matrix whose width is the vocabulary's for the language model head.
    """
    query, key_value = spec.num_heads * spec.head_size, spec.kv_num_heads * spec.head_size
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    return {query, key_value, query + 2 * key_value, hidden, mlp, 2 * mlp}


def _free_memory() -> int:
    """Returns the bytes that can be had without swapping (Linux's MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LeanAttentionError("/proc/meminfo has no MemAvailable line: export on a newer Linux")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
