"""Generation over an ONNX Runtime session, with stock or rewritten attention.

The parts, from the graph upwards: `DecoderModel` (a session whose inputs and outputs are checked),
`DecodeSession` (caches and lengths of one batch), `generate` (the loop), `Tokenizer` (text)::

    model = DecoderModel.load("folder", threads=2)
    tokenizer = Tokenizer(model.folder)
    for text in stream_text(model, tokenizer, tokenizer.encode_chat("Why is the sky blue?")):
        print(text, end="", flush=True)
"""

from lean_attention.runtime.cache import cache_bytes
from lean_attention.runtime.generate import (
    Generation,
    check_lengths,
    decode,
    generate,
    stream_text,
)
from lean_attention.runtime.model import DecoderModel
from lean_attention.runtime.sampling import Sampler, Sampling
from lean_attention.runtime.session import DecodeSession
from lean_attention.runtime.tokenizer import TextStream, Tokenizer

__all__ = [
    "DecodeSession",
    "DecoderModel",
    "Generation",
    "Sampler",
    "Sampling",
    "TextStream",
    "Tokenizer",
    "cache_bytes",
    "check_lengths",
    "decode",
    "generate",
    "stream_text",
]
