"""Where attention nodes may lie, and what models may look like around them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rewrite_models as models
from lean_attention import rewrite
from rewrite_changes import attention_nodes, graphs, rewritten, verified
from rewrite_disk import nodes_of

GIB = 1 << 30


def in_loop() -> onnx.ModelProto:
    """One layer whose attention node is the body of a Loop of one iteration."""
    made = models.decoder(layers=1)
    at = next(i for i, n in enumerate(made.graph.node) if n.op_type == "GroupQueryAttention")
    node = made.graph.node[at]
    names = list(node.output)
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.output[:] = [f"{name}.inner" for name in names]
    states = [f"{name}.state" for name in names]
    shapes = ["B", "S", models.HIDDEN], *[["B", models.KV_NUM_HEADS, "C", models.HEAD_SIZE]] * 2
    body = helper.make_graph(
        [inner, helper.make_node("Identity", ["goes_on"], ["goes_on_too"])],
        "body",
        [
            models.tensor("iteration", TensorProto.INT64, []),
            models.tensor("goes_on", TensorProto.BOOL, []),
            *(models.tensor(s, TensorProto.FLOAT, k) for s, k in zip(states, shapes, strict=True)),
        ],
        [
            models.tensor("goes_on_too", TensorProto.BOOL, []),
            *(helper.make_empty_tensor_value_info(name) for name in inner.output),
        ],
    )
    for result in body.output[1:]:
        result.type.tensor_type.elem_type = TensorProto.FLOAT
    once = helper.make_tensor("once", TensorProto.INT64, [], [1])
    made.graph.initializer.append(once)
    first = [node.input[0], *node.input[3:5]]
    loop = helper.make_node("Loop", ["once", "", *first], names, name="repeat", body=body)
    made.graph.node[at].CopyFrom(loop)
    return made


def in_if_in_if() -> onnx.ModelProto:
    """The decoder with attention nodes two levels deep."""
    made = models.in_if()
    (outer,) = [node for node in made.graph.node if node.op_type == "If"]
    branches = {}
    for attribute in outer.attribute:
        results = []
        for value in attribute.g.output:
            result = onnx.ValueInfoProto()
            result.CopyFrom(value)
            result.name = f"{value.name}.outer"
            results.append(result)
        inner = {}
        for branch in ("then_branch", "else_branch"):
            graph = onnx.GraphProto()
            graph.CopyFrom(attribute.g)
            for node in graph.node:
                node.output[:] = [f"{name}.{branch}" for name in node.output]
            for value in graph.output:
                value.name = f"{value.name}.{branch}"
            inner[branch] = graph
        names = [result.name for result in results]
        node = helper.make_node("If", ["flag"], names, name=f"{attribute.name}/inner", **inner)
        branches[attribute.name] = helper.make_graph([node], attribute.name, [], results)
    outer.CopyFrom(helper.make_node("If", ["flag"], outer.output, name="choose", **branches))
    return made


def tables_from_if() -> onnx.ModelProto:
    """Two layers whose rotary tables are chosen by an If, by the length, as LongRoPE's are."""
    made = models.decoder()
    tables = {w.name: w for w in made.graph.initializer if w.name in ("cos", "sin")}
    for table in tables.values():
        made.graph.initializer.remove(table)
    branches = {}
    for branch, scale in (("then_branch", 0.5), ("else_branch", 1.0)):
        nodes, results = [], []
        for name, table in tables.items():
            array = (scale * onnx.numpy_helper.to_array(table)).astype(np.float32)
            value = onnx.numpy_helper.from_array(array, f"{name}.{branch}.value")
            nodes.append(helper.make_node("Constant", [], [f"{name}.{branch}"], value=value))
            results.append(models.tensor(f"{name}.{branch}", TensorProto.FLOAT, array.shape))
        branches[branch] = helper.make_graph(nodes, branch, [], results)
    choose = helper.make_node("If", ["is_long"], list(tables), name="tables", **branches)
    limit = helper.make_tensor("limit", TensorProto.INT32, [], [16])
    made.graph.initializer.append(limit)
    compare = helper.make_node("Greater", ["total", "limit"], ["is_long"])
    nodes = [compare, choose, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


PLACES = {
    "Loop": (in_loop, 1),
    "If in an If": (in_if_in_if, 4),
    "function": (models.in_function, 1),
}


@pytest.mark.parametrize(("make", "count"), PLACES.values(), ids=PLACES)
def test_nodes_of_subgraphs_and_functions_are_replaced_and_declared(make, count, tmp_path):
    made = make()
    onnx.checker.check_model(made)
    result, new = rewritten(made, tmp_path)
    assert len(result.replaced) == len(attention_nodes(new)) == count
    assert verified(result)
    # Whoever reads their types finds them, though no shape inference knows the operator; those of
    # a function at its calls.
    for graph in graphs(new):
        if isinstance(graph, onnx.FunctionProto):
            continue
        known = {value.name for value in (*graph.value_info, *graph.output)}
        for node in graph.node:
            if node.domain == "com.leanattention":
                assert set(node.output) <= known


def test_rotary_tables_of_an_if_are_kept(tmp_path):
    made = tables_from_if()
    onnx.checker.check_model(made)
    result, new = rewritten(made, tmp_path)
    assert verified(result)
    assert [node for node in new.graph.node if node.op_type == "If"] == [
        node for node in made.graph.node if node.op_type == "If"
    ]


def test_layers_that_share_all_their_weights(tmp_path):
    made = models.decoder()
    for node in made.graph.node:
        node.input[:] = [
            f"{name[0]}.0" if name in ("q.1", "k.1", "v.1", "o.1") else name for name in node.input
        ]
    kept = [w for w in made.graph.initializer if not w.name.endswith(".1")]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    source = models.save(made, tmp_path / "source" / "model.onnx", data="weights.bin")
    result = rewrite(source, tmp_path / "new" / "model.onnx")
    assert verified(result)
    new = onnx.load(tmp_path / "new" / "model.onnx", load_external_data=False)
    assert list(new.graph.initializer) == list(
        onnx.load(source, load_external_data=False).graph.initializer
    )
    assert (tmp_path / "new" / "weights.bin").samefile(source.with_name("weights.bin"))


def test_import_of_the_stock_domain_that_is_missing_is_not_needed(tmp_path):
    made = models.decoder()
    (stock,) = [opset for opset in made.opset_import if opset.domain == "com.microsoft"]
    made.opset_import.remove(stock)
    result, new = rewritten(made, tmp_path)
    assert len(result.replaced) == 2
    assert ("com.leanattention", 1) in {(o.domain, o.version) for o in new.opset_import}


def test_function_without_any_import_gets_ours(tmp_path):
    made = models.in_function()
    del made.functions[0].opset_import[:]
    result, new = rewritten(made, tmp_path)
    assert len(result.replaced) == 1
    assert {o.domain for o in new.functions[0].opset_import} >= {"com.leanattention"}


def test_model_over_2_gb_is_verified(tmp_path):
    made = models.decoder()
    rows = 9 * (GIB // 4) // models.HIDDEN // 4
    huge = made.graph.initializer.add(
        name="embedding", data_type=TensorProto.FLOAT, dims=[rows, models.HIDDEN]
    )
    huge.data_location = TensorProto.EXTERNAL
    huge.external_data.add(key="location", value="huge.bin")
    made.graph.node.insert(0, helper.make_node("Gather", ["embedding", "ids"], ["embedded"]))
    made.graph.node.insert(1, helper.make_node("Add", ["hidden", "embedded"], ["begin"]))
    for node in made.graph.node[2:]:
        node.input[:] = ["begin" if name == "hidden" else name for name in node.input]
    made.graph.input.append(models.tensor("ids", TensorProto.INT64, ["B", "S"]))
    source = models.save(made, tmp_path / "source" / "model.onnx")
    with source.with_name("huge.bin").open("wb") as data:
        data.truncate(rows * models.HIDDEN * 4)
    assert source.with_name("huge.bin").stat().st_size > 2 * GIB
    result = rewrite(source, tmp_path / "new" / "model.onnx")
    assert verified(result)
    assert nodes_of(tmp_path / "new" / "model.onnx").count("LeanGroupQueryAttention") == 2
