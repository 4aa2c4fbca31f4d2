"""The catalogue's numbers, small exports run by every client at hand, and every refusal."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import typer
from typer.testing import CliRunner

from lean_attention import LeanAttentionError
from lean_attention.commands.export import export as export_command
from lean_attention.export import export_model, load_model, model_names
from lean_attention.export.builder import check_logits, reference_logits
from lean_attention.export.plan import check_room, make_plan

needs_builder = pytest.mark.usefixtures("builder_packages")

SMALL = {"phi-2": 0.05, "phi-3-mini-4k": 0.05, "phi-4-mini": 0.02}

# name: layers, heads, KV heads, head size, cos width, window, LongRoPE
PUBLISHED = {
    "phi-2": (32, 32, 32, 80, 16, None, False),
    "phi-3-mini-4k": (32, 32, 32, 96, 48, 2047, False),
    "phi-3-mini-128k": (32, 32, 32, 96, 48, 262144, True),
    "phi-3-medium-4k": (40, 40, 10, 128, 64, 2047, False),
    "phi-3-medium-128k": (40, 40, 10, 128, 64, 131072, True),
    "phi-3.5-mini": (32, 32, 32, 96, 48, 262144, True),
    "phi-4": (40, 40, 10, 128, 64, None, False),
    "phi-4-mini": (32, 24, 8, 128, 48, 262144, True),
    "smollm2-135m-instruct": (30, 9, 3, 64, 32, None, False),
}


@pytest.fixture(scope="module")
def builder_packages():
    """The packages of the extra 'genai'."""
    for module in ("torch", "onnxruntime_genai", "onnxscript"):
        pytest.importorskip(module)


@pytest.fixture(scope="module")
def exported(builder_packages, tmp_path_factory):
    """Small exports of three models by name, and one in half precision; made side by side."""
    folder = tmp_path_factory.mktemp("exported")

    def make(name):
        if name == "fp16":
            sizes = {"layers": 1, "hidden_scale": 0.02, "precision": "fp16"}
            return export_model("phi-3-mini-4k", folder / name, **sizes)
        return export_model(name, folder / name, layers=2, hidden_scale=SMALL[name])

    names = [*SMALL, "fp16"]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(make, names), strict=True))


def plan_for(name, **changes):
    sizes = {
        "layers": 2,
        "precision": "fp32",
        "int4_activations": None,
        "hidden_scale": 1.0,
        "vocab_size": None,
        "seed": 0,
    }
    return make_plan(load_model(name), **(sizes | changes))


def attention_nodes(model):
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def assert_one_line(error, *words):
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# The catalogue


def test_catalogue_holds_exactly_the_published_models():
    assert model_names() == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_catalogue_numbers_are_the_published_ones(name):
    spec = load_model(name)
    assert PUBLISHED[name] == (
        spec.num_layers,
        spec.num_heads,
        spec.kv_num_heads,
        spec.head_size,
        spec.rotary_pairs,
        spec.window,
        spec.is_longrope,
    )


@pytest.mark.parametrize("name", [name for name in PUBLISHED if PUBLISHED[name][-1]])
def test_longrope_lists_hold_one_rising_factor_per_rotary_pair(name):
    spec = load_model(name)
    for key in ("short_factor", "long_factor"):
        factors = spec.config["rope_scaling"][key]
        assert len(factors) == spec.rotary_pairs
        assert factors == sorted(factors)
        assert factors[0] >= 1.0


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_accepts_every_configuration(name):
    from transformers import AutoConfig

    spec = load_model(name)
    config = AutoConfig.for_model(**spec.config)
    assert config.num_key_value_heads == spec.kv_num_heads
    assert config.max_position_embeddings == spec.config["max_position_embeddings"]


# What an export holds


@needs_builder
@pytest.mark.parametrize("name", SMALL)
def test_attention_nodes_carry_the_real_shapes(exported, name):
    _, heads, kv_heads, head_size, _, window, _ = PUBLISHED[name]
    model = onnx.load(exported[name] / "model.onnx", load_external_data=False)
    nodes = attention_nodes(model)
    assert len(nodes) == 2
    for node in nodes:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert attributes["num_heads"] == heads
        assert attributes["kv_num_heads"] == kv_heads
        assert attributes["do_rotary"] == 1
        assert attributes["local_window_size"] == (-1 if window is None else window)
        assert "sliding_window_cache" not in attributes
    cache = next(i for i in model.graph.input if i.name == nodes[0].input[3])
    shape = [dimension.dim_value for dimension in cache.type.tensor_type.shape.dim]
    assert shape[1] == kv_heads
    config = json.loads((exported[name] / "genai_config.json").read_text())
    assert config["model"]["decoder"]["head_size"] == head_size


@needs_builder
@pytest.mark.parametrize("name", ["phi-2", "phi-3-mini-4k"])
def test_rotary_table_is_an_initializer_of_the_real_width(exported, name):
    model = onnx.load(exported[name] / "model.onnx", load_external_data=False)
    tables = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    rows = load_model(name).config["max_position_embeddings"]
    for position in (7, 8):
        table = attention_nodes(model)[0].input[position]
        assert tables[table] == [rows, PUBLISHED[name][4]]


@needs_builder
def test_longrope_tables_come_from_an_if_with_a_short_and_a_long_branch(exported):
    model = onnx.load(exported["phi-4-mini"] / "model.onnx", load_external_data=False)
    (choice,) = (node for node in model.graph.node if node.op_type == "If")
    assert list(choice.output) == list(attention_nodes(model)[0].input[7:9])
    shapes = set()
    for branch in choice.attribute:
        for node in branch.g.node:
            shapes.add(tuple(node.attribute[0].t.dims))
    assert shapes == {(4096, 48), (131072, 48)}


@needs_builder
@pytest.mark.parametrize("name", SMALL)
def test_export_runs_in_onnxruntime_genai(exported, name):
    import onnxruntime_genai as genai

    model = genai.Model(str(exported[name]))
    tokenizer = genai.Tokenizer(model)
    prompt = tokenizer.encode("Grüße, 世界")
    assert tokenizer.decode(prompt) == "Grüße, 世界"
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + 5, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    said = generator.get_sequence(0)[len(prompt) :]
    assert 1 <= len(said) <= 5
    assert tokenizer.decode(said)


@needs_builder
@pytest.mark.parametrize("name", SMALL)
def test_transformers_reads_config_and_tokenizer_of_an_export(exported, name):
    from transformers import AutoConfig, AutoTokenizer

    spec = load_model(name)
    config = AutoConfig.from_pretrained(exported[name])
    assert config.head_dim == spec.head_size
    assert config.num_key_value_heads == spec.kv_num_heads
    tokenizer = AutoTokenizer.from_pretrained(exported[name])
    assert len(tokenizer) == config.vocab_size
    encoded = tokenizer("Grüße, 世界")
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert tokenizer.decode(encoded["input_ids"]) == "Grüße, 世界"
    assert tokenizer.eos_token_id == config.eos_token_id


@needs_builder
def test_tokenizer_file_names_a_class_that_transformers_4_knows(exported):
    saved = json.loads((exported["phi-2"] / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    config = json.loads((exported["phi-4-mini"] / "config.json").read_text())
    assert config["rope_theta"] == 10000.0
    assert set(config["rope_scaling"]) == {"type", "short_factor", "long_factor"}


@needs_builder
def test_export_equals_the_original_beyond_its_window(exported):
    import onnxruntime
    import torch

    from lean_attention.export.random_weights import make_random_model

    plan = plan_for("phi-3-mini-4k", hidden_scale=SMALL["phi-3-mini-4k"])
    original, _ = make_random_model(plan)
    tokens = np.random.default_rng(0).integers(0, 256, (1, 2100))
    with torch.no_grad():
        expected = original(torch.from_numpy(tokens), logits_to_keep=1).logits[0, -1].numpy()
    session = onnxruntime.InferenceSession(
        exported["phi-3-mini-4k"] / "model.onnx", providers=["CPUExecutionProvider"]
    )
    feeds = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    empty = np.zeros((1, 32, 0, 96), np.float32)
    inputs = {value.name: feeds.get(value.name, empty) for value in session.get_inputs()}
    actual = session.run(["logits"], inputs)[0][0, -1]
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())


@needs_builder
def test_check_of_the_logits_refuses_another_model(exported):
    from lean_attention.export.random_weights import make_random_model

    sizes = {"hidden_scale": SMALL["phi-3-mini-4k"]}
    plan = plan_for("phi-3-mini-4k", **sizes)
    same, _ = make_random_model(plan)
    other, _ = make_random_model(plan_for("phi-3-mini-4k", seed=1, **sizes))
    assert check_logits(plan, exported["phi-3-mini-4k"], reference_logits(same)) < 1e-5
    with pytest.raises(LeanAttentionError) as error:
        check_logits(plan, exported["phi-3-mini-4k"], reference_logits(other))
    assert_one_line(error, "differs from the original")


@needs_builder
def test_half_precision_export_loads_on_the_cpu_provider(exported):
    import onnxruntime

    session = onnxruntime.InferenceSession(
        exported["fp16"] / "model.onnx", providers=["CPUExecutionProvider"]
    )
    types = {value.name: value.type for value in session.get_inputs()}
    assert types["past_key_values.0.key"] == "tensor(float16)"


# Real weights


@needs_builder
def test_phi3_form_of_a_llama_says_the_same_and_a_wrong_one_is_refused():
    import torch
    import transformers

    from lean_attention.export.real_weights import check_same_tokens, stack_projections
    from lean_attention.export.tokenizer import byte_tokenizer

    tokenizer = byte_tokenizer(320)
    sizes = {
        "vocab_size": 320,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "initializer_range": 0.5,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    phi3 = transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes)).eval()
    stacked = stack_projections(llama.state_dict())
    phi3.load_state_dict(stacked)
    check_same_tokens(llama, phi3, tokenizer)

    first = "model.layers.0.self_attn.qkv_proj.weight"
    phi3.load_state_dict(stacked | {first: stacked[first].flip(0)})
    with pytest.raises(LeanAttentionError) as error:
        check_same_tokens(llama, phi3, tokenizer)
    assert_one_line(error, "differs from the original at new token")


# Refusals


def test_unknown_name_lists_the_models_and_the_nearest(tmp_path):
    with pytest.raises(LeanAttentionError) as error:
        export_model("phi4-mini", tmp_path / "m")
    assert_one_line(error, "did you mean phi-4-mini?", *PUBLISHED)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("phi-4", {"precision": "int8"}, ["'int8'", "fp32, int4, fp16"]),
        ("phi-4", {"precision": "int4", "int4_activations": "fp16"}, ["'fp16'", "int8, fp32"]),
        ("phi-4", {"int4_activations": "int8"}, ["'int8'", "'fp32'", "precision int4"]),
        ("phi-4", {"precision": "fp16", "int4_activations": "fp32"}, ["'fp32'", "'fp16'"]),
        ("phi-4", {"layers": 0}, ["0 layers", "1 to 40"]),
        ("phi-4", {"layers": 41}, ["41 layers", "1 to 40"]),
        ("phi-4", {"hidden_scale": 0.0}, ["0.0", "(0, 1]"]),
        ("phi-4", {"hidden_scale": 1.5}, ["1.5", "(0, 1]"]),
        ("phi-4", {"vocab_size": 100}, ["100", "259", "100352"]),
        ("phi-2", {"vocab_size": 10240}, ["10240", "try 10239"]),
        ("phi-4", {"seed": -1}, ["-1"]),
        ("smollm2-135m-instruct", {"layers": 2}, ["real weights", "exported whole"]),
        ("smollm2-135m-instruct", {"hidden_scale": 0.5}, ["real weights", "exported whole"]),
    ],
)
def test_sizes_out_of_range_are_refused(tmp_path, name, sizes, words):
    with pytest.raises(LeanAttentionError) as error:
        export_model(name, tmp_path / "m", **sizes)
    assert_one_line(error, *words)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("phi")])
@pytest.mark.parametrize("scale", [0.02, 0.05, 0.25, 0.5])
def test_scaled_vocabulary_is_never_the_width_of_another_matrix(name, scale):
    plan = plan_for(name, hidden_scale=scale)
    spec, config = plan.spec, plan.config
    query, key_value = (n * spec.head_size for n in (spec.num_heads, spec.kv_num_heads))
    mlp = config["intermediate_size"]
    widths = {config["hidden_size"], mlp, 2 * mlp, query, key_value, query + 2 * key_value}
    assert config["vocab_size"] not in widths
    assert config["vocab_size"] >= 259


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_destination_that_exists_is_never_overwritten(tmp_path, kind):
    target = tmp_path / "m"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(LeanAttentionError) as error:
        export_model("phi-2", target)
    assert_one_line(error, str(target), "never overwritten")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_destination_without_a_parent_is_refused(tmp_path):
    with pytest.raises(LeanAttentionError) as error:
        export_model("phi-2", tmp_path / "a" / "b")
    assert_one_line(error, str(tmp_path / "a"), "create it")


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    needed = "lean_attention.export.exporter.NEEDED_MODULES"
    monkeypatch.setattr(needed, ("json", "a_module_that_is_missing"))
    with pytest.raises(LeanAttentionError) as error:
        export_model("phi-2", tmp_path / "m")
    assert_one_line(error, "a_module_that_is_missing", "pip install 'lean-attention[genai]'")


@pytest.mark.parametrize(
    ("free", "remedy"), [(30e9, "--layers 5 would fit"), (2e9, "not even one layer fits")]
)
def test_too_little_memory_says_how_many_layers_would_fit(tmp_path, monkeypatch, free, remedy):
    monkeypatch.setattr("lean_attention.export.plan._free_memory", lambda: int(free))
    with pytest.raises(LeanAttentionError) as error:
        check_room(plan_for("phi-4", layers=40), tmp_path)
    assert_one_line(error, "phi-4 with 40 layers", "memory", remedy)


@needs_builder
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'ValueError: a strange thing' >&2; exit 3", ["a strange thing", ".log"]),
        ("kill -KILL $$", ["lack of memory"]),
    ],
)
def test_failure_of_the_worker_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, script, words):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder, python = tmp_path / "folder", tmp_path / "python"
    folder.mkdir()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LeanAttentionError) as error:
        export_model("phi-2", folder / "m", hidden_scale=0.05)
    assert_one_line(error, *words)
    assert not any(folder.iterdir())


# The command


@pytest.fixture(scope="module")
def command_line():
    """The command alone, as typer runs it."""
    app = typer.Typer()
    app.command()(export_command)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_command_lists_the_models(command_line):
    result = command_line("--list")
    assert result.exit_code == 0
    for name in PUBLISHED:
        assert name in result.output


def test_command_without_a_destination_says_what_it_needs(command_line):
    result = command_line("phi-2")
    assert isinstance(result.exception, LeanAttentionError)
    assert "export NAME DST" in str(result.exception)


@needs_builder
@pytest.mark.parametrize(
    ("options", "accuracy_level"),
    [([], 4), (["--int4-activations", "fp32"], 1)],
    ids=["int8", "fp32"],
)
def test_command_builds_a_quantised_folder_and_nothing_beside_it(
    command_line, tmp_path, options, accuracy_level
):
    # Square brackets, which are markup to rich.
    target = tmp_path / "[m]"
    sizes = ("--layers", 1, "--hidden-scale", 0.02, "--vocab-size", 300)
    result = command_line("phi-3-mini-4k", target, *sizes, "--precision", "int4", *options)
    assert result.exit_code == 0, result.output
    assert str(target) in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["[m]"]
    model = onnx.load(target / "model.onnx", load_external_data=False)
    quantised = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    # Of the layer QKV, output, gate, up and down; the language model head.
    assert len(quantised) == 6
    for node in quantised:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert attributes["bits"] == 4
        assert attributes["accuracy_level"] == accuracy_level
        # Asymmetric: zero points beside the scales.
        assert node.input[3]
    assert len(attention_nodes(model)) == 1
    assert json.loads((target / "config.json").read_text())["vocab_size"] == 300
