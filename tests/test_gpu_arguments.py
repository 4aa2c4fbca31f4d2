"""`lean_attention.gpu` with what is no tensor, number or stream: errors with names."""

import warnings
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpu_step import AllocatingArray, DeviceArray, Namespace, arrays_of, ragged_case, step_of
from lean_attention import gpu
from lean_attention.errors import LeanAttentionError

# PyTorch warns once of what is refused here.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

HALF = np.zeros((3, 1, 4, 64), np.float16)


@pytest.fixture(autouse=True)
def _on_the_emulator() -> None:
    assert gpu.backend() == "emulator", (
        f"these tests need LEAN_ATTENTION_LIBRARY=.../liblean_attention_emulated.so, and the "
        f"library's backend is {gpu.backend()}"
    )


@pytest.fixture(scope="module")
def step() -> gpu.Step:
    """One that is right, whose caches each launch changes."""
    return step_of(ragged_case())


class Hostile:
    """Raises whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        """Is asked for anything."""
        raise RuntimeError(f"no {name} here")

    def __repr__(self) -> str:
        """Is to be shown."""
        raise RuntimeError("no text here")

    def __index__(self) -> int:
        """Is to be an integer."""
        raise RuntimeError("no integer here")

    def __float__(self) -> float:
        """Is to be a number."""
        raise RuntimeError("no number here")


def resized() -> torch.Tensor:
    """Returns a tensor whose memory was given back, as sharded training does."""
    tensor = torch.zeros(3, 1, 4, 64, dtype=torch.float16)
    tensor.untyped_storage().resize_(0)
    return tensor


def nested() -> torch.Tensor:
    """Returns a tensor of rows of several lengths, which calls itself strided."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, it says
        return torch.nested.nested_tensor([torch.zeros(2, 64), torch.zeros(3, 64)])


def fake() -> torch.Tensor:
    """Returns a tensor as a compiler sees it."""
    with FakeTensorMode():
        return torch.zeros(3, 1, 4, 64, dtype=torch.float16)


class Interface:
    """Something whose ``__cuda_array_interface__`` is what it is told to be."""

    def __init__(self, interface: Any) -> None:
        """Takes it."""
        self.__cuda_array_interface__ = interface


def claims(**changes: Any) -> DeviceArray:
    """Returns an array that claims something else of itself."""
    return DeviceArray(HALF, **changes)


JUNK: dict[str, Any] = {
    "text": "mine",
    "bytes": b"mine",
    "list": [[1.0]],
    "dictionary": {"shape": (3,)},
    "object": object(),
    "type": torch.Tensor,
    "complex": 1j,
    "huge": 10**5000,
    "NumPy's": HALF,
    "hostile": Hostile(),
    "meta": torch.zeros(3, 1, 4, 64, dtype=torch.float16, device="meta"),
    "sparse": torch.zeros(3, 4).to_sparse(),
    "nested": nested(),
    "fake": fake(),
    "uninitialised": torch.nn.UninitializedParameter(),
    "given back": resized(),
    "no dimensions": torch.tensor(1.5),
    "empty": torch.zeros(0),
    "complex tensor": torch.zeros(3, 1, 4, 64, dtype=torch.complex64),
    "interface of text": Interface("mine"),
    "interface of nothing": Interface({}),
    "no shape": claims(shape=None),
    "shape of text": claims(shape=("a", 1, 4, 64)),
    "shape of fractions": claims(shape=(3.5, 1, 4, 64)),
    "negative shape": claims(shape=(-3, 1, 4, 64)),
    "huge shape": claims(shape=(2**70, 1, 4, 64)),
    "type of a list": claims(typestr=["<f2"]),
    "no type": claims(typestr=None),
    "an address alone": claims(data=1 << 20),
    "three addresses": claims(data=(1, 2, 3)),
    "address of text": claims(data=("a", False)),
    "null": claims(data=(0, False)),
    "negative address": claims(data=(-16, False)),
    "huge address": claims(data=(2**64, False)),
    "strides of text": claims(strides=("a", 2, 2, 2)),
    "strides of nothing": claims(strides=(None, 2, 2, 2)),
    "a stride alone": claims(strides=2),
}
# What of the junk is right somewhere.
NUMBERS = ("scale", "softcap", "q_norm_epsilon", "k_norm_epsilon")
RIGHT = {name: {"no dimensions"} for name in NUMBERS}


@pytest.mark.parametrize("name", [field.name for field in fields(gpu.Step)])
@pytest.mark.parametrize("junk", JUNK)
def test_fields_of_a_step_are_refused_by_name(step: gpu.Step, name: str, junk: str) -> None:
    step = replace(step, **{name: JUNK[junk]})
    if junk in RIGHT.get(name, ()):
        gpu.decode(step)
        return
    for run in (gpu.plan, gpu.decode):
        with pytest.raises(LeanAttentionError) as refusal:
            run(step)
        message = str(refusal.value)
        assert name in message or (name[:2] in ("k_", "v_") and "k_scale and v_scale" in message)
        assert "\n" not in message
        assert len(message) < 600


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", ["step", "plan", "workspace", "out", "stream"])
def test_arguments_of_a_launch_are_refused_by_name(step: gpu.Step, name: str, junk: str) -> None:
    arguments = {"step": step, name: JUNK[junk]}
    with pytest.raises(LeanAttentionError, match="output" if name == "out" else name):
        gpu.decode(**arguments)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", ["step", "schedule", "amount", "blocks"])
def test_arguments_of_a_plan_are_refused_by_name(step: gpu.Step, name: str, junk: str) -> None:
    arguments = {"step": step, name: JUNK[junk]}
    with pytest.raises(LeanAttentionError, match=name):
        gpu.plan(**arguments)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", [field.name for field in fields(gpu.Plan)])
def test_fields_of_a_plan_are_refused_by_name(step: gpu.Step, name: str, junk: str) -> None:
    plan = replace(gpu.plan(step), **{name: JUNK[junk]})
    if name == "explanation":
        gpu.decode(step, plan=plan)
        return
    with pytest.raises(LeanAttentionError, match=name):
        gpu.decode(step, plan=plan)


@pytest.mark.parametrize("kind", ["torch", "others"])
@pytest.mark.parametrize("stream", ["7", 7.5, -1, 2**64, 10**5000, Hostile(), [7]], ids=range(7))
def test_what_is_no_stream_is_refused(kind: str, stream: Any) -> None:
    case = ragged_case()
    step = step_of(case) if kind == "torch" else gpu.Step(**arrays_of(case, AllocatingArray))
    with pytest.raises(LeanAttentionError, match=r"^stream is "):
        gpu.decode(step, stream=stream)


@pytest.mark.parametrize("stream", ["7", -1, 2**64, {}])
def test_what_an_array_says_of_its_stream_is_checked(stream: Any) -> None:
    arrays = arrays_of(ragged_case(), AllocatingArray)
    arrays["query"].__cuda_array_interface__["stream"] = stream
    with pytest.raises(LeanAttentionError, match=r"^stream is "):
        gpu.decode(gpu.Step(**arrays))


def test_an_array_says_its_stream() -> None:
    arrays = arrays_of(ragged_case(), AllocatingArray)
    for stream in (None, 1, 2, 2**64 - 1):
        arrays["query"].__cuda_array_interface__["stream"] = stream
        gpu.decode(gpu.Step(**arrays))


def _raising(*_: object, **__: object) -> Any:
    raise TypeError("not like this")


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        (None, "does not say how it allocates float16"),
        (SimpleNamespace(empty=_raising, zeros=_raising), "does not say how it allocates float16"),
        (SimpleNamespace(empty=_raising, float16=1), r"no memory for float16 \(3, 1, 4, 64\): not"),
        (SimpleNamespace(empty=lambda *_, **__: None, float16=1), "output is NoneType"),
    ],
    ids=["none", "no type", "raises", "nothing"],
)
def test_libraries_that_do_not_allocate_are_refused(namespace: Any, message: str) -> None:
    class Array(AllocatingArray):
        def __array_namespace__(self) -> Any:
            return namespace

    with pytest.raises(LeanAttentionError, match=message):
        gpu.decode(gpu.Step(**arrays_of(ragged_case(), Array)))


def test_an_array_without_a_namespace_needs_a_workspace_of_none() -> None:
    class Array(DeviceArray):
        def __array_namespace__(self) -> type[Namespace]:
            raise RuntimeError("not here")

    with pytest.raises(LeanAttentionError, match="does not say how it allocates float16"):
        gpu.decode(gpu.Step(**arrays_of(ragged_case(), Array)))
