"""A decoder model: its session, its inputs and outputs, its limits."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import register_custom_ops
from lean_attention.runtime.config import GENAI_CONFIG, GenaiConfig
from lean_attention.runtime.graph import GraphFacts, read_graph
from lean_attention.runtime.reasons import first_line

__all__ = ["DecoderModel"]

# The provider's name in ONNX Runtime, and the device that its tensors live on.
PROVIDERS = {
    "cpu": ("CPUExecutionProvider", "cpu"),
    "cuda": ("CUDAExecutionProvider", "cuda"),
    "rocm": ("ROCMExecutionProvider", "cuda"),
}

DTYPES: dict[str, npt.DTypeLike] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}

# A byte of the last holds two 4-bit integers.
CACHE_DTYPES: dict[str, npt.DTypeLike] = {
    **DTYPES,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}

# ONNX Runtime takes any number and starts that many.
MAX_THREADS = 1024

Configure = Callable[[onnxruntime.SessionOptions], None]


@dataclass(frozen=True)
class DecoderModel:
    """A decoder model, loaded; create it with `load`.

    A model is what several generations share. What one generation changes (its caches, its
    lengths) is a `DecodeSession`.

    Attributes:
        path: The model file.
        session: The ``onnxruntime.InferenceSession``.
        device: Where the caches live: ``cpu`` or ``cuda``.
        num_layers: Attention layers, each with a key and a value cache.
        kv_num_heads: Key and value heads of a layer.
        head_size: Elements of a head.
        vocab_size: Entries of a row of logits.
        cache_dtype: float32, float16, or of a quantised cache int8 or, for int4, uint8.
        logits_dtype: float32 or float16.
        takes_position_ids: Whether ``position_ids`` is an input.
        last_logits_only: Whether the logits are [B, 1, V] for the last position of a run, instead
            of [B, S, V].
        context_length: The most tokens that a row may hold, prompt and answer together.
        stop_tokens: The ids that end an answer; may be empty.
        pad_token: The id that fills the right of short prompts.
        rope_switch: LongRoPE: the length above which another rotary table holds; else None.
        window_rows: The fewest rows that a cache may have.
    """

    path: Path
    session: onnxruntime.InferenceSession
    device: str
    num_layers: int
    kv_num_heads: int
    head_size: int
    vocab_size: int
    cache_dtype: np.dtype[Any]
    logits_dtype: np.dtype[Any]
    takes_position_ids: bool
    last_logits_only: bool
    context_length: int
    stop_tokens: tuple[int, ...]
    pad_token: int
    rope_switch: int | None
    window_rows: int

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        threads: int | None = None,
        provider: str = "cpu",
        spin_between_runs: bool = True,
        context_length: int | None = None,
        stop_tokens: Sequence[int] | None = None,
        configure: Configure | None = None,
    ) -> "DecoderModel":
        """Loads a model and checks that it is a decoder that the runtime can drive.

        The operator library is registered when the model uses ``com.leanattention``.

        Args:
            path: A model file, or a folder with a ``genai_config.json``.
            threads: Threads of the session, 1 to 1024; None leaves the choice to ONNX Runtime.
            provider: ``cpu``, ``cuda`` or ``rocm``.
            spin_between_runs: Whether the session's threads spin after a run too, waiting for
                the next. Off when several sessions are timed in one process, whose pools steal
                the cores from each other.
            context_length: Overrides the configuration's; at most what the rotary tables hold.
            stop_tokens: Overrides the configuration's.
            configure: Called with the ``onnxruntime.SessionOptions`` before the session is
                created, for profiling and every other setting.

        Raises:
            LeanAttentionError: No such file, an unreadable one, a session that ONNX Runtime
                refuses, an input or output that is missing or of an unknown type, a context length
                that is unknown or beyond the rotary tables, or an unknown provider.
        """
        if provider not in PROVIDERS:
            raise LeanAttentionError(
                f"unknown provider {provider!r}; choose one of {', '.join(PROVIDERS)}"
            )
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise LeanAttentionError(f"threads must be 1 to {MAX_THREADS}, not {threads}")
        file, config = _locate(Path(path))
        facts = read_graph(file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.add_session_config_entry(
            "session.force_spinning_stop", "0" if spin_between_runs else "1"
        )
        if facts.uses_custom_ops:
            register_custom_ops(options)
        if configure is not None:
            configure(options)
        name, device = PROVIDERS[provider]
        if name not in onnxruntime.get_available_providers():
            raise LeanAttentionError(
                f"this ONNX Runtime {onnxruntime.__version__} has no {name}, only "
                f"{', '.join(onnxruntime.get_available_providers())}; install the package that "
                "has it"
            )
        try:
            session = onnxruntime.InferenceSession(file, options, providers=[name])
        except Exception as error:  # ONNX Runtime raises several unrelated types
            raise LeanAttentionError(
                f"ONNX Runtime cannot load {file}: {first_line(error)}"
            ) from error
        if name not in session.get_providers():
            raise LeanAttentionError(
                f"{name} could not start and ONNX Runtime fell back to "
                f"{', '.join(session.get_providers())}; its warning says why"
            )
        layers = _check_io(session, file, facts)
        cache = _inputs(session)["past_key_values.0.key"]
        shape, cache_dtype = cache.shape, np.dtype(CACHE_DTYPES[cache.type])
        width = shape[3] * _values_per_element(cache_dtype) if isinstance(shape[3], int) else None
        head_size = next(
            (size for size in (width, config.head_size, facts.head_size) if isinstance(size, int)),
            None,
        )
        if head_size is None or head_size < 1 or not isinstance(shape[1], int) or shape[1] < 1:
            raise LeanAttentionError(
                f"the heads of {file} have no fixed size; export it with the onnxruntime-genai "
                "model builder, whose genai_config.json names it"
            )
        logits = _outputs(session)["logits"]
        pads = config.pad_tokens
        return cls(
            path=file,
            session=session,
            device=device,
            num_layers=layers,
            kv_num_heads=shape[1],
            head_size=head_size,
            vocab_size=logits.shape[2],
            cache_dtype=cache_dtype,
            logits_dtype=np.dtype(DTYPES[logits.type]),
            takes_position_ids="position_ids" in _inputs(session),
            last_logits_only=logits.shape[1] == 1,
            context_length=_context_length(context_length, config, facts, file),
            stop_tokens=config.stop_tokens if stop_tokens is None else tuple(stop_tokens),
            pad_token=pads[0] if pads and 0 <= pads[0] < logits.shape[2] else 0,
            rope_switch=facts.rope_switch,
            window_rows=facts.window_rows,
        )

    @property
    def folder(self) -> Path:
        """The folder of the model file, where its tokenizer lies."""
        return self.path.parent

    @property
    def cache_width(self) -> int:
        """Elements of ``cache_dtype`` in a row of a cache; of 4-bit integers, half a head's."""
        return -(-self.head_size // _values_per_element(self.cache_dtype))


def _values_per_element(cache_dtype: np.dtype[Any]) -> int:
    return 2 if cache_dtype == np.uint8 else 1


def _locate(path: Path) -> tuple[Path, GenaiConfig]:
    """Returns the model file and what the folder's genai_config.json says, if there is one."""
    if not path.exists():
        raise LeanAttentionError(f"there is no model at {path}")
    folder = path if path.is_dir() else path.parent
    config_path = folder / GENAI_CONFIG
    if not config_path.is_file():
        if path.is_dir():
            raise LeanAttentionError(
                f"{path} has no {GENAI_CONFIG}; name the model file in it instead"
            )
        return path, GenaiConfig()
    config = GenaiConfig.read(config_path)
    return (config.model_file(config_path) if path.is_dir() else path), config


def _inputs(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    return {value.name: value for value in session.get_inputs()}


def _outputs(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    return {value.name: value for value in session.get_outputs()}


def _check_io(session: onnxruntime.InferenceSession, file: Path, facts: GraphFacts) -> int:
    """Checks names and types of inputs and outputs; returns the number of layers."""
    inputs, outputs = _inputs(session), _outputs(session)
    layers = sum(bool(re.fullmatch(r"past_key_values\.\d+\.key", name)) for name in inputs)
    caches = [f"{i}.{part}" for i in range(max(layers, 1)) for part in ("key", "value")]
    missing = [
        f"{kind} {name}"
        for kind, known, wanted in (
            ("input", inputs, ["input_ids", "attention_mask"]),
            ("input", inputs, [f"past_key_values.{cache}" for cache in caches]),
            ("output", outputs, ["logits"]),
            ("output", outputs, [f"present.{cache}" for cache in caches]),
        )
        for name in wanted
        if name not in known
    ]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise LeanAttentionError(
            f"{file} is not a decoder with a cache: it has no {', '.join(missing[:4])}{more}; "
            "export it with the onnxruntime-genai model builder"
        )
    known = {"input_ids", "attention_mask", "position_ids"}
    known.update(f"past_key_values.{cache}" for cache in caches)
    if unknown := sorted(inputs.keys() - known):
        raise LeanAttentionError(
            f"{file} takes {', '.join(unknown[:4])}, which the runtime does not know how to feed"
        )
    for name, value in (inputs | outputs).items():
        integer = name in ("input_ids", "attention_mask", "position_ids")
        is_cache = name.startswith(("past_key", "present."))
        types = tuple(CACHE_DTYPES if is_cache else DTYPES)
        if integer:
            types = ("tensor(int64)",)
        used = integer or is_cache or name == "logits"
        if used and value.type not in types:
            raise LeanAttentionError(
                f"{name} of {file} is {value.type}; the runtime handles {', '.join(types)}"
            )
    logits = outputs["logits"].shape or []
    if len(logits) != 3 or not isinstance(logits[2], int) or logits[2] < 1:
        raise LeanAttentionError(
            f"logits of {file} has the shape {logits}, not [batch, sequence, "
            "vocabulary] with a fixed vocabulary"
        )
    for cache in caches:
        shape = inputs[f"past_key_values.{cache}"].shape or []
        if len(shape) != 4:
            raise LeanAttentionError(
                f"past_key_values.{cache} of {file} has the shape {shape}, not [batch, heads, "
                "tokens, head size]; export it with the onnxruntime-genai model builder"
            )
    keys = [f"past_key_values.{i}.key" for i in range(layers)]
    if plain := [key for key in keys if key not in facts.appending_layers]:
        raise LeanAttentionError(
            f"{plain[0]} of {file} does not go into a GroupQueryAttention node, which appends to "
            "a cache in place; export it with the onnxruntime-genai model builder"
        )
    return layers


def _context_length(wanted: int | None, config: GenaiConfig, facts: GraphFacts, file: Path) -> int:
    """Returns the argument, else the configuration's value, else the rows of the rotary tables."""
    length = next(
        (n for n in (wanted, config.context_length, facts.rotary_rows) if n is not None), None
    )
    if length is None:
        raise LeanAttentionError(f"no file names the context length of {file}; pass it (--context)")
    if length < 1:
        raise LeanAttentionError(f"a context length must be a positive number, not {length!r}")
    if facts.rotary_rows is not None and length > facts.rotary_rows:
        raise LeanAttentionError(
            f"a context of {length} tokens is beyond the {facts.rotary_rows} rows of the rotary "
            f"tables in {file}"
        )
    return length
