"""What the runtime takes from the genai_config.json of a model folder, checked."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.model_file import check_location
from lean_attention.runtime.reasons import first_line

__all__ = ["GENAI_CONFIG", "GenaiConfig"]

GENAI_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class GenaiConfig:
    """The limits and token ids of a decoder; without a file there are none.

    Attributes:
        filename: The decoder's model file as the configuration has it, not yet checked.
        head_size: Elements of a head, or None where the file names none.
        context_length: The most tokens of a row, or None where the file names none.
        stop_tokens: The ids that end an answer; may be empty.
        pad_tokens: The ids that may fill short prompts; may be empty.
    """

    filename: Any = None
    head_size: int | None = None
    context_length: int | None = None
    stop_tokens: tuple[int, ...] = ()
    pad_tokens: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "GenaiConfig":
        """Reads a configuration.

        Args:
            path: The file.

        Raises:
            LeanAttentionError: The file is not JSON, describes no decoder, or has a value of
                another kind than onnxruntime-genai writes.
        """
        try:
            model = json.loads(path.read_text(encoding="utf-8"))["model"]
            decoder = model["decoder"]
            filename = decoder["filename"]
        # Too deep a nesting is a RecursionError.
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise LeanAttentionError(
                f"{path} is not a configuration of onnxruntime-genai for a decoder "
                f"({type(error).__name__}: {first_line(error)}); export the model again"
            ) from error
        return cls(
            filename=filename,
            head_size=_size(path, decoder, "head_size"),
            context_length=_size(path, model, "context_length"),
            stop_tokens=_token_ids(path, model, "eos_token_id"),
            pad_tokens=_token_ids(path, model, "pad_token_id"),
        )

    def model_file(self, path: Path) -> Path:
        """Returns the model file that the configuration names.

        Args:
            path: The configuration's file.

        Raises:
            LeanAttentionError: The name is not that of a file inside the folder.
        """
        if not isinstance(self.filename, str) or not self.filename:
            raise LeanAttentionError(
                f"decoder.filename in {path} is {_shown(self.filename)}, not the name of a model "
                "file; export the model again"
            )
        file = check_location(path, self.filename)
        if not file.is_file():
            raise LeanAttentionError(f"{path} names {self.filename}, which is not in the folder")
        return file


def _size(path: Path, values: dict[str, Any], name: str) -> int | None:
    """Returns a positive whole number, or None where there is none."""
    value = values.get(name)
    if value is not None and (not _is_integer(value) or value < 1):
        raise LeanAttentionError(
            f"{name} in {path} is {_shown(value)}, not a positive whole number; export the model "
            "again"
        )
    return value


def _token_ids(path: Path, values: dict[str, Any], name: str) -> tuple[int, ...]:
    """Returns a token id or a list of them; none where there is none."""
    value = values.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(map(_is_integer, ids)):
        raise LeanAttentionError(
            f"{name} in {path} is {_shown(value)}, not a token id or a list of them; export the "
            "model again"
        )
    return tuple(ids)


def _is_integer(value: Any) -> bool:
    # JSON's true is an int to Python.
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
