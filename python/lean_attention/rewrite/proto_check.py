"""What a model file must hold before its structure is built: texts that are texts, whole numbers.

protobuf reads texts that are not UTF-8, and external data is described by free text.
"""

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

from lean_attention.errors import LeanAttentionError

__all__ = ["check_proto"]

# Of a number of bytes: 2**63 has 19.
MAX_DIGITS = 19


def check_proto(path: Path, message: Message) -> None:
    """Checks a message of a model file, and all that it holds.

    Args:
        path: The file that it was read from, for the error.
        message: The model, or a part of it.

    Raises:
        LeanAttentionError: A text is not valid UTF-8, or the offset or length of external data
            is not a number of bytes.
    """
    if isinstance(message, onnx.TensorProto):
        _check_external_data(path, message)
    for field, content in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [content] if isinstance(content, Message) else content:
                check_proto(path, part)
        elif field.type == field.TYPE_STRING:
            _check_texts(path, field.full_name, content)


def _check_texts(path: Path, field: str, content: str | bytes | Iterable[str | bytes]) -> None:
    for text in [content] if isinstance(content, str | bytes) else content:
        # protobuf hands out what it cannot decode as bytes.
        if isinstance(text, bytes):
            raise LeanAttentionError(
                f"{path} is not a valid ONNX model: {field} {text!r} is not UTF-8; export or "
                "download it again"
            )


def _check_external_data(path: Path, tensor: onnx.TensorProto) -> None:
    for entry in tensor.external_data:
        if entry.key not in ("offset", "length"):
            continue
        digits = entry.value
        if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
            raise LeanAttentionError(
                f"{path} is not a valid ONNX model: the external data of the tensor "
                f"{tensor.name!r} has the {entry.key} {digits!r}, which is not a number of bytes; "
                "export or download it again"
            )
