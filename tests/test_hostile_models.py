"""Models that are not what they seem: circles, sizes that no machine holds, attention of others."""

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from hand_made_attention import assert_same, feeds, mask_nodes, parsed
from lean_attention import LeanAttentionError, rewrite
from rewrite_models import save
from test_sources_onnx import HEADS_APART, HEADS_TOGETHER, INPUTS, MASKED, OUTPUTS, node
from test_sources_softmax import CACHES, SCALED, body

Edit = Callable[[onnx.ModelProto], None]


def circle(model: onnx.ModelProto) -> None:
    """The mask is computed from itself, and the model declares that value."""
    (tokens,) = (n for n in model.graph.node if n.output[0] == "tokens")
    tokens.input[0] = "again"
    model.graph.node.append(helper.make_node("Cast", ["bias"], ["again"], to=7))


def cache_circle(model: onnx.ModelProto) -> None:
    """A repeated cache is repeated from itself."""
    (k5,) = (n for n in model.graph.node if n.output[0] == "k5")
    k5.input[0] = "k4"


@pytest.mark.parametrize("edit", [circle, cache_circle])
def test_a_graph_that_runs_in_circles_is_refused(edit: Edit, tmp_path: Path) -> None:
    made = parsed(body(), INPUTS, OUTPUTS)
    edit(made)
    with pytest.raises(LeanAttentionError, match="reads what is computed from its own output"):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")


SIZES = {
    ("attention_mask", 1, 1 << 42): "its inputs take .* GB of memory",
    ("past_key", 2, 1 << 40): "its inputs take .* GB of memory",
    ("query", 0, 1 << 31): "a fixed batch of 2147483648 sequences",
    ("query", 0, 0): "without any element",
}


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_that_cannot_be_run_are_not_verified(
    size: tuple[str, int, int], tmp_path: Path
) -> None:
    made = parsed(body(), INPUTS, OUTPUTS)
    name, axis, count = size
    (value,) = (each for each in made.graph.input if each.name == name)
    value.type.tensor_type.shape.dim[axis].dim_value = count
    result = rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")
    assert result.verification is not None
    assert re.search(SIZES[size], result.verification.obstacle)


def test_sizes_below_zero_are_unknown_ones(tmp_path: Path) -> None:
    made = parsed(body(), INPUTS, OUTPUTS)
    for value in made.graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_value = -1
    result = rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx")
    assert result.verification is not None
    assert result.verification.passed


# Attention of other sizes and orders

NARROW_INPUTS = INPUTS.replace("[B,S,32] value", "[B,S,16] value").replace(
    "[B,2,P,16] past_value", "[B,2,P,8] past_value"
)
NARROW_OUTPUTS = OUTPUTS.replace("[B,S,64] output", "[B,S,32] output").replace(
    "[B,2,T,16] present_value", "[B,2,T,8] present_value"
)
"""Heads of values are half as wide as those of keys, as in DeepSeek's models they are narrower."""


def narrow(text: str) -> str:
    text = text.replace(
        "v_apart = Reshape (value, of_keys)",
        "of_values = Constant <value_ints = [0, 0, 2, 8]> () v_apart = Reshape (value, of_values)",
    ).replace(
        "v4 = Reshape (v_tiled, flat)",
        "flat_v = Constant <value_ints = [0, 4, -1, 8]> () v4 = Reshape (v_tiled, flat_v)",
    )
    return text.replace("[0, 0, 64]", "[0, 0, 32]")


@pytest.mark.parametrize("text", [body(), MASKED["boolean mask"], MASKED["heads repeated outside"]])
def test_values_of_another_width_are_left(text: str, tmp_path: Path) -> None:
    made = parsed(narrow(text), NARROW_INPUTS, NARROW_OUTPUTS)
    with pytest.raises(LeanAttentionError, match="values have other heads than its keys"):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx", verify=False)


LEFT = {
    "its scores are all 0": body(SCALED.replace("value_float = 0.3", "value_float = 0.0")),
    "it reads no cache": body(
        caches=CACHES.replace("(past_key, k)", "(k, past_key)").replace(
            "(past_value, v)", "(v, past_value)"
        )
    ),
    "its query has not the 4 heads": body(
        SCALED.replace(
            "q_scaled = Mul (q, half)",
            "first = Slice (q, none, last, last) q_scaled = Mul (first, half)",
        )
    ),
    "its query is not": body(
        SCALED.replace(
            "q_scaled = Mul (q, half)",
            "rows = Constant <value_ints = [4, -1, 16]> () "
            "q3 = Reshape (q, rows) q_scaled = Mul (q3, half)",
        ).replace("rows", "query_rows")
    ),
    "its softcap is -0.5": node(", is_causal = 1, softcap = -0.5"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_attention_of_another_kind_is_left(reason: str, tmp_path: Path) -> None:
    made = parsed(LEFT[reason], INPUTS, OUTPUTS)
    with pytest.raises(LeanAttentionError, match=f"because {reason}"):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx", verify=False)


def test_a_softmax_over_all_but_the_first_axis_is_left(tmp_path: Path) -> None:
    # What operator sets before 13 mean by a Softmax without an axis.
    made = parsed(body(SCALED.replace("Softmax <axis = -1>", "Softmax")), INPUTS, OUTPUTS)
    made.opset_import[0].version = 12
    with pytest.raises(LeanAttentionError, match="its softmax is not over the keys"):
        rewrite(save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx", verify=False)


def test_nodes_stay_in_an_order_in_which_they_can_be_computed(tmp_path: Path) -> None:
    # The first softmax's product with the values comes after the second's.
    nodes = """
        half = Constant <value_float = 0.3> ()
        q2 = Mul (q, half)
        keys = Transpose <perm = [0, 1, 3, 2]> (k4)
        p1 = MatMul (q, keys) s1 = Add (p1, bias) l1 = Softmax <axis = -1> (s1)
        p2 = MatMul (q2, keys) s2 = Add (p2, bias) l2 = Softmax <axis = -1> (s2)
        y2 = MatMul (l2, v4) y1 = MatMul (l1, v4) y = Add (y1, y2)
    """.replace("keys", "turned")
    text = mask_nodes() + HEADS_APART + CACHES + nodes + HEADS_TOGETHER
    made = parsed(text, INPUTS, OUTPUTS)
    stock, lean = save(made, tmp_path / "stock.onnx"), tmp_path / "lean.onnx"
    assert len(rewrite(stock, lean).replaced) == 2
    assert_same(stock, lean, feeds(made, 2, 5, 1))
    known = {value.name for value in onnx.load(lean).graph.input} | {""}
    for each in onnx.load(lean).graph.node:
        assert known.issuperset(each.input), each
        known |= set(each.output)
