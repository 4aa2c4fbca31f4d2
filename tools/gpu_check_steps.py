"""Random decode steps on the device, and the plain truth about them in float64."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from lean_attention import gpu

__all__ = ["Shape", "Truth", "appended_error", "draw"]

Tensor = torch.Tensor
_UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@dataclass(frozen=True)
class Shape:
    """What a step looks like.

    Attributes:
        lengths: Of the sequences, the step's tokens included.
        num_heads: N.
        kv_num_heads: K.
        head_size: H.
        dtype: "float16" or "bfloat16".
        cache: "int8" or "float8_e4m3fn"; "": the dtype.
        per_channel: Whether a quantised cache has scales [K, H] instead of [1].
        tokens: S.
        rotary_half: Rotated pairs of a head; 0: no rotary embedding.
        bias: Whether there is a bias of every sequence and head.
        sink: Whether there is a head_sink.
        options: Further fields of `gpu.Step`.
    """

    lengths: tuple[int, ...]
    num_heads: int = 4
    kv_num_heads: int = 2
    head_size: int = 64
    dtype: str = "float16"
    cache: str = ""
    per_channel: bool = False
    tokens: int = 1
    rotary_half: int = 0
    bias: bool = False
    sink: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Names it in a line."""
        parts = [
            f"{self.dtype}/{self.cache or self.dtype}{' per channel' if self.per_channel else ''}",
            f"{self.num_heads}/{self.kv_num_heads} heads of {self.head_size}",
            f"lengths {','.join(map(str, self.lengths))}",
        ]
        parts += [f"{self.tokens} tokens"] if self.tokens > 1 else []
        parts += [f"rotary {self.rotary_half}"] if self.rotary_half else []
        parts += [name for name in ("bias", "sink") if getattr(self, name)]
        parts += [f"{name}={value}" for name, value in self.options.items()]
        return " ".join(parts)


def _draw_cache(shape: Shape, numbers: Tensor, scale: Tensor | None) -> Tensor:
    """Returns numbers [B, K, C, H] as a cache holds them, NaN where nobody may look."""
    dtype = getattr(torch, shape.cache or shape.dtype)
    if scale is not None:
        numbers = numbers / (scale[:, None] if shape.per_channel else scale)
    if dtype == torch.int8:
        return numbers.round().clamp(-127, 127).to(dtype)
    if dtype == torch.float8_e4m3fn:
        numbers = numbers.clamp(-448, 448)
    for b, length in enumerate(shape.lengths):
        numbers[b, :, length - shape.tokens :] = math.nan
    return numbers.to(dtype)


def draw(shape: Shape, device: torch.device, seed: int = 0) -> gpu.Step:
    """Draws a step's tensors; every field of `gpu.Step` that the shape names is there."""
    random = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    batch, rows = len(shape.lengths), max(shape.lengths) + 3

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=random, device=device)

    tensors: dict[str, Any] = {}
    for name, heads in (("query", shape.num_heads), ("key", shape.kv_num_heads)):
        tensors[name] = normal(batch, shape.tokens, heads, shape.head_size).to(dtype)
    tensors["value"] = normal(*tensors["key"].shape).to(dtype)
    for name, largest in (("k", 4.0), ("v", 5.0)):
        scale = None
        if shape.cache:
            sizes = (shape.kv_num_heads, shape.head_size) if shape.per_channel else (1,)
            spread = 0.5 + torch.rand(sizes, generator=random, device=device)
            scale = spread * largest / (127 if shape.cache == "int8" else 200)
            tensors[f"{name}_scale"] = scale
        cache = {"k": "key_cache", "v": "value_cache"}[name]
        numbers = normal(batch, shape.kv_num_heads, rows, shape.head_size)
        tensors[cache] = _draw_cache(shape, numbers, scale)
    if shape.rotary_half:
        steps = torch.arange(shape.rotary_half, device=device) / shape.rotary_half
        angles = torch.arange(rows, device=device)[:, None] / 100.0**steps
        tensors |= {"cos_cache": angles.cos().to(dtype), "sin_cache": angles.sin().to(dtype)}
    if shape.bias:
        tensors["attention_bias"] = normal(batch, shape.num_heads, shape.tokens, rows).to(dtype)
    if shape.sink:
        tensors["head_sink"] = normal(shape.num_heads).to(dtype)
    return gpu.Step(
        **tensors,
        seqlens_k=torch.tensor(shape.lengths, dtype=torch.int32, device=device) - 1,
        max_length=max(shape.lengths),
        **shape.options,
    )


def _rotated(step: gpu.Step, x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding (RoFormer, arXiv 2104.09864) of x [S, heads, H] at positions [S]."""
    if step.cos_cache is None:
        return x
    cos, sin = (table.double()[positions][:, None] for table in (step.cos_cache, step.sin_cache))
    half = cos.shape[-1]
    rotated = x.clone()
    if step.rotary_interleaved:
        places = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        places = slice(0, half), slice(half, 2 * half)
    a, b = x[..., places[0]], x[..., places[1]]
    rotated[..., places[0]] = a * cos - b * sin
    rotated[..., places[1]] = a * sin + b * cos
    return rotated


def _numbers(cache: Tensor, scale: Tensor | None) -> Tensor:
    """Returns the numbers of rows [K, T, H] of a cache."""
    numbers = cache.double()
    if scale is None:
        return numbers
    return numbers * (scale[:, None] if scale.dim() == 2 else scale)


def _scores(step: gpu.Step, b: int, query: Tensor, keys: Tensor) -> Tensor:
    """Returns the scores [K, G, S, T] of one sequence, -inf where they are masked."""
    tokens, length = query.shape[0], keys.shape[1]
    # Without copies of the keys for each head of a group.
    grouped = query.transpose(0, 1).unflatten(0, (keys.shape[0], -1))
    scale = query.shape[-1] ** -0.5 if step.scale is None else step.scale
    scores = (grouped.flatten(1, 2) @ keys.mT).view(*grouped.shape[:3], length) * scale
    if step.softcap > 0:
        scores = step.softcap * torch.tanh(scores / step.softcap)
    if step.attention_bias is not None:
        bias = step.attention_bias[b, :, :, :length].double()
        scores = scores + bias.unflatten(0, scores.shape[:2])
    last = torch.arange(length - tokens, length, device=keys.device)[:, None]
    behind = last - torch.arange(length, device=keys.device)
    window = step.local_window_size if step.local_window_size > 0 else length
    return scores.masked_fill((behind < 0) | (behind >= window), -math.inf)


def _expected_output(step: gpu.Step, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns the output [B, S, N, H] in float64, and the same of the values' magnitudes."""
    outputs, magnitudes = [], []
    for b, length in enumerate(lengths):
        tokens = step.query.shape[1]
        positions = torch.arange(length - tokens, length, device=step.query.device)
        query = _rotated(step, step.query[b].double(), positions)
        keys = _numbers(step.key_cache[b, :, :length], step.k_scale)
        values = _numbers(step.value_cache[b, :, :length], step.v_scale)
        scores = _scores(step, b, query, keys)
        if step.head_sink is not None:
            sink = step.head_sink.double().view(*scores.shape[:2], 1, 1)
            scores = torch.cat([scores, sink.expand(-1, -1, tokens, 1)], dim=-1)
        elif step.smooth_softmax:
            scores = torch.nn.functional.pad(scores, (0, 1))
        weights = scores.softmax(dim=-1)[..., :length]
        for found, numbers in ((outputs, values), (magnitudes, values.abs())):
            mean = weights.flatten(1, 2) @ numbers
            found.append(mean.unflatten(1, (-1, tokens)).flatten(0, 1).transpose(0, 1))
    return torch.stack(outputs), torch.stack(magnitudes)


@dataclass(frozen=True)
class Truth:
    """What a step's output should be.

    Attributes:
        output: [B, S, N, H] float64.
        bound: Of the error, likewise. Each number may be off by its own rounding, by 2e-6 for sums
            in float32 (with a bias, whose scores are larger, 4e-6), by what rounding rotated
            queries to 16 bits moves the scores, and by a rounding of every softmax weight, which
            matrix instructions take in 16 bits.
    """

    output: Tensor
    bound: Tensor

    @classmethod
    def of(cls, step: gpu.Step, lengths: tuple[int, ...]) -> "Truth":
        """Computes it of a step that has run, from the caches that it left."""
        output, magnitude = _expected_output(step, lengths)
        unit = _UNIT_ROUNDOFF[step.query.dtype]
        bound = 1.01 * unit * output.abs() + unit * magnitude
        bound += 2e-6 if step.attention_bias is None else 4e-6
        bound += 4 * unit if step.cos_cache is not None else 0
        return cls(output, bound)

    def error(self, found: Tensor) -> float:
        """Returns how large the worst error is, in parts of its bound."""
        return _worst((found.double() - self.output).abs() / self.bound)


def _worst(error: Tensor) -> float:
    """Returns the largest; a NaN is larger than all, which ``max`` alone would not promise."""
    return math.inf if error.isnan().any() else float(error.max())


def appended_error(step: gpu.Step, lengths: tuple[int, ...]) -> float:
    """Returns the worst error of what a step appended to its caches, in parts of its bound."""
    worst = 0.0
    unit = _UNIT_ROUNDOFF[step.query.dtype]
    for b, length in enumerate(lengths):
        tokens = step.key.shape[1]
        new = slice(length - tokens, length)
        positions = torch.arange(length - tokens, length, device=step.key.device)
        for x, cache, scale in (
            (_rotated(step, step.key[b].double(), positions), step.key_cache, step.k_scale),
            (step.value[b].double(), step.value_cache, step.v_scale),
        ):
            rows = x.transpose(0, 1)
            bound = 2 * unit * (rows.abs() + 1)
            if scale is not None:
                step_size = scale[:, None] if scale.dim() == 2 else scale
                # Half a unit of int8; of float8, half of its last bit, or of its least number.
                is_int8 = cache.dtype == torch.int8
                most = step_size * (127 if is_int8 else 448)
                rows = rows.clamp(-most * (128 / 127 if is_int8 else 1), most)
                bound += 0.5 * step_size if is_int8 else rows.abs() / 16 + step_size * 2.0**-10
            error = (_numbers(cache[b, :, new], scale) - rows).abs() / bound
            worst = max(worst, _worst(error))
    return worst
