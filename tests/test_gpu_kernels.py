"""`lean_attention.gpu` over the emulator, whose device memory is the host's."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpu_step import Cut, make_gpu_case, run, step_of, to_numpy
from gqa_node import Case, assert_matches_reference
from lean_attention import gpu
from lean_attention.errors import LeanAttentionError
from lean_attention.kernels import Schedule

CACHES = (
    ("", "PER_TENSOR"),
    ("int8", "PER_TENSOR"),
    ("int8", "PER_CHANNEL"),
    ("float8", "PER_TENSOR"),
    ("float8", "PER_CHANNEL"),
)
CUTS = (
    Cut(),
    Cut(Schedule.DIRECT),
    Cut(Schedule.LEAN),
    Cut(Schedule.FIXED_SPLIT),
    *(Cut(Schedule.LEAN, amount) for amount in (1, 2, 5, 16)),
    *(Cut(Schedule.FIXED_SPLIT, amount) for amount in (1, 2, 3, 9)),
    Cut(Schedule.LEAN, 7, 2),
    Cut(Schedule.FIXED_SPLIT, 4, 3),
)


@pytest.fixture(autouse=True)
def _on_the_emulator() -> None:
    assert gpu.backend() == "emulator", (
        f"these tests need LEAN_ATTENTION_LIBRARY=.../liblean_attention_emulated.so, and the "
        f"library's backend is {gpu.backend()}"
    )


def ragged_case(**changes: Any) -> Case:
    return make_gpu_case(
        **{
            "num_heads": 4,
            "kv_num_heads": 2,
            "head_size": 64,
            "seqlens_k": [0, 130, 399],
            "capacity": 403,
            "dtype": np.float16,
            **changes,
        }
    )


def assert_right(case: Case, results: list[NDArray[Any]]) -> None:
    assert_matches_reference(case, results, rounds_weights=True)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("cache", "quantisation"), CACHES)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_types_and_head_sizes_match_the_reference(
    dtype: type, cache: str, quantisation: str, head_size: int
) -> None:
    case = ragged_case(dtype=dtype, cache=cache, quantisation=quantisation, head_size=head_size)
    assert_right(case, run(case))


@pytest.mark.parametrize(("num_heads", "kv_num_heads"), [(1, 1), (3, 3), (6, 2), (8, 1), (40, 2)])
def test_groups_match_the_reference(num_heads: int, kv_num_heads: int) -> None:
    case = ragged_case(num_heads=num_heads, kv_num_heads=kv_num_heads)
    assert_right(case, run(case))


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 257, 1500])
def test_lengths_around_tiles_match_the_reference(length: int) -> None:
    case = ragged_case(seqlens_k=[length - 1, 0], capacity=length)
    for cut in CUTS:
        assert_right(case, run(case, cut))


@pytest.mark.parametrize(
    "changes",
    [
        {"local_window_size": 1},
        {"local_window_size": 100},
        {"local_window_size": 129, "sink": np.array([0.5, -1, 2, 0])},
        {"softcap": 3.0},
        {"smooth_softmax": 1},
        {"scale": 0.3},
        {"rotary_half": 32},
        {"rotary_half": 20, "interleaved": True},
        {"rotary_half": 32, "packed": True},
        {"rotary_half": 16, "position_ids": [[5], [0], [402]]},
        {"tokens": 2, "seqlens_k": [3, 130, 300]},
        {"tokens": 8, "seqlens_k": [9, 130, 300], "packed": True, "rotary_half": 32},
        {"tokens": 11, "seqlens_k": [11, 130, 300], "local_window_size": 60},
    ],
    ids=str,
)
def test_features_match_the_reference_under_every_schedule(changes: dict[str, Any]) -> None:
    case = ragged_case(**changes)
    for cut in (Cut(), Cut(Schedule.DIRECT), Cut(Schedule.LEAN, 5), Cut(Schedule.FIXED_SPLIT, 3)):
        assert_right(case, run(case, cut))


@pytest.mark.parametrize(
    ("batch", "heads", "tokens"), list(itertools.product((1, 3), (1, 4), (1, 3)))
)
def test_bias_of_any_broadcast_matches_the_reference(batch: int, heads: int, tokens: int) -> None:
    bias = np.random.default_rng(1).standard_normal((batch, heads, tokens, 400))
    case = ragged_case(bias=3 * bias, tokens=tokens, seqlens_k=[4, 130, 399], softcap=4.0)
    assert_right(case, run(case))


def test_bias_may_lie_in_a_larger_tensor() -> None:
    bias = np.random.default_rng(1).standard_normal((3, 4, 2, 400))
    case = ragged_case(bias=bias, tokens=2, seqlens_k=[4, 130, 399])
    step = step_of(case)
    wide = torch.full((3, 5, 2, 416), torch.nan, dtype=torch.float16)
    wide[:, :4, :, :400] = step.attention_bias
    found = gpu.decode(step_of(case, attention_bias=wide[:, :4, :, :400]))
    assert to_numpy(found).tobytes() == run(case)[0].tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache": "int8", "quantisation": "PER_CHANNEL", "dtype": ml_dtypes.bfloat16},
        {"cache": "float8", "head_size": 128},
        {"local_window_size": 100, "softcap": 3.0},
        {"tokens": 5, "seqlens_k": [7, 130, 399], "rotary_half": 32},
        {"tokens": 12, "seqlens_k": [12, 130, 399]},
    ],
    ids=str,
)
def test_every_plan_and_every_repeat_gives_the_same_bits(changes: dict[str, Any]) -> None:
    case = ragged_case(**changes)
    expected = [array.tobytes() for array in run(case)]
    workspace = gpu.Workspace()
    for cut in (*CUTS, *CUTS):
        found = run(case, cut, workspace=workspace)
        assert [array.tobytes() for array in found] == expected, cut


def test_neighbours_do_not_change_a_sequence() -> None:
    case = ragged_case()
    together = to_numpy(gpu.decode(step_of(case)))
    for b in range(3):
        step = step_of(case)
        own = {
            name: getattr(step, name)[b : b + 1].clone()
            for name in ("query", "key", "value", "key_cache", "value_cache", "seqlens_k")
        }
        alone = gpu.decode(gpu.Step(**own))
        assert to_numpy(alone).tobytes() == together[b : b + 1].tobytes()


def test_plans_say_what_was_decided() -> None:
    step = step_of(ragged_case())
    plan = gpu.plan(step)
    assert (plan.schedule, plan.amount, plan.shares, plan.blocks) == (Schedule.LEAN, 6, 6, 6)
    assert plan.is_persistent
    assert plan.explanation.startswith("lean in 6 shares on 6 resident blocks (")
    plan = gpu.plan(step, schedule=Schedule.FIXED_SPLIT, amount=3, blocks=5)
    assert (plan.amount, plan.shares, plan.blocks) == (3, 18, 5)
    assert "(asked for)" in plan.explanation
    plan = gpu.plan(step, schedule=Schedule.DIRECT)
    assert (plan.state_bytes, plan.counters) == (0, 0)
    tokens = step_of(ragged_case(tokens=11, seqlens_k=[11, 130, 300]))
    assert gpu.plan(tokens, schedule=Schedule.LEAN).schedule == Schedule.DIRECT


def test_a_plan_stays_right_when_lengths_change_in_device_memory() -> None:
    lengths = ([0, 130, 399], [399, 0, 5], [200, 201, 202])
    plan = gpu.plan(step_of(ragged_case()), schedule=Schedule.LEAN, amount=5)
    workspace = gpu.Workspace()
    for seqlens_k in lengths:
        case = ragged_case(seqlens_k=seqlens_k)
        step = step_of(case, max_length=400)
        found = gpu.decode(step, plan=plan, workspace=workspace)
        results = [found.flatten(2), step.key_cache, step.value_cache]
        assert_right(case, [to_numpy(tensor) for tensor in results])


def test_lengths_beyond_what_the_host_knows_are_bounded() -> None:
    case = ragged_case(seqlens_k=[0, 130, 299])
    step = step_of(case)
    step.seqlens_k[0], step.seqlens_k[2] = -7, 2**31 - 1
    found = gpu.decode(step)
    assert to_numpy(found.flatten(2)).tobytes() == run(case)[0].tobytes()


def test_a_workspace_grows_and_serves_every_step() -> None:
    workspace = gpu.Workspace()
    sizes = [(workspace.state_bytes, workspace.counters)]
    for seqlens_k, amount in (([299], 2), ([999], 4), ([199], 2), ([999, 5, 400], 9)):
        case = ragged_case(seqlens_k=seqlens_k, capacity=1000)
        assert_right(case, run(case, Cut(Schedule.LEAN, amount), workspace=workspace))
        sizes.append((workspace.state_bytes, workspace.counters))
    assert sizes[0] == (0, 0)
    assert sizes[1] < sizes[2] == sizes[3] < sizes[4]
    workspace.forget()
    assert (workspace.state_bytes, workspace.counters) == (0, 0)


def test_out_is_what_is_returned() -> None:
    case = ragged_case()
    step = step_of(case)
    out = torch.full_like(step.query, torch.nan)
    assert gpu.decode(step, out=out) is out
    assert to_numpy(out.flatten(2)).tobytes() == run(case)[0].tobytes()


class DeviceArray:
    """An array of a library that says no more than ``__cuda_array_interface__`` does."""

    def __init__(self, array: NDArray[Any], **interface: Any) -> None:
        """Shows an array's memory; ``interface`` overrides what is said of it."""
        self.array = array
        self.shape = array.shape
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, **interface}


class Namespace:
    """Its array namespace."""

    uint8, int32, float16 = np.uint8, np.int32, np.float16

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any) -> "AllocatingArray":
        """Allocates."""
        return AllocatingArray(np.empty(shape, dtype))

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: Any) -> "AllocatingArray":
        """Allocates zeros."""
        return AllocatingArray(np.zeros(shape, dtype))


class AllocatingArray(DeviceArray):
    """One of a library with the array API standard."""

    def __array_namespace__(self) -> type[Namespace]:
        """Returns what allocates."""
        return Namespace


def arrays_of(case: Case, kind: type[DeviceArray]) -> dict[str, Any]:
    """The tensors of a case's step as arrays of another library."""
    tensors = {n: t for n, t in vars(step_of(case)).items() if isinstance(t, torch.Tensor)}
    return {name: kind(tensor.numpy()) for name, tensor in tensors.items()}


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
        ({"key": halves(3, 1, 3, 64)}, r"value is .*expected float16 \(3, 1, 3, 64\)"),
        ({"key": halves(2, 1, 2, 64)}, r"key is .*expected float16 \(3, 1, 2, 64\)"),
        ({"key": halves(3, 1, 2, 64).bfloat16()}, "key is bfloat16"),
        ({"value": halves(3, 1, 4, 64)[:, :, :2]}, "as far apart as the key's"),
        ({"key_cache": halves(3, 2, 403, 64).int()}, "query is float16 and key_cache int32"),
        ({"key_cache": halves(3, 2, 403, 64).to(torch.int8)}, "value_cache is float16"),
        ({"key_cache": halves(3, 1, 403, 64)}, "key_cache is .*expected"),
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


def test_inputs_may_begin_at_any_element() -> None:
    case = ragged_case(rotary_half=8)
    step = step_of(case)
    shifted = {
        name: torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)
        for name, tensor in vars(step).items()
        if isinstance(tensor, torch.Tensor) and "cache" not in name
    }
    assert any(tensor.data_ptr() % 16 for tensor in shifted.values())
    found = gpu.decode(step_of(case, **shifted))
    assert found.equal(gpu.decode(step))


def test_threads_may_share_a_workspace_that_grows() -> None:
    cases = [ragged_case(seqlens_k=[length, 3], capacity=2001) for length in range(100, 2000, 100)]
    expected = [gpu.decode(step_of(case)) for case in cases]
    for _ in range(3):
        workspace = gpu.Workspace()

        def is_right(i: int, workspace: gpu.Workspace = workspace) -> bool:
            return gpu.decode(step_of(cases[i]), workspace=workspace).equal(expected[i])

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(is_right, range(len(cases))))


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
    arrays["query"] = DeviceArray(query, strides=(3, 3, 3, 3))
    with pytest.raises(LeanAttentionError, match="not of whole elements"):
        gpu.decode(gpu.Step(**arrays))
    arrays["query"] = DeviceArray(query, shape=(3, 2**40, 4, 64))
    with pytest.raises(LeanAttentionError, match="key is"):
        gpu.decode(gpu.Step(**arrays))
