"""Between text and token ids: the model's tokenizer, its chat template, streamed text."""

from pathlib import Path
from typing import Any

from tokenizers.decoders import DecodeStream

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime.reasons import first_line

__all__ = ["TextStream", "Tokenizer"]


class Tokenizer:
    """The tokenizer that lies beside a model."""

    def __init__(self, folder: str | Path) -> None:
        """Loads it from files; nothing is downloaded.

        Args:
            folder: With ``tokenizer.json``, as the onnxruntime-genai model builder writes it.

        Raises:
            LeanAttentionError: The folder holds no tokenizer that transformers can read, or one
                that is not a fast one.
        """
        folder = Path(folder)
        if not (folder / "tokenizer_config.json").is_file():
            raise LeanAttentionError(
                f"{folder} has no tokenizer (tokenizer_config.json, tokenizer.json); copy the "
                "model's tokenizer files there, or pass token ids through the Python interface"
            )
        # Imported here, for it takes seconds.
        import transformers

        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True
            )
        except Exception as error:  # transformers raises several unrelated types
            raise LeanAttentionError(
                f"transformers {transformers.__version__} cannot read the tokenizer in {folder}: "
                f"{first_line(error)}"
            ) from error
        if not self._tokenizer.is_fast:
            raise LeanAttentionError(f"{folder} has no tokenizer.json, which streaming text needs")

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The tokenizer's end of sequence, if it has one."""
        end = self._tokenizer.eos_token_id
        return () if end is None else (int(end),)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of plain text, with the special tokens that the model expects.

        Args:
            text: Any text.

        Raises:
            LeanAttentionError: The text has lone surrogates, as bytes other than UTF-8 leave them.
        """
        return self._ids(text, special=True)

    def encode_chat(self, text: str, system: str | None = None) -> list[int]:
        """Returns the ids of a user's message in the model's chat template, up to the answer.

        Args:
            text: The user's message.
            system: The system message; None leaves it to the template.

        Raises:
            LeanAttentionError: The tokenizer has no chat template, it refuses the messages, or
                the text has lone surrogates.
        """
        if not self.has_chat_template:
            raise LeanAttentionError(
                "this model's tokenizer has no chat template; use --no-chat, or encode the text "
                "without one"
            )
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": text})
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program of the model's author
            raise LeanAttentionError(
                f"the chat template refuses the messages: {first_line(error)}"
            ) from error
        # The template writes the special tokens itself.
        return self._ids(rendered, special=False)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise LeanAttentionError(
                f"the text has {text[error.start]!a}, which is no character; pass text in UTF-8"
            ) from error
        # Not verbose: a text may be longer than the context, for the caller may use a part of it.
        tokens = self._tokenizer.encode(text, add_special_tokens=special, verbose=False)
        return [int(token) for token in tokens]

    def decode(self, tokens: list[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        return str(
            self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def stream(self) -> "TextStream":
        """Returns a decoder that takes tokens one at a time."""
        return TextStream(self, self._tokenizer.backend_tokenizer)


class TextStream:
    """Turns tokens into text as they come, never a part of a character.

    Attributes:
        text: All text returned so far.
    """

    def __init__(self, tokenizer: Tokenizer, backend: Any) -> None:
        """Begins a text; call `Tokenizer.stream` instead."""
        self._tokenizer = tokenizer
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self.text = ""

    def push(self, token: int) -> str:
        """Takes a token; returns the text that is complete by now and was not returned before."""
        self._tokens.append(token)
        text = self._stream.step(self._backend, token) or ""
        self.text += text
        return text

    def finish(self) -> str:
        """Returns what is left at the end: an unfinished character, as a replacement mark."""
        complete = self._tokenizer.decode(self._tokens)
        rest = complete[len(self.text) :] if complete.startswith(self.text) else ""
        self.text += rest
        return rest
