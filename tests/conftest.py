"""Models that the tests share: two layers of random weights, and the real one."""

import contextlib
import io
import os
from pathlib import Path

import pytest
from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parent.parent


def build_tiny_model(
    folder: Path, precision: str = "fp32", *, long_rope: bool = False, head_size: int = 16
) -> Path:
    """Exports a Phi-3 of two layers with random weights through the onnxruntime-genai builder.

    4 query heads, 2 KV heads, 512 token ids, 256 positions; its tokens are bytes.
    The transformers model stays at ``folder / "source"``.

    Args:
        folder: Where to write; must not exist.
        precision: ``fp32`` or ``fp16``; the latter has fp16 caches and logits.
        long_rope: Whether the rotary tables change above 32 tokens.
        head_size: H.

    Returns:
        The folder for onnxruntime-genai.
    """
    import tokenizers
    import torch
    import transformers
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    torch.manual_seed(20)
    rope: dict[str, object] = {"original_max_position_embeddings": 256}
    if long_rope:
        factors = {
            "short_factor": [1.0] * (head_size // 2),
            "long_factor": [2.0 + i for i in range(head_size // 2)],
        }
        rope = {
            "original_max_position_embeddings": 32,
            "rope_scaling": {"type": "longrope", **factors},
        }
    config = transformers.Phi3Config(
        vocab_size=512,
        hidden_size=4 * head_size,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        # The usual 0.02 makes tokens that hardly depend on attention.
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **rope,
    )
    source = folder / "source"
    transformers.Phi3ForCausalLM(config).save_pretrained(source)
    letters = ["<pad>", "<s>", "</s>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    model = tokenizers.models.BPE(vocab={t: i for i, t in enumerate(letters)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(source)

    target, cache = folder / precision, folder / "cache"
    provider = "cuda" if precision == "fp16" else "cpu"
    place = ("tiny", str(source), str(target), precision, provider, str(cache))
    with contextlib.redirect_stdout(io.StringIO()):
        create_model(*place, **parse_extra_options(*place, []))
    return target


def real_model(precision: str, int4_activations: str | None = None) -> Path:
    """Returns SmolLM2-135M-Instruct, exported once into ``.cache/models``.

    The folder is the one that ``make demo`` uses. The environment variable
    ``LEAN_ATTENTION_TEST_MODELS`` names another place to look in and export to.
    """
    from lean_attention.export import export_model

    parent = os.environ.get("LEAN_ATTENTION_TEST_MODELS", REPOSITORY / ".cache" / "models")
    variant = precision if int4_activations is None else f"int4-{int4_activations}-activations"
    folder = Path(parent) / f"smollm2-135m-instruct-{variant}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Tests of another process may want it as well.
    with FileLock(f"{folder}.lock"):
        if not (folder / "genai_config.json").is_file():
            export_model(
                "smollm2-135m-instruct",
                folder,
                precision=precision,
                int4_activations=int4_activations,
            )
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Phi-3 of two layers, fp32; see `build_tiny_model`."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_model_fp16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with fp16 weights, caches and logits."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny-fp16") / "model", "fp16")


@pytest.fixture(scope="session")
def tiny_long_rope_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with LongRoPE tables that change above 32 tokens, fp32."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny-long") / "model", long_rope=True)


@pytest.fixture(scope="session")
def real_model_fp32() -> Path:
    """SmolLM2-135M-Instruct as a Phi-3, fp32."""
    return real_model("fp32")


@pytest.fixture(scope="session")
def real_model_int4() -> Path:
    """SmolLM2-135M-Instruct as a Phi-3, int4 weights, fp32 activations and caches.

    Its tokens can be compared with another attention's. With int8 activations they cannot: rounding
    those carries a difference of 1e-6 in the attention to 0.7 in the logits.
    """
    return real_model("int4", "fp32")
