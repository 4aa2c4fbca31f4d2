"""Batches padded on the left: refused where the mask is seen, wrong in stock and ours alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lean_attention
from lean_attention import LeanAttentionError, check_padding


@pytest.mark.parametrize(
    "mask", [[[1]], [[1, 1, 1], [1, 0, 0]], np.array([[True, False]]), np.ones((2, 3), np.float32)]
)
def test_padding_on_the_right_is_taken(mask: Any) -> None:
    check_padding(mask)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1, 1], [0, 1, 1]], "row 1 of attention_mask has padding before a token"),
        ([[1, 0, 1]], "row 0 of attention_mask has padding before a token"),
        ([[1, 1], [0, 0]], "row 1 of attention_mask has no token"),
        ([1, 1], r"attention_mask has the shape \(2,\)"),
        ([[1, 1], [1]], "attention_mask is no array"),
    ],
)
def test_other_masks_are_refused(mask: Any, message: str) -> None:
    with pytest.raises(LeanAttentionError, match=message):
        check_padding(mask)


def test_where_padding_may_be_nowhere_the_right_is_refused_too() -> None:
    check_padding([[1, 1], [1, 1]], allowed="none")
    with pytest.raises(LeanAttentionError, match="row 1 of attention_mask has padding after its"):
        check_padding([[1, 1], [1, 0]], allowed="none")
    with pytest.raises(LeanAttentionError, match="row 0 of attention_mask has padding before a"):
        check_padding([[0, 1], [1, 1]], allowed="none")
    with pytest.raises(LeanAttentionError, match="allowed is 'left'; expected 'right' or 'none'"):
        check_padding([[1, 1]], allowed="left")  # type: ignore[arg-type]


def test_genai_and_the_operators_agree_on_the_side(tiny_model: Path, tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai", reason="needs the extra 'genai'")
    lean_attention.rewrite(tiny_model, tmp_path / "lean")
    short, long = [40, 41, 42], list(range(100, 108))
    padding = [0] * (len(long) - len(short))

    def new_tokens(folder: Path, *rows: list[int]) -> list[list[int]]:
        model = genai.Model(str(folder))
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=len(rows[0]) + 8, batch_size=len(rows))
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array(rows, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        return [generator.get_sequence(i).tolist()[len(rows[0]) :] for i in range(len(rows))]

    for folder in (tiny_model, tmp_path / "lean"):
        alone = [*new_tokens(folder, long), *new_tokens(folder, short)]
        assert new_tokens(folder, long, short + padding) == alone
        assert new_tokens(folder, long, padding + short)[1] != alone[1]
