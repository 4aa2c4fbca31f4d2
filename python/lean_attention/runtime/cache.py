"""The key and value caches of one generation: allocated once, appended to in place."""

import math
import os
import re
from pathlib import Path

import numpy as np
import onnxruntime

from lean_attention.errors import LeanAttentionError
from lean_attention.runtime.model import DecoderModel
from lean_attention.runtime.reasons import first_line

__all__ = ["KVCache", "available_bytes", "cache_bytes"]


def cache_bytes(model: DecoderModel, batch_size: int, capacity: int) -> int:
    """Returns the bytes of the caches of all layers, [B, K, C, cache width] twice per layer."""
    rows = batch_size * model.kv_num_heads * max(capacity, model.window_rows)
    return 2 * model.num_layers * rows * model.cache_width * model.cache_dtype.itemsize


def available_bytes() -> int:
    """Returns the main memory that can be had without swapping, in bytes."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        # Unlike the free pages of sysconf, this counts the page cache, which holds the weights of
        # every model that was loaded lately.
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="ascii"))
        if found:
            return int(found[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class KVCache:
    """One buffer per layer for keys and one for values, each bound as past *and* as present.

    A GroupQueryAttention node that finds the same address in both appends its new rows and copies
    nothing. Rows that no token has filled yet hold whatever the memory held.

    Attributes:
        nbytes: Bytes of all buffers.
        buffers: By ``N.key`` and ``N.value``, each an OrtValue [B, K, C, cache width] on the
            device.
    """

    def __init__(self, model: DecoderModel, batch_size: int, capacity: int) -> None:
        """Allocates the buffers on the model's device.

        Args:
            model: Says how many layers, heads and elements.
            batch_size: Rows B.
            capacity: Tokens C that each row can hold.

        Raises:
            LeanAttentionError: The buffers would not fit into the memory that is available.
        """
        self.nbytes = cache_bytes(model, batch_size, capacity)
        self._model = model
        self._shape = [
            batch_size,
            model.kv_num_heads,
            max(capacity, model.window_rows),
            model.cache_width,
        ]
        if model.device == "cpu" and self.nbytes > (available := available_bytes()):
            raise LeanAttentionError(
                f"the KV cache of {batch_size} x {capacity} tokens needs {self.nbytes:,} bytes, "
                f"only {available:,} are available; ask for fewer tokens or prompts"
            )
        try:
            self.buffers = {
                f"{layer}.{part}": onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                    self._shape, model.cache_dtype.type, model.device, 0
                )
                for layer in range(model.num_layers)
                for part in ("key", "value")
            }
        except Exception as error:  # ONNX Runtime's allocators raise several unrelated types
            raise LeanAttentionError(
                f"{model.device} cannot allocate {self.nbytes:,} bytes of KV cache for "
                f"{batch_size} x {capacity} tokens; ask for fewer tokens or prompts"
            ) from error

    def bind(self, binding: onnxruntime.IOBinding, row: int | None = None) -> None:
        """Binds the buffers as inputs and outputs.

        Args:
            binding: Of the model's session.
            row: Only this row of the batch, as a batch of one; None binds the whole batch.

        Raises:
            LeanAttentionError: The model does not take buffers of this shape.
        """
        dtype = self._model.cache_dtype.type
        shape = self._shape if row is None else [1, *self._shape[1:]]
        offset = (row or 0) * int(np.prod(self._shape[1:])) * self._model.cache_dtype.itemsize
        for name, buffer in self.buffers.items():
            pointer = buffer.data_ptr() + offset
            target = (self._model.device, 0, dtype, shape, pointer)
            try:
                binding.bind_input(f"past_key_values.{name}", *target)
                binding.bind_output(f"present.{name}", *target)
            except Exception as error:  # ONNX Runtime raises several unrelated types
                raise LeanAttentionError(
                    f"{self._model.path} takes no cache of the shape {shape}: {first_line(error)}"
                ) from error

    def randomise(self, seed: int) -> None:
        """Fills every row with noise, to measure a context without computing a prompt.

        Args:
            seed: Of the noise. All layers hold the same, which no operator's speed depends on.
        """
        generator, dtype = np.random.default_rng(seed), self._model.cache_dtype
        if dtype.kind == "f":
            noise = generator.standard_normal(self._shape, np.float32).astype(dtype, copy=False)
        else:
            noise = np.frombuffer(generator.bytes(math.prod(self._shape)), dtype)
            noise = noise.reshape(self._shape)
        for buffer in self.buffers.values():
            buffer.update_inplace(noise)
