"""Who takes a step: the three schedules, PyTorch, FlashInfer; each is right before it is timed."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from gpu_check_device import Device
from gpu_check_steps import Truth
from lean_attention import gpu
from lean_attention.kernels import Schedule

__all__ = ["HEAD_SIZE", "Case", "Contenders", "step_of"]

HEAD_SIZE = 128
_PAGE = 16  # tokens, of FlashInfer's cache
_OTHERS_ERROR = 8  # in parts of what ours may have: they round more often


@dataclass(frozen=True)
class Case:
    """One decode step of float16.

    Attributes:
        context: The longest sequence.
        lengths: Of all.
        num_heads: N.
        kv_num_heads: K.
        ragged: Whether the lengths differ.
    """

    context: int
    lengths: tuple[int, ...]
    num_heads: int
    kv_num_heads: int
    ragged: bool

    @property
    def cache_elements(self) -> int:
        """Of K, or of V."""
        return len(self.lengths) * self.kv_num_heads * self.context * HEAD_SIZE

    @property
    def bytes_read(self) -> int:
        """Of K and V, each row once."""
        return 2 * 2 * sum(self.lengths) * self.kv_num_heads * HEAD_SIZE

    def __str__(self) -> str:
        """Names it in a line."""
        kind = "ragged" if self.ragged else "uniform"
        return f"{self.context} x {len(self.lengths)}, {self.num_heads}/{self.kv_num_heads}, {kind}"


def step_of(case: Case, device: Device, caches: tuple[torch.Tensor, torch.Tensor]) -> gpu.Step:
    """Returns a case's step over caches K and V [B, K, C, H]."""
    batch, seed = len(case.lengths), torch.Generator(device.torch).manual_seed(1)

    def normal(heads: int) -> torch.Tensor:
        size = (batch, 1, heads, HEAD_SIZE)
        return torch.randn(size, generator=seed, device=device.torch).half()

    return gpu.Step(
        query=normal(case.num_heads),
        key=normal(case.kv_num_heads),
        value=normal(case.kv_num_heads),
        key_cache=caches[0],
        value_cache=caches[1],
        seqlens_k=torch.tensor(case.lengths, dtype=torch.int32, device=device.torch) - 1,
    )


Run = Callable[[], torch.Tensor]


def _torch_run(case: Case, step: gpu.Step) -> Run:
    """scaled_dot_product_attention over the cache, in which the new row is already."""
    mask = None
    if case.ragged:
        positions = torch.arange(case.context, device=step.query.device)
        mask = (positions <= step.seqlens_k[:, None])[:, None, None]
    query = step.query.transpose(1, 2)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(
        query, step.key_cache, step.value_cache, attn_mask=mask, enable_gqa=True
    ).transpose(1, 2)


def _flashinfer_run(case: Case, step: gpu.Step) -> Run:
    """FlashInfer's batch decode: the same memory, read as pages [tokens, K, H]."""
    import flashinfer

    device = step.query.device
    pages = [-(-length // _PAGE) for length in case.lengths]
    pages_of_row = case.context // _PAGE
    begins = torch.tensor([0, *pages], dtype=torch.int32, device=device).cumsum(0)
    rows = range(len(pages))
    indices = torch.cat([torch.arange(pages[b]) + b * pages_of_row for b in rows])
    last = [(length - 1) % _PAGE + 1 for length in case.lengths]
    paged = (-1, _PAGE, case.kv_num_heads, HEAD_SIZE)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(256 << 20, dtype=torch.uint8, device=device),
        "NHD",
        use_tensor_cores=case.num_heads >= 4 * case.kv_num_heads,
    )
    wrapper.plan(
        begins.to(torch.int32),
        indices.to(torch.int32).to(device),
        torch.tensor(last, dtype=torch.int32, device=device),
        case.num_heads,
        case.kv_num_heads,
        HEAD_SIZE,
        _PAGE,
        q_data_type=torch.float16,
        kv_data_type=torch.float16,
    )
    query = step.query[:, 0]
    caches = step.key_cache.view(paged), step.value_cache.view(paged)
    return lambda: wrapper.run(query, caches)[:, None]


def _as_flashinfer_reads(case: Case, step: gpu.Step) -> gpu.Step:
    """The step whose result FlashInfer's must be."""
    shape = (len(case.lengths), case.context, case.kv_num_heads, HEAD_SIZE)
    caches = (cache.view(shape).transpose(1, 2) for cache in (step.key_cache, step.value_cache))
    tensors = {name: getattr(step, name) for name in ("query", "key", "value", "seqlens_k")}
    return gpu.Step(**tensors, **dict(zip(("key_cache", "value_cache"), caches, strict=True)))


def _our_run(step: gpu.Step, plan: gpu.Plan) -> Run:
    workspace, out = gpu.Workspace(), torch.empty_like(step.query)
    return lambda: gpu.decode(step, plan=plan, workspace=workspace, out=out)


class Contenders:
    """What runs a case: by name, one launch per copy of the caches."""

    def __init__(self, case: Case, device: Device, steps: list[gpu.Step]) -> None:
        """Prepares all, over steps that differ in their caches' memory alone.

        Attributes ``runs``, ``refusals`` (why one takes no part) and ``plans`` (ours, explained)
        are by name.
        """
        self.device = device
        self.runs: dict[str, list[Callable[[], object]]] = {}
        self.refusals: dict[str, str] = {}
        self.plans: dict[str, str] = {}
        # All copies hold the new row, which the others do not append.
        for step in steps:
            gpu.decode(step)
        truth = Truth.of(steps[0], case.lengths)
        for schedule in (Schedule.DIRECT, Schedule.FIXED_SPLIT, Schedule.LEAN):
            plan = gpu.plan(steps[0], schedule=schedule)
            name = schedule.name.lower()
            self.plans[name] = plan.explanation
            self._add(name, truth, 1, (_our_run(step, plan) for step in steps))
        self._add("torch", truth, _OTHERS_ERROR, (_torch_run(case, step) for step in steps))
        if importlib.util.find_spec("flashinfer") is not None and not device.is_emulated:
            truth = Truth.of(_as_flashinfer_reads(case, steps[0]), case.lengths)
            runs = (_flashinfer_run(case, step) for step in steps)
            self._add("flashinfer", truth, _OTHERS_ERROR, runs)

    def _add(self, name: str, truth: Truth, most: float, runs: Iterable[Run]) -> None:
        """Takes a contender in whose result on the first copy is right."""
        try:
            launches = list(runs)
            error = truth.error(launches[0]())
            if error > most:
                self.refusals[name] = f"wrong: an error {error:.3g} times as large as it may be"
            else:
                self.runs[name] = [self.device.capture(launch) for launch in launches]
        except Exception as error:  # others raise what they like, and ours is then named as well
            self.refusals[name] = (str(error) or repr(error)).splitlines()[0][:200]
