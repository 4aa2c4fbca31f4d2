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
# Its answer goes on past 200 tokens, so that no client meets a stop token.
LONG_STORY = "Write a long story about a lighthouse keeper and the sea."

Tokens = list[int]
# From a model folder, a prompt and a number of new tokens to these, greedily.
Client = Callable[[Path, Tokens, int], Tokens]


def ours(folder: Path, prompt: Tokens, new_tokens: int) -> Tokens:
    """Our runtime."""
    model = DecoderModel.load(folder, threads=2, spin_between_runs=False)
    return generate(model, [prompt], max_new_tokens=new_tokens).tokens[0]


def theirs(folder: Path, prompt: Tokens, new_tokens: int) -> Tokens:
    """onnxruntime-genai."""
    model = genai.Model(str(folder))
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + new_tokens, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


def rewritten(stock: Path, folder: Path) -> Path:
    """Puts our operator into every layer of the real model."""
    # The tests below compare them.
    result = lean_attention.rewrite(stock, folder, verify=False)
    assert len(result.replaced) == 30
    assert not result.left
    return folder


@pytest.fixture(scope="module", params=["fp32", "int4"])
def stock_folder(request: pytest.FixtureRequest) -> Path:
    """The real model with the stock operator."""
    folder: Path = request.getfixturevalue(f"real_model_{request.param}")
    return folder


@pytest.fixture(scope="module")
def lean_folder(stock_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, rewritten."""
    return rewritten(stock_folder, tmp_path_factory.mktemp("lean") / stock_folder.name)


@pytest.fixture(scope="module")
def answer(stock_folder: Path) -> tuple[Tokens, Tokens]:
    """A question, and 200 tokens of the stock model's answer."""
    prompt = Tokenizer(stock_folder).encode_chat(LONG_STORY)
    return prompt, ours(stock_folder, prompt, 200)


@pytest.fixture(scope="module")
def continuation(stock_folder: Path) -> tuple[Tokens, Tokens]:
    """4,000 tokens of a document, and how the stock model continues it for 64."""
    document = Tokenizer(stock_folder).encode(topics["objects"] + topics["types"])
    # onnxruntime-genai would compute the prompt anew at the 4,097th token.
    prompt = document[:4000]
    return prompt, ours(stock_folder, prompt, 64)


@pytest.mark.parametrize("client", [ours, theirs])
def test_200_tokens_of_an_answer_are_stocks(
    client: Client, lean_folder: Path, answer: tuple[Tokens, Tokens]
) -> None:
    prompt, expected = answer
    assert len(expected) == 200
    assert client(lean_folder, prompt, 200) == expected


@pytest.mark.parametrize("client", [ours, theirs])
def test_64_tokens_after_4000_are_stocks(
    client: Client, lean_folder: Path, continuation: tuple[Tokens, Tokens]
) -> None:
    prompt, expected = continuation
    assert len(expected) == 64
    assert client(lean_folder, prompt, 64) == expected


def test_rows_of_a_ragged_batch_get_the_tokens_of_single_runs(
    real_model_fp32: Path, tmp_path: Path
) -> None:
    folder = rewritten(real_model_fp32, tmp_path / "lean")
    model = DecoderModel.load(folder, threads=2, spin_between_runs=False)
    tokenizer = Tokenizer(folder)
    prompts = [tokenizer.encode_chat(question) for question in QUESTIONS]
    assert len({len(prompt) for prompt in prompts}) == 3
    batch = generate(model, prompts, max_new_tokens=64, ignore_eos=True).tokens
    for prompt, tokens in zip(prompts, batch, strict=True):
        assert generate(model, [prompt], max_new_tokens=64, ignore_eos=True).tokens == [tokens]
