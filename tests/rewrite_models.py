"""Small models with GroupQueryAttention for the tests of the rewriter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NUM_HEADS, KV_NUM_HEADS, HEAD_SIZE = 4, 2, 16
HIDDEN = NUM_HEADS * HEAD_SIZE
CACHE_ROWS = 32
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
# Of quantised caches: the type, the bits of a value, the values of an element, and a scale that
# makes the values' size about that of the others.
CACHES = {"int8": (TensorProto.INT8, 8, 1, 0.02), "int4": (TensorProto.UINT8, 4, 2, 0.3)}
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def attention(
    layer: int, query: str, key: str = "", value: str = "", **attributes: object
) -> onnx.NodeProto:
    """One node with rotary embedding, a cache, and the trailing empty inputs of some exporters.

    With ``k_quant_type`` among its attributes, scales follow these.
    """
    inputs = [query, key, value, f"past.{layer}.key", f"past.{layer}.value", "seqlens_k", "total"]
    outputs = [f"attention.{layer}", f"present.{layer}.key", f"present.{layer}.value"]
    scales = ["", f"k_scale.{layer}", f"v_scale.{layer}"] if "k_quant_type" in attributes else []
    return helper.make_node(
        "GroupQueryAttention",
        [*inputs, "cos", "sin", "", "", *scales],
        outputs,
        name=f"/layer.{layer}/attention",
        domain="com.microsoft",
        num_heads=NUM_HEADS,
        kv_num_heads=KV_NUM_HEADS,
        do_rotary=1,
        **attributes,
    )


def decoder(
    layers: int = 2,
    dtype: str = "float32",
    *,
    packed: bool = False,
    cache: str = "",
    quantisation: str = "PER_TENSOR",
    **attributes: object,
) -> onnx.ModelProto:
    """Attention layers with residual sums: hidden [B, S, 64] and caches [B, 2, C, 16] in and out.

    The cosine and sine tables are initialisers that all layers share, and nothing but the graph's
    inputs and outputs declares its type. A ``cache`` of "int8" or "int4" has float32 scales.
    """
    elem = TYPES[dtype]
    cache_elem, bits, values, scale = CACHES.get(cache, (elem, 0, 1, 0.0))
    if bits:
        attributes |= {"k_quant_type": quantisation, "v_quant_type": quantisation}
        attributes["kv_cache_bit_width"] = bits
    rng = np.random.default_rng(7)
    tables = _rotary_tables()
    kv_width = KV_NUM_HEADS * HEAD_SIZE
    weights = {"cos": tables[0], "sin": tables[1]}
    inputs, outputs, nodes = [tensor("hidden", elem, ["B", "S", HIDDEN])], [], []
    hidden, scales = "hidden", {}
    for layer in range(layers):
        parts = {"qkv": HIDDEN + 2 * kv_width} if packed else {"q": HIDDEN, "k": kv_width}
        parts |= {} if packed else {"v": kv_width}
        for part, width in parts.items():
            weights[f"{part}.{layer}"] = rng.normal(0, 0.2, (HIDDEN, width))
            nodes.append(_matmul(hidden, f"{part}.{layer}"))
        weights[f"o.{layer}"] = rng.normal(0, 0.2, (HIDDEN, HIDDEN))
        projected = [f"{part}.{layer}.projected" for part in parts]
        nodes.append(attention(layer, *projected, **attributes))
        nodes.append(_matmul(f"attention.{layer}", f"o.{layer}"))
        nodes.append(helper.make_node("Add", [hidden, f"o.{layer}.projected"], [f"sum.{layer}"]))
        nodes[-1].name = nodes[-2].name + "/add"
        hidden = f"sum.{layer}"
        for name in ("key", "value"):
            shape = ["B", KV_NUM_HEADS, "C", HEAD_SIZE // values]
            inputs.append(tensor(f"past.{layer}.{name}", cache_elem, shape))
            outputs.append(tensor(f"present.{layer}.{name}", cache_elem, shape))
            if bits:
                count = 1 if quantisation.upper() == "PER_TENSOR" else kv_width
                scales[f"{name[0]}_scale.{layer}"] = scale * rng.uniform(0.7, 1.3, count)
    inputs += [
        tensor("seqlens_k", TensorProto.INT32, ["B"]),
        tensor("total", TensorProto.INT32, []),
    ]
    outputs.insert(0, tensor(hidden, elem, ["B", "S", HIDDEN]))
    initializers = [numpy_helper.from_array(w.astype(dtype), n) for n, w in weights.items()]
    initializers += [numpy_helper.from_array(w.astype(np.float32), n) for n, w in scales.items()]
    return model(nodes, inputs, outputs, initializers)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model of one graph."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10, producer_name="test")


def in_if(layers: int = 1) -> onnx.ModelProto:
    """The decoder with its first attention node in both branches of an If."""
    made = decoder(layers)
    at = next(i for i, n in enumerate(made.graph.node) if n.op_type == "GroupQueryAttention")
    node = made.graph.node[at]
    names = list(node.output)
    branches = {}
    for branch in ("then_branch", "else_branch"):
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.name = f"{node.name}/{branch}"
        inner.output[:] = [f"{name}.{branch}" for name in names]
        results = [helper.make_empty_tensor_value_info(name) for name in inner.output]
        for result in results:
            result.type.tensor_type.elem_type = TensorProto.FLOAT
        branches[branch] = helper.make_graph([inner], branch, [], results)
    made.graph.node[at].CopyFrom(helper.make_node("If", ["flag"], names, name="choose", **branches))
    made.graph.input.append(tensor("flag", TensorProto.BOOL, []))
    return made


def in_function(layers: int = 2, **options: str) -> onnx.ModelProto:
    """The decoder with each attention node behind a call of one model function."""
    made = decoder(layers, **options)
    body = next(n for n in made.graph.node if n.op_type == "GroupQueryAttention")
    function = helper.make_function(
        "test", "Attend", [name for name in body.input if name], body.output, [body], OPSETS
    )
    for node in made.graph.node:
        if node.op_type == "GroupQueryAttention":
            arguments = [name for name in node.input if name]
            call = helper.make_node("Attend", arguments, node.output, name=node.name, domain="test")
            node.CopyFrom(call)
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("test", 1))
    return made


def save(made: onnx.ModelProto, path: Path, data: str | None = None) -> Path:
    """Writes a model; with ``data``, all its weights go to a fresh file of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        made,
        path,
        save_as_external_data=data is not None,
        location=data,
        size_threshold=0,
    )
    return path


def feeds(
    made: onnx.ModelProto, lengths: Sequence[int], steps: int = 1, seed: int = 3
) -> dict[str, np.ndarray]:
    """Random inputs of a decoder: ``steps`` new tokens that bring each row to its length."""
    rng = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for value in made.graph.input:
        kind = value.type.tensor_type
        sizes = {"B": len(lengths), "S": steps, "C": CACHE_ROWS}
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        result[value.name] = rng.normal(size=shape).astype(dtype)
        if dtype.itemsize == 1 and dtype.kind in "iu":
            result[value.name] = rng.integers(0, 256, shape, np.uint8).view(dtype)
    result["seqlens_k"] = np.array(lengths, np.int32) - 1
    result["total"] = np.array(max(lengths), np.int32)
    return result


def tensor(name: str, elem: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    """A declaration of a value."""
    return helper.make_tensor_value_info(name, elem, shape)


def _matmul(left: str, weight: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", [left, weight], [f"{weight}.projected"], name=f"/{weight}")


def _rotary_tables() -> tuple[np.ndarray, np.ndarray]:
    frequencies = 1e4 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    angles = np.outer(np.arange(CACHE_ROWS), frequencies)
    return np.cos(angles), np.sin(angles)
