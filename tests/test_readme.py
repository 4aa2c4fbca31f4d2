"""What the README shows, run as it stands there, with a rewritten model and with the stock one."""

from collections.abc import Callable
from pathlib import Path

import pytest

import lean_attention
from conftest import build_tiny_model
from lean_attention.runtime import DecoderModel, Tokenizer, generate
from readme import code_blocks, run_blocks

Tokens = list[int]
# From a prompt and a number of new tokens to all of them.
Continued = Callable[[Tokens, int], Tokens]
# These need an environment of their own, and a GPU.
ELSEWHERE = {"optimum", "On a GPU"}
OPENING = "The sky is blue because"
OPENINGS = (OPENING, "Yes, but", "Once upon a time")
CHAT_TEMPLATE = "{{ messages[0]['content'] }}"


@pytest.fixture(scope="module")
def stock_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``phi3-lean`` is a stock model."""
    folder = tmp_path_factory.mktemp("stock")
    model = build_tiny_model(folder / "model").rename(folder / "phi3-lean")
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def lean_folder(stock_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is the same model, rewritten."""
    folder = tmp_path_factory.mktemp("lean")
    result = lean_attention.rewrite(stock_folder / "phi3-lean", folder / "phi3-lean")
    assert len(result.replaced) == 2
    return folder


@pytest.fixture(params=["lean_folder", "stock_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    """Each in turn."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def continued(stock_folder: Path) -> Continued:
    """What our runtime makes of the stock model."""
    model = DecoderModel.load(stock_folder / "phi3-lean", threads=1)
    return lambda prompt, new: prompt + generate(model, [prompt], max_new_tokens=new).tokens[0]


def test_every_block_is_run_here_or_elsewhere() -> None:
    tested = {"Put it into a model", "onnxruntime-genai", "A session of your own", "Our runtime"}
    assert {heading for heading, _ in code_blocks()} == tested | ELSEWHERE


def test_a_model_is_rewritten(
    stock_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "phi3").symlink_to(stock_folder / "phi3-lean")
    assert len(list(run_blocks("Put it into a model", tmp_path, monkeypatch))) == 1
    assert "2 of 2 GroupQueryAttention nodes replaced" in capsys.readouterr().out
    assert (tmp_path / "phi3-lean" / "model.onnx").is_file()


def test_genai(
    folder: Path,
    continued: Continued,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")
    blocks = run_blocks("onnxruntime-genai", folder, monkeypatch)

    alone = next(blocks)
    encode, decode = alone["tokenizer"].encode, alone["tokenizer"].decode
    prompt = encode(OPENING).tolist()
    tokens = alone["generator"].get_sequence(0).tolist()
    assert tokens == continued(prompt, 64 - len(prompt))
    assert capsys.readouterr().out == decode(tokens) + "\n"

    batch = next(blocks)
    for row, text in enumerate(OPENINGS):
        prompt = encode(text).tolist()
        new = batch["generator"].get_sequence(row).tolist()[batch["width"] :]
        assert prompt + new == continued(prompt, 64 - len(OPENING))
    assert capsys.readouterr().out.count("\n") >= 3

    turns = next(blocks)
    first = continued(encode(OPENING).tolist(), 12)
    second = continued(first + encode(" But at night").tolist(), 12)
    third = continued(first + encode(" And at sea").tolist(), 12)
    assert turns["turn"] == len(first)
    assert turns["generator"].get_sequence(0).tolist() == third
    answers = [decode(tokens[-12:]) for tokens in (first, second, third)]
    assert capsys.readouterr().out == "".join(f"{answer}\n" for answer in answers)
    assert next(blocks, None) is None


def test_a_session_of_your_own(
    folder: Path, continued: Continued, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = run_blocks("A session of your own", folder, monkeypatch)
    encode = Tokenizer(folder / "phi3-lean").encode
    expected = continued(encode(OPENING), 16)
    assert next(blocks)["tokens"] == expected
    assert next(blocks)["tokens"] == expected
    answers = next(blocks)["answers"].tolist()
    for text, answer in zip(OPENINGS, answers, strict=True):
        assert encode(text) + answer == continued(encode(text), 16)
    assert next(blocks, None) is None


def test_our_runtime(
    folder: Path,
    continued: Continued,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (names,) = run_blocks("Our runtime", folder, monkeypatch)
    prompt = names["tokenizer"].encode("Why is the sky blue?")
    answer = names["tokenizer"].decode(continued(prompt, 100)[len(prompt) :])
    assert capsys.readouterr().out == answer
