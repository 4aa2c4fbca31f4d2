"""The way back: a rewritten model becomes the stock one again."""

import json

import onnx
import pytest
from onnx import TensorProto, helper

import rewrite_models as models
from lean_attention import LeanAttentionError, restore, rewrite
from rewrite_changes import attention_nodes, attention_of, graphs, set_attribute
from rewrite_disk import listing

pytest_plugins = ["rewrite_fixtures"]

VARIANTS = {
    "float32": models.decoder,
    "packed int8": lambda: models.decoder(packed=True, cache="int8"),
    "in an If": models.in_if,
    "in a function": models.in_function,
}


@pytest.mark.parametrize("schedule", ["auto", "lean"])
@pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS)
def test_model_comes_back_as_it_was(make, schedule, tmp_path):
    made = make()
    source = models.save(made, tmp_path / "source.onnx")
    rewrite(source, tmp_path / "rewritten.onnx", schedule=schedule)
    result = restore(tmp_path / "rewritten.onnx", tmp_path / "restored.onnx")
    assert result.verification.passed
    assert len(result.replaced) == len(attention_nodes(made, "com.microsoft"))
    assert "GroupQueryAttention nodes restored" in str(result)
    restored = onnx.load(tmp_path / "restored.onnx")
    for graph in (*graphs(restored), *graphs(made)):
        # What a rewrite declares of the nodes' outputs stays true.
        del graph.value_info[:]
    assert restored == made


def test_missing_import_of_the_stock_domain_is_added_and_ours_dropped(tmp_path):
    made = models.in_function()
    for holder in (made, *made.functions):
        for opset in [o for o in holder.opset_import if o.domain == "com.microsoft"]:
            holder.opset_import.remove(opset)
            holder.opset_import.append(helper.make_opsetid("com.leanattention", 1))
    for node in attention_nodes(made, "com.microsoft"):
        node.domain, node.op_type = "com.leanattention", "LeanGroupQueryAttention"
    for layer in (0, 1):
        declared = models.tensor(f"attention.{layer}", TensorProto.FLOAT, ["B", "S", models.HIDDEN])
        made.graph.value_info.append(declared)
    source = models.save(made, tmp_path / "source.onnx")
    assert restore(source, tmp_path / "restored.onnx").verification.passed
    restored = onnx.load(tmp_path / "restored.onnx")
    for holder in (restored, *restored.functions):
        domains = {opset.domain: opset.version for opset in holder.opset_import}
        assert domains["com.microsoft"] == 1
        assert "com.leanattention" not in domains


def test_folder_comes_back_without_the_library(folder, tmp_path):
    rewrite(folder, tmp_path / "new")
    restore(tmp_path / "new", tmp_path / "old")
    before, after = listing(folder), listing(tmp_path / "old")
    assert set(before) == set(after)
    assert {name for name in before if before[name] != after[name]} == {"model.onnx"}
    assert (tmp_path / "old" / "weights.bin").samefile(folder / "weights.bin")


def test_folder_that_loads_another_library_keeps_it(folder, tmp_path):
    rewrite(folder, tmp_path / "new")
    path = tmp_path / "new" / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["custom_ops_library"] = "other.so"
    path.write_text(json.dumps(config))
    restore(tmp_path / "new", tmp_path / "old")
    assert "other.so" in (tmp_path / "old" / "genai_config.json").read_text()


def test_stock_nodes_beside_ours_stay_as_they_are(tmp_path):
    made = models.decoder()
    set_attribute(causal=0)(attention_of(made, 1))
    rewrite(models.save(made, tmp_path / "source.onnx"), tmp_path / "rewritten.onnx")
    result = restore(tmp_path / "rewritten.onnx", tmp_path / "restored.onnx")
    assert [node.name for node in result.replaced] == ["/layer.0/attention"]
    restored = onnx.load(tmp_path / "restored.onnx")
    del restored.graph.value_info[:]
    assert restored == made


def test_stock_model_has_nothing_to_restore(tmp_path):
    source = models.save(models.decoder(), tmp_path / "source.onnx")
    result = restore(source, tmp_path / "restored.onnx")
    assert result.unchanged == "has no LeanGroupQueryAttention node"
    assert sorted(listing(tmp_path)) == ["source.onnx"]


def test_missing_source_is_one_line(tmp_path):
    with pytest.raises(LeanAttentionError, match="there is no model at"):
        restore(tmp_path / "no.onnx", tmp_path / "restored.onnx")
