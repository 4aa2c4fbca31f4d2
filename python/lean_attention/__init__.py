"""LeanAttention for ONNX Runtime: an exact, stream-scheduled decode attention operator.

Load the operator into a session::

    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    session = onnxruntime.InferenceSession("rewritten.onnx", options)

Put it into a model in place of ``com.microsoft.GroupQueryAttention``::

    print(lean_attention.rewrite("model.onnx", "rewritten.onnx"))
"""

from importlib.util import find_spec

if find_spec("onnxruntime") is None:
    raise ImportError(
        "lean_attention needs ONNX Runtime and does not choose one for you: "
        "pip install 'lean-attention[cpu]' or pip install 'lean-attention[gpu]' "
        "(one of them per environment: they install into the same folder)"
    )

from lean_attention._version import __version__
from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import get_library_path, register_custom_ops
from lean_attention.padding import check_padding
from lean_attention.rewrite import inspect, restore, rewrite

__all__ = [
    "LeanAttentionError",
    "__version__",
    "check_padding",
    "get_library_path",
    "inspect",
    "register_custom_ops",
    "restore",
    "rewrite",
]
