"""A call as a program that stands alone: rebuilds the node and its inputs, runs both operators."""

import base64
import zlib
from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto

from fuzz.call import Call
from gqa_node import INPUTS, ONNX_TYPES

MAX_LITERAL = 48  # elements

HEAD = """\
import base64
import zlib

import lean_attention
import ml_dtypes
import numpy as np
import onnxruntime
from onnx import helper
from numpy import inf, nan


def unpack(dtype, shape, text):
    data = zlib.decompress(base64.b85decode(text))
    return np.frombuffer(data, dtype).reshape(shape)


"""

TAIL = """

def run(op_type, domain, attributes):
    names = [name if name in feeds else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        op_type, names, list(outputs), name="attention", domain=domain, **attributes
    )
    inputs = [
        helper.make_tensor_value_info(name, types[name], [None] * array.ndim)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(
        [node],
        "attention",
        inputs,
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    lean_attention.register_custom_ops(options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.copy(), types[name])
        for name, array in feeds.items()
    }
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        if shared and name.startswith("present_"):
            binding.bind_ortvalue_output(name, values[name.replace("present", "past")])
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    return binding.get_outputs()


results = {}
for op_type, domain, own in (
    ("GroupQueryAttention", "com.microsoft", ("schedule",)),
    ("LeanGroupQueryAttention", "com.leanattention", ()),
):
    kept = {name: value for name, value in attributes.items() if name not in own}
    try:
        results[op_type] = run(op_type, domain, kept)
    except Exception as error:
        results[op_type] = str(error)
    found = results[op_type]
    if not isinstance(found, str) and found[0].data_type() != "tensor(bfloat16)":
        found = found[0].numpy()
    print(op_type, found, sep="\\n", flush=True)
"""


def _as_code(array: NDArray[Any]) -> str:
    """An array as an expression: a literal, or packed where that would be long."""
    dtype = array.dtype.name
    kind = f"ml_dtypes.{dtype}" if dtype in ("bfloat16", "float8_e4m3fn") else f"np.{dtype}"
    if array.size <= MAX_LITERAL:
        literal = f"np.array({array.tolist()}, {kind})"
        return literal if array.size else f"np.empty({array.shape}, {kind})"
    text = base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()
    return f"unpack({kind}, {array.shape}, {text!r})"


def as_script(call: Call) -> str:
    """Returns a program that runs a call by the stock operator and by ours, and prints outputs.

    It leaves ``results``: of each operator its outputs as OrtValues, or the error's text.
    """
    node = call.node
    kind = ONNX_TYPES[call.dtype]
    cache_kind = ONNX_TYPES[call.feeds.get("past_key", call.feeds["query"]).dtype]
    outputs = {"output": (kind, [None] * 3)}
    outputs |= {f"present_{part}": (cache_kind, [None] * 4) for part in ("key", "value")}
    heads = {"num_heads": node.num_heads, "kv_num_heads": node.kv_num_heads}
    types = {name: int(ONNX_TYPES[array.dtype]) for name, array in call.feeds.items()}
    lines = [
        f"INPUTS = {INPUTS!r}",
        f"attributes = {heads | node.attributes!r}",
        f"outputs = {outputs!r}",
        f"types = {types!r}  # of ONNX, such as {int(TensorProto.FLOAT)}: float32",
        f"shared, threads = {call.shared}, {call.threads}",
        "feeds = {",
        *(f"    {name!r}: {_as_code(array)}," for name, array in call.feeds.items()),
        "}",
    ]
    return HEAD + "\n".join(lines) + "\n" + TAIL
