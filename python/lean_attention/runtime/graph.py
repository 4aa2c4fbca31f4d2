"""What a decoder's graph says that a session does not: nodes, cache sizes, the LongRoPE switch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime.reasons import first_line

__all__ = ["CUSTOM_DOMAIN", "GraphFacts", "read_graph"]

CUSTOM_DOMAIN = "com.leanattention"

ATTENTION_OPS = ("GroupQueryAttention", "LeanGroupQueryAttention")

# Input positions of GroupQueryAttention, which LeanGroupQueryAttention shares.
PAST_KEY = 3
COS_CACHE = 7


@dataclass(frozen=True)
class GraphFacts:
    """The structure of one decoder model; weights are not read.

    Attributes:
        uses_custom_ops: Whether the model needs the operator library.
        appending_layers: The ``past_key_values.N.key`` inputs that a GroupQueryAttention node
            takes, stock or ours; such a node appends in place to a shared buffer.
        head_size: Elements per head, or None where the graph does not tell.
        rotary_rows: Rows of the shortest table of cosines that serves the longest context, or None
            where rotary embedding is not part of the attention node.
        rope_switch: LongRoPE: a run whose ``attention_mask`` is wider than this takes the other
            rotary table. None for all other models.
        window_rows: Rows that the caches need at least, whatever the context; other than 1 only
            for nodes with ``sliding_window_cache=1``.
    """

    uses_custom_ops: bool
    appending_layers: frozenset[str]
    head_size: int | None
    rotary_rows: int | None
    rope_switch: int | None
    window_rows: int


def read_graph(path: Path) -> GraphFacts:
    """Reads the structure of an ONNX file.

    Args:
        path: The model file.

    Raises:
        LeanAttentionError: The file is not a readable ONNX model, is damaged, or chooses its
            rotary tables in a way that the runtime does not know.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf and onnx raise several unrelated types
        raise LeanAttentionError(
            f"{path} is not a readable ONNX model ({type(error).__name__}); export it again"
        ) from error
    try:
        return _facts(model, path)
    except LeanAttentionError:
        raise
    except Exception as error:  # a part that every valid model has is not there
        raise LeanAttentionError(
            f"the graph of {path} is damaged ({type(error).__name__}: {first_line(error)}); "
            "export it again"
        ) from error


def _facts(model: onnx.ModelProto, path: Path) -> GraphFacts:
    graph = model.graph
    nodes = [node for node in graph.node if node.op_type in ATTENTION_OPS]
    attributes = [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in nodes
    ]
    windows = [int(a["local_window_size"]) for a in attributes if a.get("sliding_window_cache")]
    tables = {
        node.input[COS_CACHE]
        for node in nodes
        if len(node.input) > COS_CACHE and node.input[COS_CACHE]
    }
    rows, switch = _rotary_tables(graph, tables, path)
    return GraphFacts(
        uses_custom_ops=any(opset.domain == CUSTOM_DOMAIN for opset in model.opset_import)
        or any(node.domain == CUSTOM_DOMAIN for node in graph.node),
        appending_layers=frozenset(n.input[PAST_KEY] for n in nodes if len(n.input) > PAST_KEY),
        head_size=_head_size(graph, nodes, attributes),
        rotary_rows=rows,
        rope_switch=switch,
        window_rows=max(windows, default=1),
    )


def _head_size(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto], attributes: list[dict[str, int]]
) -> int | None:
    """Returns the width of an attention output divided by its heads, where shapes are recorded."""
    widths = {
        value.name: value.type.tensor_type.shape.dim[-1].dim_value
        for value in graph.value_info
        if value.type.tensor_type.shape.dim
    }
    for node, attribute in zip(nodes, attributes, strict=True):
        if width := widths.get(node.output[0]):
            return int(width) // int(attribute["num_heads"])
    return None


def _rotary_tables(
    graph: onnx.GraphProto, tables: set[str], path: Path
) -> tuple[int | None, int | None]:
    """Returns the rows of the rotary tables and the LongRoPE switch length."""
    constants = dict(_constants(graph))
    producers = {output: node for node in graph.node for output in node.output}
    rows: list[int] = []
    switches: set[int] = set()
    for table in tables:
        producer = producers.get(table)
        if producer is None or producer.op_type != "If":
            if table in constants:
                rows.append(constants[table].dims[0])
            continue
        switches.add(_switch_length(producers.get(producer.input[0]), constants, path))
        index = list(producer.output).index(table)
        branches = [a.g for a in producer.attribute if a.type == onnx.AttributeProto.GRAPH]
        choices = [
            known[branch.output[index].name].dims[0]
            for branch in branches
            if branch.output[index].name in (known := constants | dict(_constants(branch)))
        ]
        if choices:
            rows.append(max(choices))
    if len(switches) > 1:
        raise LeanAttentionError(
            f"{path} switches its rotary tables at several lengths {sorted(switches)}; the runtime "
            "knows models that switch at one"
        )
    return min(rows, default=None), next(iter(switches), None)


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yields the constant tensors of a graph, initialisers and Constant nodes alike."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _switch_length(
    condition: onnx.NodeProto | None, constants: dict[str, onnx.TensorProto], path: Path
) -> int:
    """Returns n of the condition ``total_sequence_length > n``."""
    if condition is None or condition.op_type != "Greater" or condition.input[1] not in constants:
        raise LeanAttentionError(
            f"{path} chooses its rotary tables by another condition than 'length > constant'; "
            "export it with the onnxruntime-genai model builder"
        )
    return int(onnx.numpy_helper.to_array(constants[condition.input[1]]).reshape(-1)[0])
