"""Runs an exported decoder in ONNX Runtime, whoever exported it, and compares two of them."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import lean_attention

HEAD_SIZE = 32
ROUNDINGS = HEAD_SIZE // 2
"""How many spacings a score may be off: it sums HEAD_SIZE products, each rounded by half a one."""


class OnnxDecoder:
    """A decoder with ``input_ids``, ``attention_mask``, perhaps ``position_ids``, and caches.

    Caches are all other inputs; each belongs to the output whose name has the same layer number and
    the same of "key" and "value".

    Args:
        path: The model file.
    """

    def __init__(self, path: Path) -> None:
        """Loads the model, and pairs its caches."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        # onnxruntime-genai's builder declares repeated heads as long as the new tokens, which ONNX
        # Runtime believes when it plans its memory.
        options.enable_mem_reuse = False
        lean_attention.register_custom_ops(options)
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        inputs = {value.name: value for value in self.session.get_inputs()}
        others = ("input_ids", "attention_mask", "position_ids")
        self.takes_positions = "position_ids" in inputs
        self.takes_mask = "attention_mask" in inputs
        self.pasts = {_place(name): value for name, value in inputs.items() if name not in others}
        outputs = [value.name for value in self.session.get_outputs()]
        self.presents = {_place(name): name for name in outputs if name != "logits"}
        assert self.presents.keys() == self.pasts.keys()

    def run(
        self,
        tokens: NDArray[np.int64],
        mask: NDArray[np.int64],
        caches: Sequence[NDArray[np.generic]] | None = None,
    ) -> tuple[NDArray[np.float32], list[NDArray[np.generic]]]:
        """One step.

        Args:
            tokens: The new ones, [B, S].
            mask: 1 for a token, 0 for padding, of past and new ones: [B, T].
            caches: What the step before returned; None for a first one.

        Returns:
            The logits, [B, S, vocabulary], and the caches.
        """
        feeds = {"input_ids": tokens}
        if self.takes_mask:
            feeds["attention_mask"] = mask
        if self.takes_positions:
            positions = np.maximum(mask.cumsum(1) - 1, 0)
            feeds["position_ids"] = positions[:, -tokens.shape[1] :]
        names = [value.name for value in self.pasts.values()]
        if caches is None:
            caches = [self._empty(value, len(tokens)) for value in self.pasts.values()]
        feeds |= dict(zip(names, caches, strict=True))
        wanted = ["logits", *(self.presents[place] for place in self.pasts)]
        logits, *presents = self.session.run(wanted, feeds)
        return logits.astype(np.float32), presents

    def follow(
        self,
        prompts: NDArray[np.int64],
        mask: NDArray[np.int64],
        tokens: NDArray[np.int64] | None,
        new: int,
    ) -> NDArray[np.float32]:
        """Decodes, greedily or along given tokens.

        Args:
            prompts: [B, S].
            mask: Of the prompts, [B, S].
            tokens: What to say after them, [B, new]; None for the likeliest.
            new: How many steps.

        Returns:
            The logits of each step's next token, [B, new, vocabulary].
        """
        step, caches, logits = prompts, None, []
        for index in range(new):
            result, caches = self.run(step, mask, caches)
            logits.append(result[:, -1])
            step = result[:, -1:].argmax(-1) if tokens is None else tokens[:, index : index + 1]
            mask = np.concatenate([mask, np.ones_like(step)], 1)
        return np.stack(logits, 1)

    def _empty(self, value: onnxruntime.NodeArg, batch: int) -> NDArray[np.generic]:
        dtype = np.float16 if value.type == "tensor(float16)" else np.float32
        _, heads, _, size = value.shape
        # Some exporters write the sizes as names, and a few a name for the head size.
        size = int(size) if str(size).isdigit() else HEAD_SIZE
        return np.zeros((batch, int(heads), 0, size), dtype)


def assert_like_stock(
    stock: Path,
    lean: Path,
    *,
    vocabulary: int = 300,
    lengths: Sequence[int] = (12, 12),
    new: int = 16,
    seed: int = 5,
) -> None:
    """Asserts that two models say the same tokens, and that their logits differ by rounding only.

    The bound is how far the logits move when the scale of the attention moves by ``ROUNDINGS``
    times the spacing of its numbers: each score then moves by as much as its roundings may move
    it. Prompts of several lengths are padded on the left.

    Args:
        stock: The model file before.
        lean: The one after; its attention nodes are LeanAttention's.
        vocabulary: Token ids are below it.
        lengths: Tokens of each prompt.
        new: Tokens to generate.
        seed: Of the prompts.
    """
    rng = np.random.default_rng(seed)
    width = max(lengths)
    mask = (np.arange(width) >= width - np.array(lengths)[:, None]).astype(np.int64)
    prompts = np.where(mask == 1, rng.integers(3, vocabulary, mask.shape), 0)
    expected = OnnxDecoder(stock).follow(prompts, mask, None, new)
    tokens = expected.argmax(-1)
    assert len(set(tokens.ravel().tolist())) > len(lengths)
    assert np.isfinite(expected).all()
    found = OnnxDecoder(lean).follow(prompts, mask, tokens, new)
    with _moved(lean) as path:
        moved = OnnxDecoder(path).follow(prompts, mask, tokens, new)
    epsilon = float(np.finfo(_cache_type(OnnxDecoder(lean))).eps)
    # Both models are off the truth, each by so much.
    tolerance = 2 * (np.abs(moved - found).max() + epsilon * np.abs(expected).max())
    assert np.abs(found - expected).max() <= tolerance
    # Of two tokens as likely as each other, to rounding, either may be said.
    second, first = np.moveaxis(np.sort(expected, -1)[..., -2:], -1, 0)
    clear = first - second > 2 * tolerance
    assert clear.mean() > 0.25
    np.testing.assert_array_equal(found.argmax(-1)[clear], tokens[clear])


@contextlib.contextmanager
def _moved(lean: Path) -> Iterator[Path]:
    """The rewritten model with its attention's scale moved a little."""
    model = onnx.load(lean, load_external_data=False)
    epsilon = float(np.finfo(_cache_type(OnnxDecoder(lean))).eps)
    scales = [
        attribute
        for node in model.graph.node
        if node.op_type == "LeanGroupQueryAttention"
        for attribute in node.attribute
        if attribute.name == "scale"
    ]
    assert scales
    for scale in scales:
        scale.f *= 1 + ROUNDINGS * epsilon
    path = lean.with_name("moved.onnx")
    path.write_bytes(model.SerializeToString())
    yield path
    path.unlink()


def _cache_type(decoder: OnnxDecoder) -> np.dtype[np.floating]:
    kinds = {value.type for value in decoder.pasts.values()}
    return np.dtype(np.float16 if kinds == {"tensor(float16)"} else np.float32)


def _place(name: str) -> tuple[int, str]:
    found = re.search(r"(\d+)\D*\b(key|value)s?$", name)
    assert found is not None, name
    return int(found.group(1)), found.group(2)
