"""One attention step to be measured: its sizes, its types, and how many caches it rotates over."""

import math
from dataclasses import dataclass

from lean_attention.errors import LeanAttentionError

__all__ = ["DTYPES", "KV_DTYPES", "KV_SCALES", "Copies", "KernelConfig"]

DTYPES = {"float32": 32, "float16": 16, "bfloat16": 16}
"""Bits by type of activations."""
KV_DTYPES = DTYPES | {"int8": 8, "int4": 4}
"""Bits by type of cache."""
KV_SCALES = ("per-tensor", "per-channel")

_MOST_LAYERS = 32
_WARM_COPIES = 30
_COLD_BYTES = 256 << 20
# What one run of a session should read at least: less, and its fixed costs show.
_RUN_BYTES = 64 << 20


@dataclass(frozen=True)
class Copies:
    """The caches that a measurement rotates over.

    Attributes:
        sets: Groups of caches; one run of a contender goes over one of them.
        layers: Caches, and attention nodes, of a group.
    """

    sets: int
    layers: int

    @property
    def count(self) -> int:
        """All caches."""
        return self.sets * self.layers


@dataclass(frozen=True)
class KernelConfig:
    """One query token for each of some sequences, attending to their caches.

    Attributes:
        lengths: Valid cache rows of each sequence after the step, [B].
        num_heads: Query heads.
        kv_num_heads: KV heads.
        head_size: Elements of a head.
        dtype: Of the activations: float32, float16 or bfloat16.
        kv_dtype: Of the cache: the same, int8 or int4.
        kv_scales: Of an integer cache: per-tensor or per-channel.
        threads: Of each contender's pool.
        warm: Whether the caches are few and reused, as a small model's are, or so many that each
            comes from memory.

    Raises:
        LeanAttentionError: A value that no contender could take.
    """

    lengths: tuple[int, ...] = (4096,)
    num_heads: int = 32
    kv_num_heads: int = 8
    head_size: int = 128
    dtype: str = "float32"
    kv_dtype: str = "float32"
    kv_scales: str = "per-tensor"
    threads: int = 1
    warm: bool = False

    def __post_init__(self) -> None:
        """Checks all values, in the order of the attributes."""
        for name, value, most in (
            ("num_heads", self.num_heads, 65536),
            ("kv_num_heads", self.kv_num_heads, 65536),
            ("head_size", self.head_size, 4096),
            ("threads", self.threads, 1024),
            ("the number of sequences", len(self.lengths), 65536),
            *(("the context", length, 2**31 - 1) for length in self.lengths),
        ):
            if not 1 <= value <= most:
                raise LeanAttentionError(f"{name} is {value}; it must be 1 to {most}")
        if self.num_heads % self.kv_num_heads:
            raise LeanAttentionError(
                f"num_heads is {self.num_heads}, which is no multiple of kv_num_heads, "
                f"{self.kv_num_heads}"
            )
        for name, text, choices in (
            ("dtype", self.dtype, DTYPES),
            ("kv_dtype", self.kv_dtype, KV_DTYPES),
            ("kv_scales", self.kv_scales, KV_SCALES),
        ):
            if text not in choices:
                raise LeanAttentionError(
                    f"{name} is {text!r}; it must be one of {', '.join(choices)}"
                )
        if self.kv_dtype in DTYPES and self.kv_dtype != self.dtype:
            raise LeanAttentionError(
                f"kv_dtype {self.kv_dtype} with dtype {self.dtype}: a cache of floats has the "
                "activations' type; choose the same, int8 or int4"
            )
        if self.kv_dtype == "int4" and self.head_size % 2:
            raise LeanAttentionError(
                f"head_size is {self.head_size}; an int4 cache holds two elements in a byte, so "
                "it must be even"
            )

    @property
    def batch_size(self) -> int:
        """Sequences, B."""
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        """Cache rows of each sequence: as many as the longest needs, C."""
        return max(self.lengths)

    @property
    def padded(self) -> bool:
        """Whether caches hold rows past the end of a shorter sequence."""
        return len(set(self.lengths)) > 1

    @property
    def quantized(self) -> bool:
        """Whether the cache holds integers."""
        return self.kv_dtype not in DTYPES

    @property
    def row_bytes(self) -> int:
        """Bytes of one head's row in the cache."""
        return self.head_size * KV_DTYPES[self.kv_dtype] // 8

    @property
    def bytes_read(self) -> int:
        """Bytes of the valid rows of K and V, counted once: what a step cannot do without."""
        return 2 * sum(self.lengths) * self.kv_num_heads * self.row_bytes

    @property
    def bytes_held(self) -> int:
        """Bytes of K and V with all rows."""
        return 2 * self.batch_size * self.capacity * self.kv_num_heads * self.row_bytes

    @property
    def tolerance(self) -> float:
        """The largest error of a head's output, relative to its length as a vector.

        Twice the spacing of the output's type, which allows for scores or weights rounded to it,
        and the random walk of float32 sums over the context and over the head.
        """
        spacing = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
        walk = math.sqrt(self.capacity) + 2 * math.sqrt(self.head_size)
        return 2 * spacing[self.dtype] + walk * spacing["float32"]

    def copies(self, last_level_cache_bytes: int) -> Copies:
        """Returns how many caches to rotate over on a machine with such a cache."""
        if self.warm:
            return Copies(1, max(1, min(_WARM_COPIES, _COLD_BYTES // self.bytes_held)))
        cold = max(_COLD_BYTES, 4 * last_level_cache_bytes)
        layers = min(_MOST_LAYERS, math.ceil(_RUN_BYTES / self.bytes_read))
        return Copies(max(2, math.ceil(cold / (layers * self.bytes_read))), layers)

    def flags(self) -> list[str]:
        """Returns the flags of ``lean-attention bench kernel`` that describe this step."""
        flags = {
            "num-heads": self.num_heads,
            "kv-num-heads": self.kv_num_heads,
            "head-size": self.head_size,
        }
        if not self.padded:
            flags |= {"context": self.capacity}
            flags |= {"batch": self.batch_size} if self.batch_size > 1 else {}
        words = [f"--{name}={value}" for name, value in flags.items()]
        if self.padded:
            words.append(f"--lengths={','.join(map(str, self.lengths))}")
        words.append(f"--dtype={self.dtype}")
        if self.quantized:
            words += [f"--kv-dtype={self.kv_dtype}", f"--kv-scales={self.kv_scales}"]
        words.append(f"--threads={self.threads}")
        return words + ["--warm"] * self.warm
