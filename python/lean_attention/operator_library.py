"""Where the operator library lies, and how a session loads it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lean_attention.errors import LeanAttentionError

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["LIBRARY_NAME", "get_library_path", "register_custom_ops"]

LIBRARY_NAME = "liblean_attention.so"


def get_library_path() -> Path:
    """Returns the absolute path of the operator library.

    The environment variable ``LEAN_ATTENTION_LIBRARY`` names another build of it, for tests and
    bug reports.

    Raises:
        LeanAttentionError: There is no library at that path.
    """
    override = os.environ.get("LEAN_ATTENTION_LIBRARY")
    path = Path(override).resolve() if override else Path(__file__).parent / LIBRARY_NAME
    if not path.is_file():
        source = "LEAN_ATTENTION_LIBRARY" if override else "this installation"
        raise LeanAttentionError(
            f"{source} has no operator library at {path}; reinstall with 'pip install .' from a "
            "checkout, or set LEAN_ATTENTION_LIBRARY to a built liblean_attention.so"
        )
    return path


def register_custom_ops(session_options: "onnxruntime.SessionOptions") -> None:
    """Makes ``com.leanattention`` operators known to the sessions created with these options.

    Args:
        session_options: An ``onnxruntime.SessionOptions``, changed in place.

    Raises:
        LeanAttentionError: The library is missing, or this ONNX Runtime refuses it.
    """
    path = get_library_path()
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # ONNX Runtime raises several unrelated types.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise LeanAttentionError(f"ONNX Runtime refused {path}: {reason}") from error
