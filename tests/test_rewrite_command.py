"""The commands `rewrite` and `inspect`: options, what they print, the report, exit statuses."""

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner, Result

import rewrite_models as models
from lean_attention import LeanAttentionError, inspect, rewrite
from lean_attention.__main__ import app
from lean_attention.rewrite import RULES
from lean_attention.rewrite.rules.group_query_attention import GroupQueryAttention
from rewrite_changes import attention_of, set_attribute
from rewrite_disk import listing, nodes_of

pytest_plugins = ["rewrite_fixtures"]


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def mixed(tmp_path) -> Path:
    """A model with one node that can be replaced and one that cannot."""
    made = models.decoder()
    set_attribute(causal=0)(attention_of(made, 1))
    return models.save(made, tmp_path / "mixed.onnx")


def test_rules_have_names_of_their_own():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert "group-query-attention" in names


def test_skipped_rule_leaves_its_nodes(tmp_path, mixed):
    with pytest.raises(LeanAttentionError, match="2 because the rule group-query-attention is ski"):
        rewrite(mixed, tmp_path / "new.onnx", skip_rules=["group-query-attention"])
    run = command("rewrite", mixed, tmp_path / "new.onnx", "--skip-rule", "group-query-attention")
    assert run.exit_code == 1
    assert sorted(listing(tmp_path)) == ["mixed.onnx"]


@pytest.mark.parametrize("name", ["rewrite", "inspect"])
def test_unknown_rule_names_the_known_ones(name, tmp_path, mixed):
    arguments = [mixed, tmp_path / "new.onnx"] if name == "rewrite" else [mixed]
    run = command(name, *arguments, "--skip-rule", "gqa")
    assert isinstance(run.exception, LeanAttentionError)
    assert "there is no rule 'gqa'; the rules are group-query-attention" in str(run.exception)


def test_counts_of_every_operator_are_printed(tmp_path, mixed):
    run = command("rewrite", mixed, tmp_path / "new.onnx")
    assert run.exit_code == 0, run.output
    rows = [line.split() for line in run.stdout.splitlines()]
    assert ["operator", "before", "after"] in rows
    assert ["ai.onnx::MatMul", "8", "8"] in rows
    assert ["com.microsoft::GroupQueryAttention", "2", "1"] in rows
    assert ["com.leanattention::LeanGroupQueryAttention", "0", "1"] in rows


def test_report_holds_all_that_is_printed(tmp_path, mixed):
    report = tmp_path / "report.json"
    run = command("rewrite", mixed, tmp_path / "new.onnx", "--report", report)
    assert run.exit_code == 0, run.output
    found = json.loads(report.read_text())
    assert found["source"] == str(mixed)
    assert found["destination"] == str(tmp_path / "new.onnx")
    assert found["operators"]["com.microsoft::GroupQueryAttention"] == {"before": 2, "after": 1}
    outcomes = {node["name"]: node["outcome"] for node in found["nodes"]}
    assert outcomes == {"/layer.0/attention": "replaced", "/layer.1/attention": "left"}
    assert [node["rule"] for node in found["nodes"]] == ["group-query-attention"] * 2
    assert "causal=0" in found["nodes"][1]["reason"]
    verification = found["verification"]
    assert verification["passed"]
    assert [o["name"] for o in verification["outputs"]] == [
        o.name for o in onnx.load(mixed).graph.output
    ]
    for output in verification["outputs"]:
        assert output["passed"]
        assert output["difference"] <= output["tolerance"]


def test_report_of_a_failed_verification(tmp_path, mixed, monkeypatch):
    monkeypatch.setattr(
        GroupQueryAttention, "rewrite", lambda _, node, *rest: node.attributes.pop("do_rotary")
    )
    report = tmp_path / "report.json"
    run = command("rewrite", mixed, tmp_path / "new.onnx", "--report", report)
    assert run.exit_code == 1
    found = json.loads(report.read_text())
    assert not found["verification"]["passed"]
    assert "computes something else" in found["error"]
    assert sorted(listing(tmp_path)) == ["mixed.onnx", "report.json"]


def test_report_that_cannot_be_written_is_an_error_before_anything_is_done(tmp_path, mixed):
    before = listing(tmp_path)
    for name, message in ((mixed, "exists already"), (tmp_path / "no" / "r.json", "is no folder")):
        for arguments in (("rewrite", mixed, tmp_path / "new.onnx"), ("inspect", mixed)):
            run = command(*arguments, "--report", name)
            assert run.exit_code == 1
            assert message in str(run.exception)
    assert listing(tmp_path) == before


def test_rewriting_again_does_nothing_and_succeeds(tmp_path, mixed):
    rewrite(mixed, tmp_path / "new.onnx")
    run = command("rewrite", tmp_path / "new.onnx", tmp_path / "again.onnx")
    assert run.exit_code == 0, run.output
    assert "is already rewritten: 1 of its nodes" in run.stdout
    assert "nothing was written" in run.stdout
    assert sorted(listing(tmp_path)) == ["mixed.onnx", "new.onnx"]


def test_restore(tmp_path, mixed):
    rewrite(mixed, tmp_path / "new.onnx")
    run = command("rewrite", "--restore", tmp_path / "new.onnx", tmp_path / "old.onnx")
    assert run.exit_code == 0, run.output
    assert "1 of 1 LeanGroupQueryAttention nodes restored" in run.stdout
    assert nodes_of(tmp_path / "old.onnx") == nodes_of(mixed)
    run = command("rewrite", "--restore", mixed, tmp_path / "other.onnx")
    assert run.exit_code == 0, run.output
    assert "has no LeanGroupQueryAttention node: nothing to do" in run.stdout
    run = command("rewrite", "--restore", "--schedule", "lean", mixed, tmp_path / "other.onnx")
    assert "--restore takes no --schedule" in str(run.exception)
    assert sorted(listing(tmp_path)) == ["mixed.onnx", "new.onnx", "old.onnx"]


def test_inspect_says_of_each_node_what_would_be_done(tmp_path, mixed):
    before = listing(tmp_path)
    run = command("inspect", mixed)
    assert run.exit_code == 0, run.output
    assert "✓ /layer.0/attention: com.microsoft::GroupQueryAttention would be rep" in run.stdout
    stays = "! /layer.1/attention: com.microsoft::GroupQueryAttention would stay, because it att"
    assert stays in run.stdout
    assert listing(tmp_path) == before
    run = command("inspect", mixed, "--report", tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert [node["outcome"] for node in found["nodes"]] == ["would be replaced", "would be left"]
    assert found["operators"]["com.microsoft::GroupQueryAttention"] == 2


def test_inspect_agrees_with_rewrite(tmp_path, mixed):
    found, done = inspect(mixed), rewrite(mixed, tmp_path / "new.onnx")
    assert (found.accepted, found.left) == (done.replaced, done.left)


def test_inspect_reads_folders_and_says_what_is_ours_already(folder, tmp_path):
    run = command("inspect", folder)
    assert run.stdout.count("would be replaced") == 2
    rewrite(folder, tmp_path / "new")
    run = command("inspect", tmp_path / "new")
    assert "2 nodes are LeanAttention's already" in run.stdout


def test_inspect_names_what_a_model_holds_instead(tmp_path):
    made = models.decoder()
    kept = [node for node in made.graph.node if node.op_type == "MatMul"]
    del made.graph.node[:]
    made.graph.node.extend(kept)
    run = command("inspect", models.save(made, tmp_path / "model.onnx"))
    assert run.exit_code == 0
    assert "no attention node that a rule is for" in run.stdout
    assert "8 ai.onnx::MatMul" in run.stdout


def test_inspect_of_nothing_is_one_line(tmp_path):
    run = command("inspect", tmp_path / "no.onnx")
    assert run.exit_code == 1
    assert "there is no model at" in str(run.exception)
