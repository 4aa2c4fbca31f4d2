"""Helpers of the rewriter's graph tests: rewrite a model, find its nodes, change one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from onnx import helper

import rewrite_models as models
from lean_attention import rewrite
from lean_attention.rewrite import RewriteResult


def rewritten(
    made: onnx.ModelProto, folder: Path, **options: str
) -> tuple[RewriteResult, onnx.ModelProto]:
    """Rewrites a model through files; returns the result and the new model."""
    source = models.save(made, folder / "source.onnx")
    result = rewrite(source, folder / "rewritten.onnx", **options)
    return result, onnx.load(folder / "rewritten.onnx")


def graphs(made: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The main graph, the functions, and every subgraph."""

    def nested(graph):
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from nested(attribute.g)

    for graph in (made.graph, *made.functions):
        yield from nested(graph)


def attention_nodes(made: onnx.ModelProto, domain: str = "com.leanattention"):
    return [node for graph in graphs(made) for node in graph.node if node.domain == domain]


def attention_of(made: onnx.ModelProto, layer: int) -> onnx.NodeProto:
    return attention_nodes(made, "com.microsoft")[layer]


def set_attribute(**attributes: object) -> Callable[[onnx.NodeProto], None]:
    def change(node: onnx.NodeProto) -> None:
        kept = [a for a in node.attribute if a.name not in attributes]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())

    return change


def connect(index: int, name: str) -> Callable[[onnx.NodeProto], None]:
    def change(node: onnx.NodeProto) -> None:
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = name

    return change


def retype(made: onnx.ModelProto, old: int, new: int) -> onnx.ModelProto:
    """The model with all values and weights of one type declared as another."""
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == old:
            value.type.tensor_type.elem_type = new
    for weight in made.graph.initializer:
        weight.data_type = new
    return made


def verified(result: RewriteResult) -> bool:
    """Whether both models ran and agreed; what else was found shows in the failed assertion."""
    assert result.verification is not None
    assert result.verification.passed, str(result.verification)
    return True
