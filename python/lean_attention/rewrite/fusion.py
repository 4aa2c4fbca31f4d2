"""onnxscript's fusions for ONNX Runtime, before the rules: norms and activations.

Attention itself is left to the rules, which take it as it is written. Rotary embeddings stay as
they are too: onnxscript 0.7 fuses none of the exports that are tested into ONNX Runtime's operator.
"""

import contextlib
import importlib
import io
import logging

import onnx_ir as ir

from lean_attention.errors import LeanAttentionError

__all__ = ["fuse"]

FUSIONS = (
    ("erfgelu", "fuse_erfgelu"),
    ("rms_normalization", "fuse_rms_normalization"),
    ("skip_normalization", "fuse_skip_layer_normalization"),
    ("skip_normalization", "fuse_skip_rms_normalization"),
    ("gelu", "fuse_gelu"),
    ("bias_gelu", "fuse_bias_gelu"),
)
"""In onnxscript's order: its module, and its function there."""
PACKAGE = "onnxscript.rewriter.ort_fusions"


def fuse(model: ir.Model) -> list[str]:
    """Fuses nodes around attention into ONNX Runtime's own operators, in place.

    Args:
        model: The model to change. Its weights stay where they are.

    Returns:
        What was fused, a line for each of onnxscript's fusions that found anything.

    Raises:
        LeanAttentionError: onnxscript is not installed.
    """
    try:
        passes = importlib.import_module("onnx_ir.passes.common")
        modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name, _ in FUSIONS}
    except ImportError as error:
        raise LeanAttentionError(
            f"--fuse needs onnxscript ({error}): pip install 'lean-attention[genai]'"
        ) from error
    done = []
    # onnxscript prints what it found, and onnx_ir tells of shapes that an exporter got wrong.
    shapes_log = logging.getLogger("onnx_ir.passes.common.shape_inference")
    shapes_log.addFilter(_nothing)
    with contextlib.redirect_stdout(io.StringIO()):
        passes.ShapeInferencePass()(model)
        for module, name in FUSIONS:
            if count := getattr(modules[module], name)(model):
                done.append(f"{count} x {name.removeprefix('fuse_').replace('_', ' ')}")
    shapes_log.removeFilter(_nothing)
    if done:
        model.graph.opset_imports.setdefault("com.microsoft", 1)
    return done


def _nothing(_: logging.LogRecord) -> bool:
    return False
