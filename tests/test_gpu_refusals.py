"""What `lean_attention.gpu` refuses, by name; and arrays of other libraries than PyTorch."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_step import (
    AllocatingArray,
    DeviceArray,
    Namespace,
    arrays_of,
    assert_right,
    ragged_case,
    run,
    step_of,
)
from lean_attention import gpu
from lean_attention.errors import LeanAttentionError
from lean_attention.kernels import Schedule


@pytest.fixture(autouse=True)
def _on_the_emulator() -> None:
    assert gpu.backend() == "emulator", (
        f"these tests need LEAN_ATTENTION_LIBRARY=.../liblean_attention_emulated.so, and the "
        f"library's backend is {gpu.backend()}"
    )


@pytest.mark.parametrize("changes", [{}, {"cache": "int8", "rotary_half": 8}, {"packed": True}])
def test_arrays_of_other_libraries_match_the_reference(changes: dict[str, Any]) -> None:
    case = ragged_case(**changes)
    arrays = arrays_of(case, AllocatingArray)
    found = gpu.decode(gpu.Step(**arrays), workspace=gpu.Workspace())
    assert isinstance(found, AllocatingArray)
    results = [found.array.reshape(3, 1, -1)]
    results += [arrays[name].array for name in ("key_cache", "value_cache")]
    assert_right(case, results)


def test_a_library_that_cannot_allocate_needs_out_and_no_workspace() -> None:
    case = ragged_case()
    arrays = arrays_of(case, DeviceArray)
    step = gpu.Step(**arrays)
    with pytest.raises(LeanAttentionError, match="does not say how it allocates"):
        gpu.decode(step)
    out = DeviceArray(np.zeros(step.query.shape, np.float16))
    gpu.decode(step, out=out, plan=gpu.plan(step, schedule=Schedule.DIRECT))
    assert out.array.tobytes() == run(case)[0].tobytes()


def halves(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


CACHE = halves(3, 2, 403, 64)
READ_ONLY = np.zeros((3, 2, 403, 64), np.float16)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": None}, "query is NoneType; expected a tensor of PyTorch"),
        ({"query": [[1.0]]}, "query is list; expected a tensor"),
        ({"query": np.zeros((3, 1, 4, 64), np.float16)}, "query is ndarray"),
        ({"query": halves(3, 4, 64)}, r"query is float16 \(3, 4, 64\).*4 dimensions"),
        ({"query": halves(0, 1, 4, 64)}, r"query is float16 \(0, .*must not be empty"),
        ({"query": halves(3, 1, 4, 64).float()}, "query is float32 and key_cache float16"),
        ({"query": halves(3, 1, 4, 64).to_sparse()}, "query is torch.sparse_coo on cpu"),
        ({"query": halves(3, 1, 4, 64).to("meta")}, "query is torch.strided on meta; expected"),
        ({"query": halves(3, 1, 4, 72)}, "key is .*expected float16"),
        ({"query": halves(3, 1, 64, 4).mT}, "query is .*each token must be contiguous"),
        ({"query": halves(1, 1, 4, 64).expand(3, 1, 4, 64)}, "query_stride is 0"),
        ({"query": torch._neg_view(halves(3, 1, 4, 64))}, "query is a negated view"),
        ({"key": halves(3, 1, 3, 64)}, r"key is .*expected float16 \(3, 1, 2, 64\)"),
        ({"key": halves(2, 1, 2, 64)}, r"key is .*expected float16 \(3, 1, 2, 64\)"),
        ({"key": halves(3, 1, 2, 64).bfloat16()}, "key is bfloat16"),
        ({"value": halves(3, 1, 4, 64)[:, :, :2]}, "as far apart as the key's"),
        ({"key": None}, "key is NoneType; expected a tensor"),
        ({"value": None}, "value is NoneType; expected a tensor"),
        ({"query_seqlens": torch.zeros(3)}, r"query_seqlens is float32 \(3,\).*expected int32"),
        ({"query_seqlens": torch.zeros(2).int()}, r"query_seqlens is .*expected int32 \(3,\)"),
        ({"q_norm_weight": torch.zeros(64)}, r"q_norm_weight is float32.*expected float16 \(64,\)"),
        ({"k_norm_weight": halves(32)}, r"k_norm_weight is .*expected float16 \(64,\)"),
        ({"k_norm_weight": halves(64), "k_norm_epsilon": 0}, "k_norm_epsilon is 0; it must be pos"),
        ({"q_norm_epsilon": "small"}, "q_norm_epsilon is 'small'; expected a number"),
        ({"key_cache": halves(3, 2, 403, 64).int()}, "query is float16 and key_cache int32"),
        ({"key_cache": halves(3, 2, 403, 64).to(torch.int8)}, "value_cache is float16"),
        ({"key_cache": halves(3, 1, 403, 64)}, r"key is .*expected float16 \(3, 1, 1, 64\)"),
        ({"key_cache": halves(2, 2, 403, 64)}, "key_cache is .*expected"),
        ({"key_cache": halves(3, 2, 403, 128)[..., ::2]}, "key_cache is .*must be contiguous"),
        ({"value_cache": halves(3, 2, 402, 64)}, "value_cache is .*expected"),
        (
            {"value_cache": halves(2**20)[1:][: 3 * 2 * 403 * 64].view(3, 2, 403, 64)},
            "value_cache is not aligned to 16 bytes",
        ),
        ({"key_cache": CACHE, "value_cache": CACHE}, "key_cache and value_cache are one buffer"),
        ({"key_cache": DeviceArray(READ_ONLY)}, "key_cache is .*expected .* on cpu"),
        ({"seqlens_k": torch.zeros(3)}, r"seqlens_k is float32 \(3,\).*expected int32"),
        ({"seqlens_k": torch.zeros((3, 1), dtype=torch.int32)}, "seqlens_k is .*1 dimensions"),
        ({"seqlens_k": torch.zeros(6, dtype=torch.int32)[::2]}, "seqlens_k is .*contiguous"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": 404}, "max_length is 404"),
        ({"max_length": 2**63}, "max_length is .*out of range"),
        ({"max_length": "long"}, "max_length is 'long'; expected an integer"),
        ({"k_scale": torch.ones(1)}, "k_scale and v_scale are for caches of int8"),
        ({"cos_cache": halves(403, 32)}, "cos_cache and sin_cache must be given together"),
        ({"sin_cache": halves(403, 32)}, "sin_cache is .*expected"),
        ({"cos_cache": halves(403), "sin_cache": halves(403)}, "cos_cache is .*2 dimensions"),
        (
            {"cos_cache": halves(403, 33), "sin_cache": halves(403, 33)},
            "rotary_half is 33",
        ),
        (
            {"cos_cache": halves(399, 32), "sin_cache": halves(399, 32)},
            "cos_cache and sin_cache have 399 rows",
        ),
        ({"position_ids": torch.zeros((3, 1), dtype=torch.int32)}, "position_ids is int32"),
        ({"local_window_size": 2**64 + 1}, "local_window_size is .*out of range"),
        ({"local_window_size": None}, "local_window_size is None; expected an integer"),
        ({"rotary_interleaved": torch.tensor(2)}, "rotary_interleaved is .*expected True or False"),
        ({"smooth_softmax": None}, "smooth_softmax is None; expected True or False"),
        ({"softcap": None}, "softcap is None; expected a number"),
        ({"attention_bias": halves(2, 1, 1, 400)}, "attention_bias is .*expected"),
        ({"attention_bias": halves(1, 2, 1, 400)}, "attention_bias is .*expected"),
        ({"attention_bias": halves(1, 1, 1, 399)}, "attention_bias is .*expected"),
        ({"attention_bias": halves(1, 1, 1, 800)[..., ::2]}, "rows must be contiguous"),
        ({"head_sink": halves(3)}, "head_sink is .*expected"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"scale": "small"}, "scale is 'small'; expected a number"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"softcap": 10**400}, "softcap is 1000"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_steps_that_are_wrong_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    step = step_of(ragged_case(), **changes)
    with pytest.raises(LeanAttentionError, match=message):
        gpu.plan(step)
    with pytest.raises(LeanAttentionError, match=message):
        gpu.decode(step)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_scale": None}, "k_scale is null"),
        ({"v_scale": torch.ones(2)}, "v_scale is .*expected"),
        ({"k_scale": torch.ones(2, 64)}, r"v_scale is .*expected float32 \(2, 64\)"),
        ({"k_scale": torch.ones(1, 64), "v_scale": torch.ones(1, 64)}, "k_scale is .*expected"),
        ({"k_scale": torch.ones(1).double()}, "k_scale is float64"),
    ],
    ids=str,
)
def test_scales_that_are_wrong_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    step = step_of(ragged_case(cache="int8"), **changes)
    with pytest.raises(LeanAttentionError, match=message):
        gpu.decode(step)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"schedule": 3}, "schedule is 3"),
        ({"schedule": 2**32}, "schedule is .*out of range"),
        ({"amount": 2}, "amount is 2, without a schedule"),
        ({"schedule": Schedule.LEAN, "amount": -1}, "amount is -1"),
        ({"schedule": Schedule.LEAN, "amount": 2**16 + 1}, "amount is 65537"),
        ({"schedule": Schedule.LEAN, "amount": 2**64 + 1}, "amount is .*out of range"),
        ({"schedule": Schedule.LEAN, "amount": 2.5}, "amount is 2.5; expected an integer"),
        ({"schedule": Schedule.LEAN, "amount": 3, "blocks": 4}, "blocks is 4, more than the 3"),
        ({"blocks": -1}, "blocks is -1"),
    ],
    ids=str,
)
def test_plans_that_cannot_be_are_refused(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(LeanAttentionError, match=message):
        gpu.plan(step_of(ragged_case()), **wish)


def test_a_plan_of_another_step_is_refused_and_nothing_is_written() -> None:
    other = step_of(ragged_case(seqlens_k=[399], capacity=400))
    step = step_of(ragged_case())
    before = step.key_cache.clone()
    with pytest.raises(LeanAttentionError, match=r"the plan has .* shares, and this step"):
        gpu.decode(step, plan=gpu.plan(other, schedule=Schedule.FIXED_SPLIT, amount=2))
    shorter = step_of(ragged_case(), max_length=200)
    with pytest.raises(LeanAttentionError, match="the plan has a workspace of"):
        gpu.decode(step, plan=gpu.plan(shorter, schedule=Schedule.LEAN, amount=4))
    assert step.key_cache.view(torch.int16).equal(before.view(torch.int16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": 7}, "the plan's schedule is 7"),
        ({"schedule": "lean"}, "schedule is 'lean'; expected an integer"),
        ({"schedule": None}, "schedule is None; expected an integer"),
        ({"blocks": 0}, "the plan's blocks are 0"),
        ({"blocks": 2**31}, "blocks is 2147483648, which is out of range"),
        ({"amount": 2.0}, "amount is 2.0; expected an integer"),
        ({"amount": 2**16 + 1}, "the plan's amount is 65537"),
        ({"shares": -1}, "the plan has -1 shares"),
        ({"state_bytes": -1}, "the plan has a workspace of -1 bytes"),
        ({"state_bytes": 2**60}, r"no memory for uint8 \(1152921504606846976,\)"),
        ({"state_bytes": 2**63 - 1}, "no memory for uint8"),
        ({"state_bytes": 2**63}, "state_bytes is .*out of range"),
        ({"counters": 0}, "the plan has a workspace of .* and 0 counters"),
        ({"counters": 2**60}, "no memory for int32"),
        ({"counters": "many"}, "counters is 'many'; expected an integer"),
        ({"is_persistent": "yes"}, "is_persistent is 'yes'; expected True or False"),
    ],
    ids=str,
)
@pytest.mark.parametrize("library", ["torch", "others"])
def test_plans_made_by_hand_are_refused_by_name(
    library: str, changes: dict[str, Any], message: str
) -> None:
    case = ragged_case()
    step = gpu.Step(**arrays_of(case, AllocatingArray)) if library == "others" else step_of(case)
    right = gpu.plan(step, schedule=Schedule.LEAN, amount=4)
    assert right.state_bytes > 0
    with pytest.raises(LeanAttentionError, match=message):
        gpu.decode(step, plan=replace(right, **changes))


@pytest.mark.parametrize("name", ["step", "plan", "workspace"])
def test_arguments_of_another_kind_are_refused(name: str) -> None:
    arguments = {"step": step_of(ragged_case()), name: "mine"}
    with pytest.raises(LeanAttentionError, match=f"{name} is str; expected lean_attention.gpu"):
        gpu.decode(**arguments)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (halves(3, 1, 4, 72), "output is .*expected"),
        (halves(3, 1, 4, 64).float(), "output is float32"),
        (halves(3, 1, 4, 128)[..., ::2], "output is .*contiguous"),
        (DeviceArray(np.zeros((3, 1, 4, 64), np.float16)), "output is .* on cpu"),
        (np.zeros((3, 1, 4, 64), np.float16), "output is ndarray"),
    ],
    ids=["shape", "type", "strides", "library", "kind"],
)
def test_an_out_that_is_wrong_is_refused(out: Any, message: str) -> None:
    with pytest.raises(LeanAttentionError, match=message):
        gpu.decode(step_of(ragged_case()), out=out)


def test_memory_of_other_libraries_is_allocated_on_the_stream_that_is_named() -> None:
    entered = []

    class ExternalStream:
        def __init__(self, address: int) -> None:
            self.address = address

        def __enter__(self) -> None:
            entered.append(self.address)

        def __exit__(self, *_: object) -> None:
            entered.append(-self.address)

    class WithStreams(Namespace):
        cuda = SimpleNamespace(ExternalStream=ExternalStream)

        @staticmethod
        def zeros(shape: tuple[int, ...], dtype: Any) -> AllocatingArray:
            assert entered == [7]
            return AllocatingArray(np.zeros(shape, dtype))

    class StreamedArray(AllocatingArray):
        def __array_namespace__(self) -> type[Namespace]:
            return WithStreams

    step = gpu.Step(**arrays_of(ragged_case(), StreamedArray))
    gpu.decode(step, stream=7)
    assert entered == [7, -7]
    with pytest.raises(LeanAttentionError, match=r"stream is str; expected a torch.cuda.Stream"):
        gpu.decode(step, stream="7")


def test_a_workspace_of_another_library_is_refused() -> None:
    case = ragged_case()
    workspace = gpu.Workspace()
    gpu.decode(step_of(case), workspace=workspace)
    with pytest.raises(LeanAttentionError, match="the workspace is on cpu, and the step on the"):
        gpu.decode(gpu.Step(**arrays_of(case, AllocatingArray)), workspace=workspace)


def test_read_only_arrays_are_not_written() -> None:
    arrays = arrays_of(ragged_case(), AllocatingArray)
    arrays["key_cache"] = AllocatingArray(READ_ONLY)
    with pytest.raises(LeanAttentionError, match="key_cache is read-only"):
        gpu.plan(gpu.Step(**arrays))


def test_arrays_of_other_types_and_strides_are_refused() -> None:
    arrays = arrays_of(ragged_case(), AllocatingArray)
    query = arrays["query"].array
    arrays["query"] = DeviceArray(query, typestr="<c8")
    with pytest.raises(LeanAttentionError, match=r"query has the type '<c8'.*expected one of <f2"):
        gpu.decode(gpu.Step(**arrays))
    for wrong in ({"typestr": "|V0"}, {"typestr": ""}, {"data": None}, {"mask": query}):
        arrays["query"] = DeviceArray(query, **wrong)
        with pytest.raises(LeanAttentionError, match="query has the type"):
            gpu.decode(gpu.Step(**arrays))
    for strides in ((), (2,), (512, 512, 128, 2, 2)):
        arrays["query"] = DeviceArray(query, strides=strides)
        with pytest.raises(LeanAttentionError, match=rf"query has {len(strides)} strides for the"):
            gpu.decode(gpu.Step(**arrays))
    arrays["query"] = DeviceArray(query, strides=(3, 3, 3, 3))
    with pytest.raises(LeanAttentionError, match="not of whole elements"):
        gpu.decode(gpu.Step(**arrays))
    arrays["query"] = DeviceArray(query, shape=(3, 2**40, 4, 64))
    with pytest.raises(LeanAttentionError, match="key is"):
        gpu.decode(gpu.Step(**arrays))
