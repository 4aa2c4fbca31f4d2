"""The rewritten real model in our runtime and in onnxruntime-genai: stock's tokens."""

from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest

import lean_attention
from lean_attention.runtime import DecoderModel, Tokenizer, generate

genai = pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")

QUESTIONS = (
    "Why is the sky blue? Answer in three sentences.",
    "What is the capital of France?",
    "A farmer has 17 sheep. All but 9 run away. How many are left? Explain how you found the "
    "number, step by step, and then write it once more on a line of its own.",
)

Tokens = list[int]
# From a prompt and a number of new tokens to these.
Client = Callable[[Tokens, int], Tokens]


def ours(folder: Path) -> Client:
    """Greedy tokens of our runtime."""
    model = DecoderModel.load(folder, threads=2, allow_spinning=False)

    def continue_prompt(prompt: Tokens, new_tokens: int) -> Tokens:
        return generate(model, [prompt], max_new_tokens=new_tokens, ignore_eos=True).tokens[0]

    return continue_prompt


def theirs(folder: Path) -> Client:
    """Greedy tokens of onnxruntime-genai."""
    model = genai.Model(str(folder))

    def continue_prompt(prompt: Tokens, new_tokens: int) -> Tokens:
        params = genai.GeneratorParams(model)
        total = len(prompt) + new_tokens
        params.set_search_options(max_length=total, min_length=total, do_sample=False)
        generator = genai.Generator(model, params)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]

    return continue_prompt


def rewritten(stock: Path, folder: Path) -> Path:
    """Puts our operator into every layer of the real model."""
    result = lean_attention.rewrite(stock, folder)
    assert len(result.replaced) == 30
    assert not result.left
    return folder


@pytest.fixture(scope="module", params=["fp32", "int4"])
def stock_folder(request: pytest.FixtureRequest) -> Path:
    """The real model with the stock operator."""
    folder: Path = request.getfixturevalue(f"real_model_{request.param}")
    return folder


@pytest.fixture(scope="module")
def stock_texts(stock_folder: Path) -> dict[str, tuple[Tokens, Tokens]]:
    """Two prompts and what stock says to them; in our runtime, for both clients to match."""
    stock = ours(stock_folder)
    tokenizer = Tokenizer(stock_folder)
    # onnxruntime-genai would compute the document anew at the 4,097th token.
    document = tokenizer.encode(topics["objects"] + topics["types"])[:4000]
    question = tokenizer.encode_chat(QUESTIONS[0])
    return {
        "answer": (question, stock(question, 200)),
        "document": (document, stock(document, 64)),
    }


@pytest.fixture(scope="module", params=[ours, theirs])
def lean(
    request: pytest.FixtureRequest, stock_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Client:
    """A client with the rewritten model."""
    folder = rewritten(stock_folder, tmp_path_factory.mktemp("lean") / stock_folder.name)
    client: Client = request.param(folder)
    return client


def test_200_tokens_of_an_answer_are_stocks(
    lean: Client, stock_texts: dict[str, tuple[Tokens, Tokens]]
) -> None:
    prompt, expected = stock_texts["answer"]
    assert len(expected) == 200
    assert lean(prompt, 200) == expected


def test_64_tokens_after_4000_are_stocks(
    lean: Client, stock_texts: dict[str, tuple[Tokens, Tokens]]
) -> None:
    prompt, expected = stock_texts["document"]
    assert (len(prompt), len(expected)) == (4000, 64)
    assert lean(prompt, 64) == expected


def test_rows_of_a_ragged_batch_get_the_tokens_of_single_runs(
    real_model_fp32: Path, tmp_path: Path
) -> None:
    folder = rewritten(real_model_fp32, tmp_path / "lean")
    model = DecoderModel.load(folder, threads=2, allow_spinning=False)
    tokenizer = Tokenizer(folder)
    prompts = [tokenizer.encode_chat(question) for question in QUESTIONS]
    assert len({len(prompt) for prompt in prompts}) == 3
    batch = generate(model, prompts, max_new_tokens=64, ignore_eos=True).tokens
    for prompt, tokens in zip(prompts, batch, strict=True):
        assert generate(model, [prompt], max_new_tokens=64, ignore_eos=True).tokens == [tokens]
