"""``lean-attention generate`` prints text on standard output and everything else elsewhere."""

from pathlib import Path

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
    ],
)
def test_the_command_refuses_in_one_line(
    command: typer.Typer, tiny_model: Path, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(command, [str(tiny_model), *arguments])
    assert isinstance(result.exception, LeanAttentionError)
    assert message in str(result.exception)
    assert not result.stdout
