"""The tokenizer of random models, and tokenizer files that every client reads.

Random models need text in and out, not language: one token per byte, three special tokens, and
names for the rest of the vocabulary, so that whatever a random model says can be decoded.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["NUM_BYTE_TOKENS", "byte_tokenizer", "save_tokenizer"]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# The smallest vocabulary: every byte and the special tokens.
NUM_BYTE_TOKENS = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer(vocab_size: int) -> "PreTrainedTokenizerFast":
    """Makes a tokenizer of ``vocab_size`` tokens that encodes text as its UTF-8 bytes.

    Args:
        vocab_size: At least ``NUM_BYTE_TOKENS``. Tokens past these are never encoded to; they
            decode to their number in brackets.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *SPECIAL_TOKENS]
    tokens += [f"[{number}]" for number in range(len(tokens), vocab_size)]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    end_of_text, turn_start, turn_end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=turn_start,
        eos_token=turn_end,
        pad_token=end_of_text,
        unk_token=end_of_text,
        chat_template=CHAT_TEMPLATE,
    )


def save_tokenizer(tokenizer: "PreTrainedTokenizerFast", folder: Path, max_length: int) -> None:
    """Writes the tokenizer for transformers 4.57 and 5 and for onnxruntime-genai alike.

    Args:
        tokenizer: Any fast tokenizer of transformers.
        folder: An existing folder.
        max_length: The model's context length in tokens.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: saved[key] for key in saved if key.endswith("_token")}
    kept |= {
        "model_max_length": max_length,
        # transformers 5 saves a class name that 4.57 does not know; both know this one.
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Without it 4.57 adds token_type_ids, which these models do not take.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
