"""Attention nodes over a cache, written by hand, with masks of all kinds."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from numpy.typing import NDArray

import lean_attention

WIDTH = 16
INPUTS = (
    "float[B,S,32] query, float[B,S,32] key, float[B,S,32] value, float[B,2,P,16] past_key, "
    "float[B,2,P,16] past_value, int64[B,T] attention_mask"
)
OUTPUTS = "float[B,S,32] output, float[B,2,T,16] present_key, float[B,2,T,16] present_value"
Arrays = dict[str, NDArray[np.generic]]


def parsed(body: str, inputs: str = INPUTS, outputs: str = OUTPUTS) -> onnx.ModelProto:
    """A model from ONNX's text form, operator set 23, with the shapes that ONNX infers."""
    opsets = '<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{opsets} g ({inputs}) => ({outputs}) {{ {body} }}")
    return onnx.shape_inference.infer_shapes(model)


def mask_nodes(seen: str = "LessOrEqual", hidden: str = "-3.0e38", more: str = "") -> str:
    """Nodes of a mask ``seen_keys``, and of ``bias``, both [B, 1, S, T].

    Args:
        seen: Compares the key's position with the query's.
        hidden: What is added to the scores of keys that are not seen.
        more: Nodes that compute ``visible``, [S, T], from ``causal``; by default its own value.
    """
    return f"""
        t = Shape <start = 1, end = 2> (attention_mask)
        s = Shape <start = 1, end = 2> (query)
        none = Constant <value_ints = [0]> ()
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        total = Squeeze (t, none)
        new = Squeeze (s, none)
        past = Sub (total, new)
        keys = Range (zero, total, one)
        rows = Range (past, total, one)
        last = Constant <value_ints = [1]> ()
        columns = Unsqueeze (rows, last)
        causal = {seen} (keys, columns)
        {more or "visible = Identity (causal)"}
        tokens = Cast <to = 9> (attention_mask)
        middle = Constant <value_ints = [1, 2]> ()
        padding = Unsqueeze (tokens, middle)
        seen_keys = And (visible, padding)
        shown = Constant <value_float = 0.0> ()
        hidden = Constant <value_float = {hidden}> ()
        bias = Where (seen_keys, shown, hidden)
    """


def feeds(model: onnx.ModelProto, batch: int, past: int, new: int, padded: bool = False) -> Arrays:
    """Random inputs; ``padded`` hides the first tokens of every sequence but the first."""
    rng = np.random.default_rng(past * 10 + new)
    sizes = {"B": batch, "P": past, "S": new, "T": past + new}
    made: Arrays = {}
    for value in model.graph.input:
        shape = [
            sizes[d.dim_param] if d.dim_param else d.dim_value
            for d in value.type.tensor_type.shape.dim
        ]
        made[value.name] = rng.normal(size=shape).astype(np.float32)
    mask = np.ones((batch, past + new), np.int64)
    if padded:
        mask[1:, : (past + new) // 2] = 0
    return made | {"attention_mask": mask}


def run(model: Path, inputs: Arrays) -> list[NDArray[np.generic]]:
    """Runs a model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    results: list[NDArray[np.generic]] = session.run(
        None, {name: array for name, array in inputs.items() if name in names}
    )
    return results


def assert_same(stock: Path, lean: Path, inputs: Arrays) -> None:
    """Both models say the same wherever a token is, not padding."""
    expected, found = run(stock, inputs), run(lean, inputs)
    mask = inputs["attention_mask"]
    tokens = mask[:, -inputs["query"].shape[1] :] == 1
    if expected[0].ndim == 4:
        expected[0], found[0] = (np.moveaxis(e, 1, 2) for e in (expected[0], found[0]))
    # A sum of rounded terms: of the scores over the head size, of the values over the keys.
    terms = WIDTH + mask.shape[1]
    tolerance = terms * np.finfo(np.float32).eps * np.abs(expected[0]).max()
    np.testing.assert_allclose(found[0][tokens], expected[0][tokens], rtol=0, atol=tolerance)
    for new, old in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(new, old)
