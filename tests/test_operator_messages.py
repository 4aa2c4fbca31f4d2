"""Each refusal of the operator: the node, the part of it, what was found; what is accepted."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import lean_attention
from gqa_node import INPUTS, Case, make_case
from test_operator_errors import BAD_ATTRIBUTES, BAD_INPUTS, BAD_PROMPTS

SOURCES = Path(__file__).resolve().parent.parent / "ops" / "onnxruntime"
OUTPUTS = ("output", "present_key", "present_value", "output_qk")
PART = r"(?P<kind>input|output|attribute)s? (?P<name>\w+)(\[\d+\])?"
COMPLETE = re.compile(
    rf"(?P<node>\w+): (the )?{PART}( and \w+(\[\d+\])?)? (is|are|has|holds|leave) [^;]+; .+"
)
# As they stand in the sources, and why no case meets them.
ELSEWHERE = {
    "all calls need it": "ONNX Runtime refuses such a node first",
    "no memory": "no part of the node is to blame",
    "are one buffer": "tested in test_operator_errors.py, with what is written",
    "to which this call is left": "tested below: the stock operator's own words follow",
    "leaves to": "tested below: no part of the node is to blame",
}


def decode(**changes: Any) -> Case:
    """A step of three sequences, and what is changed of it."""
    defaults = {"num_heads": 4, "kv_num_heads": 2, "head_size": 16, "seqlens_k": [0, 4, 15]}
    return make_case(**{**defaults, "capacity": 16, "rotary_half": 8, **changes})


def message_of(run: Callable[[], object]) -> str:
    """Returns what the operator says, without what ONNX Runtime puts before it."""
    with pytest.raises(Exception) as refusal:
        run()
    line = str(refusal.value).strip()
    assert "\n" not in line
    return line[line.rindex("attention: ") if "attention: " in line else 0 :]


def call(case: Case, **changes: Any) -> str:
    """Runs a case with other inputs, and without those that are None."""
    feeds = {name: array for name, array in (case.feeds | changes).items() if array is not None}
    return message_of(lambda: case.node.run(feeds))


def load(
    outputs: tuple[str, ...] = OUTPUTS[:3], name: str = "attention", **attributes: Any
) -> onnxruntime.InferenceSession:
    """Loads a node of float32 with some outputs and attributes, None for one that is absent."""
    given = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    node = helper.make_node(
        "LeanGroupQueryAttention",
        ["query", "", "", "", "", "seqlens_k", "total_sequence_length"],
        list(outputs),
        name=name,
        domain="com.leanattention",
        **{key: value for key, value in given.items() if value is not None},
    )
    kinds = {"query": TensorProto.FLOAT}
    values = [
        helper.make_tensor_value_info(key, kinds.get(key, TensorProto.INT32), None)
        for key in node.input
        if key
    ]
    made = [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in outputs if key]
    graph = helper.make_graph([node], "attention", values, made)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.leanattention", 1)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    lean_attention.register_custom_ops(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


CHUNKS = {"seqlens_k": [9, 4], "tokens": 4, "capacity": 24, "rotary_half": 0}
QUANTISED = {"cache": "int8", "rotary_half": 0}


def ragged(*lengths: int, **changes: Any) -> str:
    """Runs chunks with query_seqlens."""
    return call(decode(**CHUNKS), query_seqlens=int32(*lengths), **changes)


def loaded(**how: Any) -> str:
    """Loads a node."""
    return message_of(lambda: load(**how))


# By what is wrong: the part that is to be named, and how to have it refused.
OTHERS: dict[str, tuple[str, Callable[[], str]]] = {
    "no value": ("value", lambda: call(decode(), value=None)),
    "no key": ("key", lambda: call(decode(), key=None)),
    "no past value": ("past_value", lambda: call(decode(), past_value=None)),
    "no past key": ("past_key", lambda: call(decode(), past_key=None)),
    "no sines": ("sin_cache", lambda: call(decode(), sin_cache=None)),
    "no tables": ("cos_cache", lambda: call(decode(), cos_cache=None, sin_cache=None)),
    "a query of two dimensions": ("query", lambda: call(decode(), query=zeros(3, 64))),
    "a packed query of no whole heads": (
        "query",
        lambda: call(decode(packed=True), query=zeros(3, 1, 127)),
    ),
    "a head size of 5,000": ("query", lambda: call(decode(packed=True), query=zeros(3, 1, 40000))),
    "one norm": ("k_norm_weight", lambda: call(decode(), q_norm_weight=zeros(16))),
    "norms of another width": (
        "k_norm_weight",
        lambda: call(decode(), q_norm_weight=zeros(16), k_norm_weight=zeros(8)),
    ),
    "no rows, and no past": (
        "past_key",
        lambda: call(
            decode(), key=zeros(3, 0, 32), value=zeros(3, 0, 32), past_key=None, past_value=None
        ),
    ),
    "no rows, and query_seqlens": (
        "key",
        lambda: ragged(4, 4, key=zeros(2, 0, 32), value=zeros(2, 0, 32)),
    ),
    "a total between past and grown": (
        "total_sequence_length",
        lambda: call(decode(), total_sequence_length=int32(18)),
    ),
    "chunks of a batch": ("query_seqlens", lambda: call(decode(**CHUNKS))),
    "query lengths of another shape": ("query_seqlens", lambda: ragged(4)),
    "query lengths without a past": (
        "past_key",
        lambda: ragged(4, 4, past_key=None, past_value=None),
    ),
    "a query length past the tokens": ("query_seqlens", lambda: ragged(5, 4)),
    "a negative query length": ("query_seqlens", lambda: ragged(-1, 4)),
    "keys past the total": ("seqlens_k", lambda: ragged(4, 4, seqlens_k=int32(10, 4))),
    "more past than there is": (
        "seqlens_k",
        lambda: ragged(0, 4, seqlens_k=int32(29, 4), total_sequence_length=int32(30)),
    ),
    "keys past the bias": (
        "seqlens_k",
        lambda: call(
            decode(rotary_half=0),
            total_sequence_length=int32(8),
            attention_bias=zeros(1, 1, 1, 8),
        ),
    ),
    "positions past the tables": (
        "cos_cache",
        lambda: call(
            decode(), total_sequence_length=int32(8), cos_cache=zeros(9, 8), sin_cache=zeros(9, 8)
        ),
    ),
    "no scale": ("v_scale", lambda: call(decode(**QUANTISED), v_scale=None)),
    "too many scales": ("k_scale", lambda: call(decode(**QUANTISED), k_scale=zeros(2))),
    "present_key left out": ("present_key", lambda: loaded(outputs=("output", "", "values"))),
    "present_value left out": ("present_value", lambda: loaded(outputs=("output", "keys"))),
    "output_qk": ("output_qk", lambda: loaded(outputs=OUTPUTS)),
    "no heads": ("num_heads", lambda: loaded(num_heads=None)),
    "a negative number of heads": ("kv_num_heads", lambda: loaded(kv_num_heads=-2)),
    "no whole groups": ("num_heads", lambda: loaded(kv_num_heads=3)),
    "no epsilon": ("q_norm_epsilon", lambda: loaded(q_norm_epsilon=0.0)),
    "an epsilon for both": ("qk_norm_epsilon", lambda: loaded(qk_norm_epsilon=-1.0)),
    "a type of scale": ("k_quant_type", lambda: loaded(k_quant_type="PER_TOKEN")),
    "other scales of values": ("k_quant_type", lambda: loaded(v_quant_type="PER_TENSOR")),
    "a list": ("softcap", lambda: loaded(softcap=[1.0, 2.0])),
}


def refusals() -> Iterator[tuple[str, str | None, Callable[[], str]]]:
    """Yields the other tests' cases as well: what is wrong, the part, and how it is refused."""
    for what, (name, run) in OTHERS.items():
        yield what, name, run
    for what, (changes, _) in BAD_INPUTS.items():
        yield f"{what}, in a step", None, partial(call, decode(), **changes)
    prompt = decode(seqlens_k=[3, 3], capacity=4, tokens=4, poison=False)
    for what, (changes, _) in BAD_PROMPTS.items():
        without = {"past_key": None, "past_value": None}
        yield f"{what}, in a prompt", None, partial(call, prompt, **without, **changes)
    for what, attributes in BAD_ATTRIBUTES.items():
        yield f"attribute {what}", what.split()[0], partial(loaded, **attributes)


def attributes_of_the_page() -> set[str]:
    """Returns the attributes that docs/operator.md lists."""
    page = (SOURCES.parent.parent / "docs" / "operator.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(\w+)`", page.split("## Attributes")[1], re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "run"), [pytest.param(name, run, id=what) for what, name, run in refusals()]
)
def test_every_refusal_is_complete(name: str | None, run: Callable[[], str]) -> None:
    message = run()
    found = COMPLETE.fullmatch(message)
    assert found, message
    assert found["node"] == "attention"
    parts = {"input": INPUTS, "output": OUTPUTS, "attribute": attributes_of_the_page()}
    assert found["name"] in parts[found["kind"]], message
    if name is not None:
        assert found["name"] == name, message


def test_a_node_without_a_name_is_called_by_its_operator() -> None:
    for wrong in ({"softcap": -1.0}, {"softcap": 1}):
        assert "LeanGroupQueryAttention: the attribute softcap is" in loaded(name="", **wrong)


def test_what_the_stock_operator_refuses_names_the_node_and_it() -> None:
    case = decode(head_size=24, rotary_half=8, seqlens_k=[11], tokens=12)
    message = call(case)
    assert message.startswith("attention: com.microsoft.GroupQueryAttention, to which this call is")
    assert "head_size shall be a multiple of 16" in message


def test_where_there_is_no_stock_operator_the_types_are_named() -> None:
    message = call(decode(dtype=ml_dtypes.bfloat16, rotary_half=0, schedule="stock"))
    assert message.startswith("attention: LeanGroupQueryAttention leaves to com.microsoft.")
    assert "schedule = stock" in message
    assert "none for bfloat16 with bfloat16 caches" in message


def _arguments(text: str) -> Iterator[str]:
    """Yields a call's arguments, from what follows its parenthesis."""
    depth, begin = 0, 0
    for at, sign in enumerate(re.sub(r'"[^"]*"', lambda quoted: "_" * len(quoted[0]), text)):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and sign == ","):
            yield text[begin:at]
            begin = at + 1
        if depth < 0:
            return


def patterns() -> Iterator[str]:
    """Yields what each refusal in the sources says for certain, as a regular expression."""
    for path in sorted(SOURCES.glob("*.[ch]*")):
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        for begin in re.finditer(r"\b(?:Require|RequireShape|Fail)\((?!\w+ \w+,|bool)", text):
            # Without the condition, or the code, and without what depends on something.
            _, *words_and_numbers = _arguments(text[begin.end() :])
            certain = [part for part in words_and_numbers if "?" not in part]
            words = re.findall(r'"([^"]*)"', " ".join(certain))
            if any(re.search(r"\w{2}", word) for word in words):
                yield ".*".join(map(re.escape, words))


def test_no_refusal_in_the_sources_is_without_a_case() -> None:
    messages = [run() for _, _, run in refusals()]
    found = list(patterns())
    assert len(found) > 40
    unmet = [p for p in found if not any(re.search(p, message) for message in messages)]
    for words in ELSEWHERE:
        assert any(re.escape(words) in pattern for pattern in unmet), words
    assert [p for p in unmet if not any(re.escape(words) in p for words in ELSEWHERE)] == []
