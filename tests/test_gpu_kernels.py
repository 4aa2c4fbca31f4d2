"""`lean_attention.gpu` over the emulator, whose device memory is the host's."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from gpu_step import Cut, assert_right, ragged_case, run, step_of, to_numpy
from lean_attention import gpu
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
        {"tokens": 5, "seqlens_k": [2, 130, 300], "rotary_half": 32},
        {"tokens": 5, "queries": [0, 5, 2], "rotary_half": 32, "packed": True},
        {"tokens": 3, "new_rows": False, "rotary_half": 32, "seqlens_k": [2, 130, 300]},
        {"norm": True, "rotary_half": 32, "packed": True},
        {"tokens": 12, "queries": [1, 12, 7], "norm": True, "cache": "float8"},
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
        {"tokens": 5, "queries": [0, 2, 5], "norm": True},
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
