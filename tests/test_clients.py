"""The rewritten real model in our runtime and in onnxruntime-genai: stock's tokens."""

from pathlib import Path
from pydoc_data.topics import topics

import onnxruntime_genai as genai
import pytest

import lean_attention
from lean_attention.runtime import DecoderModel, Tokenizer, generate

QUESTION = "Why is the sky blue? Answer in three sentences."
Tokens = list[int]


@pytest.fixture(scope="session", params=["fp32", "int4"])
def stock_folder(request: pytest.FixtureRequest) -> Path:
    """The real model with the stock operator."""
    folder: Path = request.getfixturevalue(f"real_model_{request.param}")
    return folder


@pytest.fixture(scope="session")
def lean_folder(stock_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, rewritten."""
    folder = tmp_path_factory.mktemp("lean") / stock_folder.name
    result = lean_attention.rewrite(stock_folder, folder)
    assert len(result.replaced) == 30
    assert not result.left
    return folder


def ours(folder: Path, prompt: Tokens, new_tokens: int) -> Tokens:
    """Greedy tokens of our runtime."""
    model = DecoderModel.load(folder, threads=2)
    return generate(model, [prompt], max_new_tokens=new_tokens, ignore_eos=True).tokens[0]


def theirs(folder: Path, prompt: Tokens, new_tokens: int) -> Tokens:
    """Greedy tokens of onnxruntime-genai."""
    model = genai.Model(str(folder))
    params = genai.GeneratorParams(model)
    total = len(prompt) + new_tokens
    params.set_search_options(max_length=total, min_length=total, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


@pytest.mark.parametrize("client", [ours, theirs])
def test_200_tokens_of_an_answer_are_stocks(
    stock_folder: Path, lean_folder: Path, client: object
) -> None:
    prompt = Tokenizer(stock_folder).encode_chat(QUESTION)
    expected = client(stock_folder, prompt, 200)
    assert len(expected) == 200
    assert client(lean_folder, prompt, 200) == expected


@pytest.mark.parametrize("client", [ours, theirs])
def test_64_tokens_after_4000_are_stocks(
    stock_folder: Path, lean_folder: Path, client: object
) -> None:
    tokenizer = Tokenizer(stock_folder)
    document = tokenizer.encode(topics["objects"] + topics["types"])
    # One token more would make onnxruntime-genai compute the prompt anew within the run.
    prompt = document[:4000]
    expected = client(stock_folder, prompt, 64)
    assert client(lean_folder, prompt, 64) == expected
