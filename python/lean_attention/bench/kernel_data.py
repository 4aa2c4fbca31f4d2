"""Random tensors of one attention step, its caches in many copies, and the exact result."""

import mmap
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lean_attention.bench.kernel_config import Copies, KernelConfig

__all__ = ["KernelData"]

Array = NDArray[Any]

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int4": np.dtype(np.uint8),  # two in a byte, the even element low, each plus 8
}
# Integers are drawn evenly from their range; these scales give them a standard deviation of 1.
_UNIT_SCALES = {"int8": 1 / 73.3, "int4": 1 / 4.61}
_LARGEST = {"int8": 127, "int4": 7}
_ALIGNMENT = 64


class KernelData:
    """What all contenders are given: the same memory, so that none has luckier pages.

    The caches lie in pages as a runtime's allocator gets them, not in the large pages that NumPy
    asks for. Rows that no contender may read as numbers hold NaN (of integers: the largest), and
    so does, until a contender appends it, the new row.

    Attributes:
        config: The step.
        copies: The caches.
        query: [B, 1, N * H].
        key: [B, 1, K * H], the new row.
        value: As key.
        seqlens_k: [B] int32, the lengths less one.
        total_sequence_length: The greatest length, a scalar, int32.
        k_scale: Of an integer cache: [1], or [1, K, 1, H] per channel.
        v_scale: As k_scale.
    """

    def __init__(self, config: KernelConfig, copies: Copies, seed: int = 0) -> None:
        """Draws the tensors, and fills all copies of the cache with the same numbers."""
        self.config, self.copies = config, copies
        rng = np.random.default_rng(seed)
        dtype = NUMPY_TYPES[config.dtype]
        batch, heads = config.batch_size, config.kv_num_heads
        width = heads * config.head_size
        self.query: Array = rng.standard_normal((batch, 1, config.num_heads * config.head_size))
        self.query = self.query.astype(dtype)
        # Bounded, so that the new rows of an integer cache do not depend on how it clips.
        self.key: Array = rng.uniform(-0.8, 0.8, (batch, 1, width)).astype(dtype)
        self.value: Array = rng.uniform(-0.8, 0.8, (batch, 1, width)).astype(dtype)
        self.seqlens_k = np.array(config.lengths, np.int32) - 1
        self.total_sequence_length = np.array(config.capacity, np.int32)
        self.k_scale, self.v_scale = self._draw_scale(rng), self._draw_scale(rng)

        half = -(-config.bytes_held // 2 // _ALIGNMENT) * _ALIGNMENT
        pages = mmap.mmap(-1, 2 * half * copies.count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = np.frombuffer(pages, np.uint8)
        self._caches = memory.reshape(copies.sets, copies.layers, 2, half)
        for part in self.cache(0, 0):
            self._draw_cache(rng, part)
        self.poison(0)
        first, *others = self._caches.reshape(copies.count, 2 * half)
        for other in others:
            other[:] = first

    def _draw_scale(self, rng: np.random.Generator) -> NDArray[np.float32]:
        config = self.config
        shape = (1, config.kv_num_heads, 1, config.head_size)
        per_channel = config.kv_scales == "per-channel"
        spread = rng.uniform(0.5, 1.5, shape) if per_channel else np.ones(1)
        return (_UNIT_SCALES.get(config.kv_dtype, 1.0) * spread).astype(np.float32)

    def _draw_cache(self, rng: np.random.Generator, part: Array) -> None:
        for b, length in enumerate(self.config.lengths):
            for rows in part[b, :, :length]:
                if self.config.quantized:
                    rows[...] = np.frombuffer(rng.bytes(rows.nbytes), rows.dtype).reshape(
                        rows.shape
                    )
                else:
                    rows[...] = rng.standard_normal(rows.shape, np.float32)

    def cache(self, group: int, layer: int) -> tuple[Array, Array]:
        """Returns K and V of one copy, [B, K, C, H], or [B, K, C, H / 2] of int4; views."""
        config = self.config
        dtype = NUMPY_TYPES[config.kv_dtype]
        columns = config.row_bytes // dtype.itemsize
        shape = (config.batch_size, config.kv_num_heads, config.capacity, columns)
        size = config.bytes_held // 2
        key, value = (half[:size].view(dtype).reshape(shape) for half in self._caches[group, layer])
        return key, value

    def poison(self, group: int) -> None:
        """Overwrites, in all caches of a group, the new rows and those past them."""
        worst = {"int8": 127, "int4": 0xFF}.get(self.config.kv_dtype, np.nan)
        for layer in range(self.copies.layers):
            for part in self.cache(group, layer):
                for b, length in enumerate(self.config.lengths):
                    part[b, :, length - 1 :] = worst

    def valid_pieces(self, group: int) -> list[tuple[int, int]]:
        """Returns address and bytes of each stretch of valid rows of a group's caches."""
        config = self.config
        pieces = []
        for layer in range(self.copies.layers):
            for part in self.cache(group, layer):
                if min(config.lengths) == config.capacity:
                    pieces.append((part.ctypes.data, part.nbytes))
                    continue
                pieces += [
                    (head.ctypes.data, length * config.row_bytes)
                    for b, length in enumerate(config.lengths)
                    for head in part[b]
                ]
        return pieces

    def exact_output(self) -> NDArray[np.float64]:
        """Returns the step's output in float64, [B, N, H]."""
        config = self.config
        heads, size = config.kv_num_heads, config.head_size
        group = config.num_heads // heads
        queries = self.query.astype(np.float64).reshape(config.batch_size, heads, group, size)
        output = np.empty(queries.shape)
        for b, length in enumerate(config.lengths):
            for h in range(heads):
                keys = self._exact_rows(0, b, h, length)
                scores = queries[b, h] @ keys.T / np.sqrt(size)
                weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
                weights /= weights.sum(axis=-1, keepdims=True)
                output[b, h] = weights @ self._exact_rows(1, b, h, length)
        return output.reshape(config.batch_size, config.num_heads, size)

    def _exact_rows(self, part: int, b: int, h: int, length: int) -> NDArray[np.float64]:
        """Returns the valid rows of one head of K (part 0) or V (1) as numbers, [length, H]."""
        config = self.config
        stored = self.cache(0, 0)[part][b, h, : length - 1]
        new = (self.key, self.value)[part][b, 0].reshape(-1, config.head_size)[h]
        if not config.quantized:
            return np.concatenate([stored, new[None]]).astype(np.float64)
        scale = np.broadcast_to(
            (self.k_scale, self.v_scale)[part], (1, config.kv_num_heads, 1, config.head_size)
        )[0, h, 0]
        largest = _LARGEST[config.kv_dtype]
        if config.kv_dtype == "int4":
            nibbles = np.stack([stored & 0xF, stored >> 4], axis=-1).reshape(length - 1, -1)
            stored = nibbles.astype(np.int8) - np.int8(8)
        # As the operator is defined: times the float32 reciprocal, not divided.
        rounded = np.rint(new.astype(np.float32) * (np.float32(1) / scale))
        rounded = np.clip(rounded, -largest - 1, largest)
        rows: NDArray[np.float64] = np.concatenate([stored, rounded[None]]).astype(np.float64)
        rows *= scale
        return rows
