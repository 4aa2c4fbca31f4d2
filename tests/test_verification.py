"""The rewriter's verification: what it runs, what it notices, and when it cannot say."""

import subprocess
import sys
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

import rewrite_models as models
from lean_attention import LeanAttentionError, rewrite
from lean_attention.rewrite import VerificationError, restore
from lean_attention.rewrite.rules.group_query_attention import GroupQueryAttention
from lean_attention.rewrite.verification import verify as verify_module
from lean_attention.rewrite.verification.comparison import sensitivity
from lean_attention.rewrite.verification.disturbance import disturb
from lean_attention.rewrite.verification.interface import read_interface
from lean_attention.rewrite.verification.scenarios import scenarios
from lean_attention.rewrite.verification.session import CpuSession
from rewrite_changes import retype, set_attribute
from rewrite_disk import listing

VARIANTS = {
    "float32": models.decoder,
    "float16": lambda: models.decoder(dtype="float16"),
    "packed": lambda: models.decoder(packed=True),
    "window": lambda: models.decoder(local_window_size=4),
    "in an If": models.in_if,
    "in a function": models.in_function,
    "int8": lambda: models.decoder(cache="int8", quantisation="PER_CHANNEL"),
    "int4": lambda: models.decoder(cache="int4", dtype="float16"),
}


def long_decoder(**attributes: object) -> onnx.ModelProto:
    """The decoder with rotary tables for 1,000 tokens."""
    made = models.decoder(**attributes)
    for weight in made.graph.initializer:
        if weight.name in ("cos", "sin"):
            table = numpy_helper.to_array(weight)
            longer = np.tile(table, (1000 // len(table) + 1, 1))[:1000]
            weight.CopyFrom(numpy_helper.from_array(longer, weight.name))
    return made


@pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS)
def test_every_output_is_compared(make, tmp_path):
    made = make()
    source = models.save(made, tmp_path / "source" / "model.onnx", data="weights.bin")
    before = listing(tmp_path)
    result = rewrite(source, tmp_path / "new" / "model.onnx")
    found = result.verification
    assert found.passed
    assert [check.name for check in found.outputs] == [o.name for o in made.graph.output]
    for check in found.outputs:
        expected = check.name.startswith("present.")
        assert check.kind == (f"present_{check.name.split('.')[-1]}" if expected else "")
    # Not the same kernel twice, and a tolerance that lets nothing pass that matters.
    hidden = found.outputs[0]
    assert 0 < hidden.difference < hidden.tolerance < 0.05 * hidden.largest
    added = {*listing(tmp_path)} - {*before}
    assert added == {"new", "new/model.onnx", "new/weights.bin"}


def test_runs_hold_prompts_steps_batches_ragged_lengths_and_several_tiles(tmp_path, monkeypatch):
    steps = []
    run = CpuSession.run

    def watch(self, group, *rest):
        steps.extend(group)
        return run(self, group, *rest)

    monkeypatch.setattr(CpuSession, "run", watch)
    source = models.save(long_decoder(), tmp_path / "source.onnx")
    result = rewrite(source, tmp_path / "new.onnx")
    assert result.verification.runs == len(steps) / 5
    kinds = {
        "prompt": lambda s: max(s.lengths) == max(s.new) > 1,
        "padded prompt": lambda s: len(set(s.new)) > 1,
        "step": lambda s: max(s.new) == 1 and max(s.lengths) > 1,
        "several tokens after a past": lambda s: min(s.new) > 1 and max(s.lengths) > max(s.new),
        "first token": lambda s: min(s.lengths) == 2,
        "batch of three": lambda s: len(s.new) == 3,
        "ragged": lambda s: len(set(s.lengths)) == 3 and max(s.new) == 1,
        "two tiles of 256": lambda s: max(s.lengths) > 512,
        "chained": lambda s: s.chained,
        "larger buffer": lambda s: s.past_rows > max(s.lengths),
    }
    assert [name for name, holds in kinds.items() if not any(map(holds, steps))] == []


def set_number(**attributes):
    def change(node: ir.Node) -> None:
        for name, value in attributes.items():
            node.attributes.add(ir.Attr(name, *value))

    return change


def swap_outputs(node: ir.Node) -> None:
    key, value = node.outputs[1:3]
    key.name, value.name = value.name, key.name
    graph = node.graph
    positions = [graph.outputs.index(value), graph.outputs.index(key)]
    graph.outputs[positions[0]], graph.outputs[positions[1]] = key, value


INT, FLOAT = ir.AttributeType.INT, ir.AttributeType.FLOAT
FAULTS = {
    "scale off by a hundredth": (set_number(scale=(FLOAT, 0.2525)), "sum.1"),
    "softcap": (set_number(softcap=(FLOAT, 20.0)), "sum.1"),
    "window": (set_number(local_window_size=(INT, 7)), "sum.1"),
    "window of several tiles": (set_number(local_window_size=(INT, 590)), "sum.1"),
    "rotary layout": (set_number(rotary_interleaved=(INT, 1)), "present.0.key"),
    "no rotary": (set_number(do_rotary=(INT, 0)), "present.0.key"),
    "sink": (set_number(smooth_softmax=(INT, 1)), "sum.1"),
    "keys for values": (swap_outputs, "present.0.key"),
    "positions": (lambda n: n.replace_input_with(8, n.inputs[7]), "present.0.key"),
}


def plant(change, monkeypatch) -> None:
    """Makes the rewriter's rule change something more."""
    rule = GroupQueryAttention.rewrite

    def broken(self, node, types, schedule):
        rule(self, node, types, schedule)
        change(node)

    monkeypatch.setattr(GroupQueryAttention, "rewrite", broken)


@pytest.mark.parametrize(("change", "name"), FAULTS.values(), ids=FAULTS)
def test_fault_is_noticed_and_nothing_is_written(change, name, tmp_path, monkeypatch):
    plant(change, monkeypatch)
    source = models.save(long_decoder(), tmp_path / "source" / "model.onnx", data="weights.bin")
    before = listing(tmp_path)
    with pytest.raises(VerificationError) as caught:
        rewrite(source, tmp_path / "new" / "model.onnx")
    assert name in {check.name for check in caught.value.result.verification.failed}
    assert "nothing was written" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert listing(tmp_path) == before
    assert rewrite(source, tmp_path / "new" / "model.onnx", verify=False).verification is None


def test_fault_of_the_last_layer_alone_is_noticed_in_half_precision(tmp_path, monkeypatch):
    def change(node: ir.Node) -> None:
        if node.name == "/layer.1/attention":
            node.attributes.add(ir.AttrInt64("smooth_softmax", 1))

    plant(change, monkeypatch)
    source = models.save(models.decoder(dtype="float16"), tmp_path / "source.onnx")
    with pytest.raises(VerificationError, match=r"sum\.1 differs by"):
        rewrite(source, tmp_path / "new.onnx")


def test_new_model_that_does_not_run_is_not_written(tmp_path, monkeypatch):
    plant(lambda node: node.attributes.add(ir.AttrString("schedule", "quick")), monkeypatch)
    source = models.save(models.decoder(), tmp_path / "source.onnx")
    with pytest.raises(VerificationError, match=r"does not run the rewritten model: .*quick"):
        rewrite(source, tmp_path / "new.onnx")
    assert sorted(listing(tmp_path)) == ["source.onnx"]


def test_source_that_the_cpu_cannot_run_is_written_unverified(tmp_path):
    made = retype(models.decoder(dtype="float16"), TensorProto.FLOAT16, TensorProto.BFLOAT16)
    source = models.save(made, tmp_path / "source.onnx")
    result = rewrite(source, tmp_path / "new.onnx")
    assert not result.verification.passed
    assert "CPU provider cannot run the source model" in result.verification.obstacle
    assert "not verified: " in str(result)
    assert (tmp_path / "new.onnx").exists()


def unknown_input(made: onnx.ModelProto) -> None:
    made.graph.input.append(models.tensor("text", TensorProto.STRING, [1]))
    made.graph.node.append(onnx.helper.make_node("Identity", ["text"], ["copied"]))
    made.graph.output.append(models.tensor("copied", TensorProto.STRING, [1]))


def unknown_size(made: onnx.ModelProto) -> None:
    made.graph.input.append(models.tensor("extra", TensorProto.FLOAT, ["what", 2, 2, 2]))
    made.graph.node.append(onnx.helper.make_node("Neg", ["extra"], ["negated"]))
    made.graph.output.append(models.tensor("negated", TensorProto.FLOAT, ["what", 2, 2, 2]))


def infinite_weights(made: onnx.ModelProto) -> None:
    (values,) = [weight for weight in made.graph.initializer if weight.name == "v.0"]
    values.CopyFrom(numpy_helper.from_array(np.full((64, 32), np.nan, np.float32), "v.0"))


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        (unknown_input, "cannot tell what to feed the input 'text'"),
        (unknown_size, "cannot tell the size 'what' of the input 'extra'"),
        (infinite_weights, "is not finite"),
    ],
)
def test_model_of_which_nothing_can_be_said_names_the_obstacle(change, obstacle, tmp_path):
    made = models.decoder(layers=1)
    change(made)
    source = models.save(made, tmp_path / "source.onnx")
    result = rewrite(source, tmp_path / "new.onnx")
    assert obstacle in result.verification.obstacle
    assert (tmp_path / "new.onnx").exists()


def test_inputs_that_the_source_refuses_are_told_and_the_others_compared(tmp_path):
    made = models.decoder(layers=1)
    # A batch of one alone can be added to a table of so many tokens.
    table = numpy_helper.from_array(np.ones((1, 6, models.HIDDEN), np.float32), "table")
    made.graph.initializer.append(table)
    made.graph.node.insert(0, onnx.helper.make_node("Add", ["hidden", "table"], ["begin"]))
    for node in made.graph.node[1:]:
        node.input[:] = ["begin" if name == "hidden" else name for name in node.input]
    result = rewrite(models.save(made, tmp_path / "source.onnx"), tmp_path / "new.onnx")
    found = result.verification
    assert found.passed
    assert any("refuses 12, 7 new tokens in a batch of 2: " in line for line in found.refused)
    assert "Add" in str(found)


def rotated_outside(made: onnx.ModelProto) -> None:
    """Rotates queries and keys by nodes of their own."""
    made.graph.input.append(models.tensor("positions", TensorProto.INT64, ["B", "S"]))
    for node in [n for n in made.graph.node if n.op_type == "GroupQueryAttention"]:
        set_attribute(do_rotary=0)(node)
        for index in (0, 1):
            name, heads = node.input[index], (models.NUM_HEADS, models.KV_NUM_HEADS)[index]
            rotate = onnx.helper.make_node(
                "RotaryEmbedding",
                [name, "positions", "cos", "sin"],
                [f"{name}.rotated"],
                domain="com.microsoft",
                num_heads=heads,
            )
            made.graph.node.insert([*made.graph.node].index(node), rotate)
            node.input[index] = f"{name}.rotated"
        node.input[7:] = []


def gathered_positions(made: onnx.ModelProto) -> None:
    """Adds a learned embedding of each position, of which there are eight."""
    made.graph.input.append(models.tensor("positions", TensorProto.INT64, ["B", "S"]))
    table = np.ones((8, models.HIDDEN), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(table, "learned"))
    for node in made.graph.node:
        node.input[:] = ["begin" if name == "hidden" else name for name in node.input]
    gather = onnx.helper.make_node("Gather", ["learned", "positions"], ["embedded"])
    made.graph.node.insert(0, gather)
    made.graph.node.insert(1, onnx.helper.make_node("Add", ["hidden", "embedded"], ["begin"]))


@pytest.mark.parametrize(
    ("change", "rows"), [(rotated_outside, models.CACHE_ROWS), (gathered_positions, 8)]
)
def test_tables_of_positions_bound_every_length(change, rows, tmp_path):
    made = models.decoder()
    change(made)
    source = models.save(made, tmp_path / "source.onnx")
    found = rewrite(source, tmp_path / "new.onnx").verification
    assert found.passed, str(found)
    assert found.refused == ()
    steps = [s for group in scenarios(read_interface(made), ragged=True) for s in group]
    assert max(max(step.lengths) for step in steps) == rows


def test_model_larger_than_the_memory_is_not_loaded(tmp_path):
    made = models.decoder()
    huge = made.graph.initializer.add(name="huge", data_type=TensorProto.FLOAT, dims=[1 << 38])
    huge.data_location = TensorProto.EXTERNAL
    huge.external_data.add(key="location", value="huge.bin")
    source = models.save(made, tmp_path / "source" / "model.onnx")
    with source.with_name("huge.bin").open("wb") as data:
        data.truncate(1 << 40)
    result = rewrite(source, tmp_path / "new" / "model.onnx")
    assert "its weights take 1099.5 GB of memory" in result.verification.obstacle


def test_one_model_is_in_memory_at_a_time(tmp_path, monkeypatch):
    alive: weakref.WeakSet[CpuSession] = weakref.WeakSet()
    most = []

    class Watched(CpuSession):
        def __init__(self, path: Path, *arguments, **options) -> None:
            most.append(len(alive))
            super().__init__(path, *arguments, **options)
            alive.add(self)

    monkeypatch.setattr(verify_module, "CpuSession", Watched)
    source = models.save(models.decoder(), tmp_path / "source.onnx")
    rewrite(source, tmp_path / "new.onnx")
    assert most == [0, 0, 0]


def test_library_that_cannot_be_loaded_is_an_error(tmp_path, monkeypatch):
    source = models.save(models.decoder(), tmp_path / "source.onnx")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setenv("LEAN_ATTENTION_LIBRARY", str(broken))
    with pytest.raises(LeanAttentionError, match=r"ONNX Runtime refused .*broken\.so"):
        rewrite(source, tmp_path / "new.onnx")
    assert not (tmp_path / "new.onnx").exists()
    rewrite(source, tmp_path / "new.onnx", verify=False)
    result = restore(tmp_path / "new.onnx", tmp_path / "old.onnx")
    assert "ONNX Runtime refused" in result.verification.obstacle


@pytest.mark.parametrize("fixture", ["tiny_model", "tiny_model_fp16", "tiny_long_rope_model"])
def test_builder_made_folder_is_verified(fixture, request, tmp_path):
    found = rewrite(request.getfixturevalue(fixture), tmp_path / "new").verification
    assert found.passed, found
    presents = {f"present.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")}
    assert {check.name for check in found.outputs} == {"logits", *presents}
    assert found.outputs[0].tolerance < 0.05 * found.outputs[0].largest
    assert found.runs > 8


def test_many_caches_are_printed_as_the_worst_of_each_kind(tmp_path):
    source = models.save(models.decoder(layers=9), tmp_path / "source.onnx")
    result = rewrite(source, tmp_path / "new.onnx")
    assert len(result.verification.outputs) == 19
    lines = [str(line) for line in result.verification.lines()]
    assert [line.split(":")[0] for line in lines][1:] == [
        f"✓ 9 {kind}, worst {max(checks, key=lambda check: check.ratio).name}"
        for kind in ("present_key", "present_value")
        if (checks := [check for check in result.verification.outputs if check.kind == kind])
    ]


def command(*arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{before}\nfrom lean_attention.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "rewrite", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_command_prints_a_line_per_output(tmp_path):
    source = models.save(models.decoder(), tmp_path / "source.onnx")
    run = command(source, tmp_path / "new.onnx")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("    ✓ ") == 5
    assert "✓ present.1.value: largest difference" in run.stdout
    run = command(source, tmp_path / "other.onnx", "--no-verify")
    assert run.returncode == 0, run.stderr
    assert "largest difference" not in run.stdout


def test_command_fails_where_the_models_differ(tmp_path):
    source = models.save(models.decoder(), tmp_path / "source.onnx")
    fault = (
        "import onnx_ir as ir\n"
        "from lean_attention.rewrite.rules.group_query_attention import GroupQueryAttention as G\n"
        "rule = G.rewrite\n"
        "G.rewrite = lambda self, node, *a: rule(self, node, *a) or "
        "node.attributes.add(ir.AttrInt64('smooth_softmax', 1))"
    )
    run = command(source, tmp_path / "new.onnx", before=fault)
    assert run.returncode == 1
    assert "    x sum.1: largest difference" in run.stdout
    assert "wrote" not in run.stdout
    assert run.stderr.startswith("error: the new model computes something else: ")
    assert run.stderr.count("\n") == 1
    assert sorted(listing(tmp_path)) == ["source.onnx"]


def test_chained_steps_go_on_from_the_caches_that_came_out(tmp_path):
    made = models.decoder(layers=1)
    path = models.save(made, tmp_path / "source.onnx")
    interface = read_interface(made)
    chain = next(g for g in scenarios(interface, ragged=True) if any(s.chained for s in g))
    session = CpuSession(path, interface, uses_library=False)
    outputs = list(session.run(chain, 0, lambda: None))
    assert len(outputs) == 3
    for before, after in pairwise(outputs):
        rows = before["present.0.key"].shape[2]
        assert after["present.0.key"].shape[2] == rows + 1
        np.testing.assert_array_equal(after["present.0.key"][:, :, :rows], before["present.0.key"])


def test_inner_shapes_are_no_promise_to_the_disturbed_model():
    made = models.decoder(layers=1)
    wrong = models.tensor("attention.0", TensorProto.FLOAT, [7, 7, 7])
    made.graph.value_info.append(wrong)
    disturbed = disturb(made, {"com.microsoft::GroupQueryAttention"})
    (kept,) = [value for value in disturbed.graph.value_info if value.name == "attention.0"]
    assert kept.type.tensor_type.elem_type == TensorProto.FLOAT
    assert not kept.type.tensor_type.HasField("shape")
    assert list(disturbed.graph.output) == list(made.graph.output)


def test_small_errors_are_in_proportion_and_jumps_are_taken_whole():
    assert sensitivity(1e-6, 1.2e-4) == 1e-6
    assert sensitivity(1e-6, 0.5) == 0.5
    assert sensitivity(0.0, 1.0) == 1.0
    assert sensitivity(0.0, 0.0) == 0.0


def jumping(made: onnx.ModelProto) -> None:
    """Rounds what the first attention gives to steps, as int4 models do with their activations."""
    (node,) = [n for n in made.graph.node if n.op_type == "MatMul" and n.input[1] == "o.0"]
    for name, number in (("step", 5e-4), ("inverse", 2e3)):
        array = np.array(number, np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    at = [*made.graph.node].index(node)
    for op, inputs, output in (
        ("Mul", [node.input[0], "inverse"], "scaled"),
        ("Round", ["scaled"], "rounded"),
        ("Mul", ["rounded", "step"], "stepped"),
    ):
        made.graph.node.insert(at, onnx.helper.make_node(op, inputs, [output]))
        at += 1
    node.input[0] = "stepped"


def test_model_that_jumps_may_jump(tmp_path):
    made = models.decoder()
    jumping(made)
    found = rewrite(models.save(made, tmp_path / "source.onnx"), tmp_path / "new.onnx").verification
    assert found.passed, str(found)
    tolerances = {check.name: check.tolerance for check in found.outputs}
    # A whole step, where one of the first layer's caches must agree to the last bits.
    assert tolerances["present.1.key"] > 1e-4
    assert tolerances["present.0.key"] < 1e-5
