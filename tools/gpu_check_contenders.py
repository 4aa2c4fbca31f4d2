"""Who takes a step: the three schedules, PyTorch, FlashInfer; each is right before it is timed."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from gpu_check_device import Device
from gpu_check_steps import Truth
from lean_attention import gpu
from lean_attention.kernels import Schedule

__all__ = ["HEAD_SIZE", "Case", "Contenders", "compile_flashinfer", "has_flashinfer", "step_of"]

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


def _torch_tensors(case: Case, step: gpu.Step) -> tuple[torch.Tensor | None, ...]:
    """Query, key, value and mask of scaled_dot_product_attention, the new row in the cache."""
    mask = None
    if case.ragged:
        positions = torch.arange(case.context, device=step.query.device)
        mask = (positions <= step.seqlens_k[:, None])[:, None, None]
    return step.query.transpose(1, 2), step.key_cache, step.value_cache, mask


def _torch_run(case: Case, step: gpu.Step) -> Run:
    tensors = _torch_tensors(case, step)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(*tensors, enable_gqa=True).transpose(1, 2)


def _torch_backend(case: Case, step: gpu.Step) -> str:
    """Returns which of its kernels PyTorch chooses; its choice has no public name."""
    choice = torch._fused_sdp_choice(*_torch_tensors(case, step), enable_gqa=True)
    return torch.nn.attention.SDPBackend(choice).name.lower()


def has_flashinfer() -> bool:
    """Whether FlashInfer is installed."""
    return importlib.util.find_spec("flashinfer") is not None


def _uses_tensor_cores(case: Case) -> bool:
    return case.num_heads >= 4 * case.kv_num_heads


def compile_flashinfer(device: Device) -> None:
    """Runs every kernel of FlashInfer's that is timed once; it compiles each for its first call."""
    for heads in ((8, 8), (8, 2)):
        case = Case(_PAGE, (_PAGE,), *heads, False)
        shape = (1, case.kv_num_heads, case.context, HEAD_SIZE)
        zeros = torch.zeros(shape, dtype=torch.float16, device=device.torch)
        _flashinfer_run(case, step_of(case, device, (zeros, zeros.clone())))()
        device.synchronize()


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
        use_tensor_cores=_uses_tensor_cores(case),
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

    def __init__(
        self, case: Case, device: Device, steps: list[gpu.Step], *, flashinfer: bool = False
    ) -> None:
        """Prepares all, over steps that differ in their caches' memory alone.

        Attributes ``runs``, ``refusals`` (why one takes no part), ``plans`` (ours, explained) and
        ``backends`` (which of the others' kernels runs) are by name. ``flashinfer`` says whether
        FlashInfer is one of them; its kernels should be compiled then.
        """
        self.device = device
        self.runs: dict[str, list[Callable[[], object]]] = {}
        self.refusals: dict[str, str] = {}
        self.plans: dict[str, str] = {}
        self.backends = {"torch": _torch_backend(case, steps[0])}
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
        if flashinfer:
            self.backends["flashinfer"] = (
                f"{'tensor' if _uses_tensor_cores(case) else 'CUDA'} cores"
            )
            truth = Truth.of(_as_flashinfer_reads(case, steps[0]), case.lengths)
            runs = (_flashinfer_run(case, step) for step in steps)
            self._add("flashinfer", truth, _OTHERS_ERROR, runs)

    def _add(self, name: str, truth: Truth, most: float, runs: Iterable[Run]) -> None:
        """Takes a contender in whose result on the first copy is right, and is so repeated."""
        try:
            launches = list(runs)
            error = truth.error(launches[0]())
            if error <= most:
                replays = [self.device.capture(launch) for launch in launches]
                replays[0]().fill_(torch.nan)  # which the next one must write over
                error = truth.error(replays[0]())
            if error > most:
                self.refusals[name] = f"wrong: an error {error:.3g} times as large as it may be"
            else:
                self.runs[name] = replays
        except Exception as error:  # others raise what they like, and ours is then named as well
            self.refusals[name] = (str(error) or repr(error)).splitlines()[0][:200]
