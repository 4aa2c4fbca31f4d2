"""``lean-attention generate`` prints text on standard output and everything else elsewhere."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
from typer.testing import CliRunner

from lean_attention.commands.generate import generate as generate_command
from lean_attention.errors import LeanAttentionError
from lean_attention.runtime import DecoderModel, Tokenizer, generate


@pytest.fixture(scope="module")
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(generate_command)
    return app


def test_the_command_prints_the_text_and_nothing_else(
    command: typer.Typer, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("from a file", encoding="utf-8")
    tiny = DecoderModel.load(tiny_model, threads=1)
    tokenizer = Tokenizer(tiny_model)
    flags = ["--max-new-tokens", "20", "--ignore-eos", "--threads", "1"]
    texts = [
        generate(
            tiny,
            [tokenizer.encode(text)],
            max_new_tokens=20,
            ignore_eos=True,
            tokenizer=tokenizer,
        ).texts[0]
        for text in ("hello", "from a file")
    ]
    one = CliRunner().invoke(command, [str(tiny_model), "--prompt", "hello", *flags])
    assert one.stdout == texts[0] + "\n"
    assert "5 + 20 tokens" in one.stderr
    assert "first token after" in one.stderr
    both = ["--prompt", "hello", "--prompt-file", str(tmp_path / "prompt.txt")]
    two = CliRunner().invoke(command, [str(tiny_model), *both, *flags])
    assert two.stdout == f"{texts[0]}\n{texts[1]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt"),
        (["--prompt", " "], "a prompt is empty"),
        (["--prompt-file", "absent.txt"], "cannot read the prompt in absent.txt"),
        (["--prompt", "x", "--system", "y"], "--system needs a chat template"),
        (["--prompt", "x", "--temperature", "-1"], "temperature must be"),
        (["--prompt", "x", "--context", "300"], "300 tokens is beyond the 256"),
        (["--prompt", "x" * 300], "300 tokens, the model's context 256"),
        (["--prompt", "x\udcff", "--no-chat"], r"'\udcff', which is no character"),
        (["--prompt", "x", "--threads", "10000000000"], "threads must be 1 to 1024"),
        (["--prompt", "x", "--provider", "tpu"], "choose one of cpu, cuda, rocm"),
        (["--prompt", "x", "--provider", "rocm"], "has no ROCMExecutionProvider"),
    ],
)
def test_the_command_refuses_in_one_line(
    command: typer.Typer, tiny_model: Path, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(command, [str(tiny_model), *arguments])
    assert isinstance(result.exception, LeanAttentionError)
    assert message in str(result.exception)
    assert not result.stdout


def test_brackets_in_prompts_are_text(command: typer.Typer, tiny_model: Path) -> None:
    prompts = ["--prompt", "[/]", "--prompt", "[bold]x", "--no-chat", "--max-new-tokens", "2"]
    result = CliRunner().invoke(command, [str(tiny_model), *prompts])
    assert result.exit_code == 0
    assert "[/] ─" in result.stderr
    assert "[bold]x ─" in result.stderr


def test_a_temperature_of_nearly_nothing_is_greedy(command: typer.Typer, tiny_model: Path) -> None:
    flags = [str(tiny_model), "--prompt", "hello", "--max-new-tokens", "8"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cold = CliRunner().invoke(command, [*flags, "--temperature", "1e-320"])
    assert cold.exit_code == 0
    assert cold.stdout == CliRunner().invoke(command, flags).stdout


def run_process(model: Path, stdout: Any, **environment: str) -> "subprocess.CompletedProcess[str]":
    flags = ["--prompt", "hello", "--max-new-tokens", "20", "--ignore-eos"]
    return subprocess.run(
        [sys.executable, "-m", "lean_attention", "generate", str(model), *flags],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
    )


WITHOUT_TORCH = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
from lean_attention.__main__ import main
main()
"""


@pytest.mark.parametrize("level", [None, "warning"])
def test_transformers_is_silent_unless_it_is_asked_to_speak(
    tiny_long_rope_model: Path, tmp_path: Path, level: str | None
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_long_rope_model, folder)
    shutil.copy(tiny_long_rope_model.parent / "source" / "config.json", folder)
    environment = {k: v for k, v in os.environ.items() if k != "TRANSFORMERS_VERBOSITY"}
    if level is not None:
        environment["TRANSFORMERS_VERBOSITY"] = level
    flags = [str(folder), "--prompt=hello", "--max-new-tokens=2", "--ignore-eos"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "generate", *flags],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    for warning in ("PyTorch was not found", "rope_parameters"):
        assert (warning in done.stderr) == (level is not None)


def test_text_that_standard_output_cannot_encode_is_replaced(tiny_model: Path) -> None:
    plain, narrow = (
        run_process(tiny_model, subprocess.PIPE, PYTHONIOENCODING=encoding)
        for encoding in ("utf-8", "ascii")
    )
    assert not plain.stdout.isascii()
    assert narrow.returncode == 0
    assert narrow.stdout == "".join(c if c.isascii() else "?" for c in plain.stdout)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line_and_a_closed_pipe_none(tiny_model: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run_process(tiny_model, full)
    assert result.returncode == 1
    assert "error: cannot write the answer to standard output: No space left" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        result = run_process(tiny_model, closed)
    assert result.returncode == 1
    assert "rror" not in result.stderr


def copied(source: Path, target: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    shutil.copytree(source, target)
    model = onnx.load(target / "model.onnx", load_external_data=False)
    edit(model)
    (target / "model.onnx").write_bytes(model.SerializeToString())
    return target


def refusal(command: typer.Typer, model: Path) -> str:
    result = CliRunner().invoke(command, [str(model), "--prompt", "hello", "--max-new-tokens", "4"])
    assert isinstance(result.exception, LeanAttentionError), result.exception
    message = str(result.exception)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("value", ["abc", {}, [2, "x"], [None], True, 2.0])
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id"])
def test_token_ids_of_another_kind_are_refused(
    command: typer.Typer, tiny_model: Path, tmp_path: Path, name: str, value: Any
) -> None:
    folder = with_config(tiny_model, tmp_path / "m", lambda model: model.update({name: value}))
    message = refusal(command, folder)
    assert f"{name} in {folder / 'genai_config.json'} is {json.dumps(value)}" in message


def with_config(source: Path, target: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(source, target)
    config = json.loads((target / "genai_config.json").read_text(encoding="utf-8"))
    edit(config["model"])
    (target / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("decoder", "filename", None, "is null, not the name of a model file"),
        ("decoder", "filename", 5, "is 5, not the name"),
        ("decoder", "filename", [], "is [], not the name"),
        ("decoder", "filename", "../m/model.onnx", "leads out of its folder"),
        ("decoder", "filename", "/etc/passwd", "leads out of its folder"),
        ("decoder", "filename", "absent.onnx", "absent.onnx, which is not in the folder"),
        ("decoder", "head_size", 0, "head_size in"),
        ("decoder", "head_size", 17, "cannot run"),
        (None, "context_length", True, "is true, not a positive whole number"),
        (None, "context_length", -1, "is -1, not a positive whole number"),
    ],
)
def test_settings_that_no_model_can_have_are_refused(
    command: typer.Typer,
    tiny_model: Path,
    tmp_path: Path,
    part: str | None,
    name: str,
    value: Any,
    message: str,
) -> None:
    def edit(model: dict[str, Any]) -> None:
        (model[part] if part else model)[name] = value

    def free_heads(model: onnx.ModelProto) -> None:
        for cache in [*model.graph.input, *model.graph.output]:
            if cache.name.startswith(("past_", "present.")):
                cache.type.tensor_type.shape.dim[3].dim_param = "head_size"

    folder = with_config(tiny_model, tmp_path / "m", edit)
    if name == "head_size":
        folder = copied(folder, tmp_path / "free", free_heads)
    assert message in refusal(command, folder)


def test_nesting_without_end_is_refused(
    command: typer.Typer, tiny_model: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    (tmp_path / "m" / "genai_config.json").write_text("[" * 100_000)
    assert "not a configuration of onnxruntime-genai" in refusal(command, tmp_path / "m")


def attention(model: onnx.ModelProto) -> Any:
    return next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")


def heads(model: onnx.ModelProto) -> Any:
    return next(a for a in attention(model).attribute if a.name == "num_heads")


def past_key(model: onnx.ModelProto) -> Any:
    tensors = (v for v in model.graph.input if v.name == "past_key_values.0.key")
    return next(tensors).type.tensor_type


def without_table_dims(model: onnx.ModelProto) -> None:
    table = attention(model).input[7]
    (tensor,) = (t for t in model.graph.initializer if t.name == table)
    del tensor.dims[:]


def shape_of_rank_0(model: onnx.ModelProto) -> None:
    del past_key(model).shape.dim[:]


DAMAGE: list[tuple[Callable[[onnx.ModelProto], object], str]] = [
    (lambda m: attention(m).ClearField("output"), "is damaged"),
    (lambda m: attention(m).attribute.remove(heads(m)), "is damaged"),
    (lambda m: setattr(heads(m), "i", 0), "is damaged"),
    (lambda m: setattr(heads(m), "ref_attr_name", "x"), "is damaged"),
    (lambda m: setattr(heads(m), "type", 0), "is damaged"),
    (without_table_dims, "is damaged"),
    (lambda m: past_key(m).ClearField("shape"), "past_key_values.0.key"),
    (shape_of_rank_0, "past_key input shall be 4 dimensions"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_graphs_are_refused(
    command: typer.Typer,
    tiny_model: Path,
    tmp_path: Path,
    damage: Callable[[onnx.ModelProto], None],
    message: str,
) -> None:
    assert message in refusal(command, copied(tiny_model, tmp_path / "m", damage))
