"""One decode step: its tensors, checked, as the C functions take them."""

import ctypes
from dataclasses import dataclass
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.gpu.c_functions import CStep, fill, flag, integer, real
from lean_attention.gpu.tensors import DeviceTensor, Tensor, view

__all__ = ["Step"]

# enum lean_attention_type.
_TYPES = {"float16": 1, "bfloat16": 2}
_QUANTISED_TYPES = {"int8": 3, "float8_e4m3fn": 5}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A decode step over tensors in device memory.

    Shapes: B sequences, S new tokens, N query heads, K KV heads (N a multiple), H head size (64,
    80, 96, 128 or 256), C rows of cache. Tensors are of one type, float16 or bfloat16, and
    contiguous, unless said otherwise; all are on one device, the caches aligned to 16 bytes. What
    is written (caches and output) may overlap no other tensor. bfloat16 and float8_e4m3fn come
    through PyTorch only. Nothing is recorded for differentiation.

    Attributes:
        query: [B, S, N, H], not rotated. Its tokens, and those of key and value, may lie further
            apart, as they do in a packed [B, S, (N + 2 K) H].
        key: [B, S, K, H], not rotated. None, as value: the caches hold the step's rows already, as
            in layers that share them.
        value: [B, S, K, H].
        key_cache: [B, K, C, H] past and present, changed in place: of the query's type, int8 or
            float8_e4m3fn.
        value_cache: As key_cache.
        seqlens_k: [B] int32, valid rows of each sequence after this step, less one. They are read
            on the device, and bounded there to [0, max_length - 1].
        query_seqlens: [B] int32, query tokens of each sequence, which lie before its padding; the
            padding's output is zero. They are read on the device, and bounded there to what S and
            the sequence's length allow. None: all S, or as many as the sequence is long.
        max_length: What the host knows of the lengths: none is above it. None: C.
        k_scale: Of a quantised cache, what its numbers are multiplied by: [K, H] or [1] float32.
        v_scale: As k_scale.
        q_norm_weight: [H], of the RMS norm of each query head before it is rotated; None: no norm.
        k_norm_weight: As q_norm_weight, of keys.
        q_norm_epsilon: Added to the mean square.
        k_norm_epsilon: As q_norm_epsilon.
        cos_cache: [positions, at most H / 2]; None: no rotary embedding.
        sin_cache: As cos_cache.
        rotary_interleaved: Whether pairs are neighbours instead of halves.
        position_ids: [B, S] int64, of the rotary embedding; None: the tokens' own positions.
        local_window_size: Keys that a query sees, its own included; -1: all.
        attention_bias: [B or 1, N or 1, S, at least max_length], added to the scores; sequences,
            heads and tokens may lie further apart.
        head_sink: [N] scores that join the softmax's denominator.
        smooth_softmax: Without head_sink: a sink of 0 for every head.
        scale: Of the scores; None: 1 / sqrt(H).
        softcap: 0, or the bound of cap * tanh(score / cap).
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    key_cache: Tensor
    value_cache: Tensor
    seqlens_k: Tensor
    query_seqlens: Tensor | None = None
    max_length: int | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    q_norm_weight: Tensor | None = None
    k_norm_weight: Tensor | None = None
    q_norm_epsilon: float = 1e-6
    k_norm_epsilon: float = 1e-6
    cos_cache: Tensor | None = None
    sin_cache: Tensor | None = None
    rotary_interleaved: bool = False
    position_ids: Tensor | None = None
    local_window_size: int = -1
    attention_bias: Tensor | None = None
    head_sink: Tensor | None = None
    smooth_softmax: bool = False
    scale: float | None = None
    softcap: float = 0.0

    def c_step(self, output: Tensor | None = None) -> CStep:
        """Describes the step after checking what the C functions cannot see.

        Args:
            output: [B, S, N, H], where the result goes; None: nowhere yet, and the query stands for
                it, which is of that shape and type.

        Returns:
            The structure; valid as long as the tensors are.

        Raises:
            LeanAttentionError: A shape, type or device is not what it should be.
        """
        return _Description(self).describe(output)


class _Description:
    """The views of a step's tensors, and what follows from them."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.query, self.key_cache = self._view("query", 4), self._view("key_cache", 4)
        self.batch, self.tokens, self.heads, self.head_size = self.query.shape
        _, self.kv_heads, self.rows, _ = self.key_cache.shape
        self.dtype, self.cache_dtype = self.query.dtype, self.key_cache.dtype
        if self.dtype not in _TYPES or self.cache_dtype not in {self.dtype, *_QUANTISED_TYPES}:
            raise LeanAttentionError(
                f"query is {self.dtype} and key_cache {self.cache_dtype}; queries must be float16 "
                "or bfloat16, and caches the same, int8 or float8_e4m3fn"
            )
        max_length = self.rows if step.max_length is None else step.max_length
        self.max_length = integer("max_length", max_length, ctypes.c_int64)

    def _view(self, name: str, dimensions: int) -> DeviceTensor:
        found = view(name, getattr(self.step, name))
        if len(found.shape) != dimensions:
            raise LeanAttentionError(f"{found}; expected {dimensions} dimensions")
        return found

    def _check(self, found: DeviceTensor, dtype: str, *shape: int) -> None:
        if found.dtype != dtype or found.shape != shape or found.device != self.query.device:
            raise LeanAttentionError(f"{found}; expected {dtype} {shape} on {self.query.device}")

    def _pointer(self, name: str, dtype: str, *shape: int) -> int | None:
        """Returns the address of a contiguous tensor; None where there is none."""
        tensor = getattr(self.step, name)
        return None if tensor is None else self._contiguous(view(name, tensor), dtype, *shape)

    def _contiguous(
        self, found: DeviceTensor, dtype: str, *shape: int, changed: bool = False
    ) -> int:
        self._check(found, dtype, *shape)
        if not found.is_contiguous():
            raise LeanAttentionError(f"{found}; it must be contiguous")
        if changed and found.is_readonly:
            raise LeanAttentionError(f"{found.name} is read-only, and the step writes to it")
        return found.pointer

    def _token_stride(self, found: DeviceTensor) -> int:
        """Returns the elements between tokens, which are counted through all sequences."""
        batch, tokens, heads, size = found.shape
        if found.is_contiguous(2):
            if batch == tokens == 1:
                return heads * size
            stride = found.strides[1] if tokens > 1 else found.strides[0]
            if batch == 1 or found.strides[0] == tokens * stride:
                return stride
        raise LeanAttentionError(
            f"{found}; each token must be contiguous, and all tokens equally far apart"
        )

    def _inputs(self) -> dict[str, Any]:
        self._check(self.query, self.dtype, self.batch, self.tokens, self.heads, self.head_size)
        return {
            "query": self.query.pointer,
            "query_stride": self._token_stride(self.query),
            **self._key_and_value(),
            "seqlens_k": self._contiguous(self._view("seqlens_k", 1), "int32", self.batch),
            "query_seqlens": self._pointer("query_seqlens", "int32", self.batch),
        }

    def _key_and_value(self) -> dict[str, Any]:
        shape = (self.batch, self.tokens, self.kv_heads, self.head_size)
        if self.step.key is None and self.step.value is None:
            return {"key": None, "value": None, "kv_stride": self.kv_heads * self.head_size}
        key, value = self._view("key", 4), self._view("value", 4)
        for found in (key, value):
            self._check(found, self.dtype, *shape)
        stride = self._token_stride(key)
        if self._token_stride(value) != stride:
            raise LeanAttentionError(f"{value}; its tokens must be as far apart as the key's")
        return {"key": key.pointer, "value": value.pointer, "kv_stride": stride}

    def _caches(self) -> dict[str, Any]:
        step = self.step
        shape = (self.batch, self.kv_heads, self.rows, self.head_size)
        is_quantised = self.cache_dtype in _QUANTISED_TYPES
        if not is_quantised and (step.k_scale is not None or step.v_scale is not None):
            raise LeanAttentionError(
                f"k_scale and v_scale are for caches of int8 and float8_e4m3fn, not {self.dtype}"
            )
        per_channel = step.k_scale is not None and len(view("k_scale", step.k_scale).shape) == 2
        scale_shape = (self.kv_heads, self.head_size) if per_channel else (1,)
        return {
            "key_cache": self._contiguous(self.key_cache, self.cache_dtype, *shape, changed=True),
            "value_cache": self._contiguous(
                self._view("value_cache", 4), self.cache_dtype, *shape, changed=True
            ),
            "k_scale": self._pointer("k_scale", "float32", *scale_shape),
            "v_scale": self._pointer("v_scale", "float32", *scale_shape),
            "scale_per_channel": per_channel,
        }

    def _norms(self) -> dict[str, Any]:
        return {
            "q_norm_weight": self._pointer("q_norm_weight", self.dtype, self.head_size),
            "k_norm_weight": self._pointer("k_norm_weight", self.dtype, self.head_size),
            "q_norm_epsilon": self.step.q_norm_epsilon,
            "k_norm_epsilon": self.step.k_norm_epsilon,
        }

    def _rotary(self) -> dict[str, Any]:
        positions, half = 0, 0
        if self.step.cos_cache is not None:
            positions, half = self._view("cos_cache", 2).shape
        return {
            "cos_cache": self._pointer("cos_cache", self.dtype, positions, half),
            "sin_cache": self._pointer("sin_cache", self.dtype, positions, half),
            "rotary_rows": positions,
            "rotary_half": half,
            "rotary_interleaved": flag("rotary_interleaved", self.step.rotary_interleaved),
            "position_ids": self._pointer("position_ids", "int64", self.batch, self.tokens),
        }

    def _bias(self) -> dict[str, Any]:
        if self.step.attention_bias is None:
            return {"attention_bias": None}
        found = self._view("attention_bias", 4)
        batch, heads, _, columns = found.shape
        self._check(
            found,
            self.dtype,
            batch if batch == 1 else self.batch,
            heads if heads == 1 else self.heads,
            self.tokens,
            max(columns, self.max_length),
        )
        if columns > 1 and found.strides[3] != 1:
            raise LeanAttentionError(f"{found}; its rows must be contiguous")
        return {
            "attention_bias": found.pointer,
            "bias_batch_stride": found.strides[0] if batch > 1 else 0,
            "bias_head_stride": found.strides[1] if heads > 1 else 0,
            "bias_row_stride": found.strides[2] if self.tokens > 1 else columns,
        }

    def describe(self, output: Tensor | None) -> CStep:
        """Returns the structure."""
        step = self.step
        shape = (self.batch, self.tokens, self.heads, self.head_size)
        output_pointer = self.query.pointer
        if output is not None:
            output_pointer = self._contiguous(
                view("output", output), self.dtype, *shape, changed=True
            )
        return fill(
            CStep(),
            type=_TYPES[self.dtype],
            cache_type={**_TYPES, **_QUANTISED_TYPES}[self.cache_dtype],
            batch_size=self.batch,
            sequence_length=self.tokens,
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            head_size=self.head_size,
            cache_rows=self.rows,
            local_window_size=integer("local_window_size", step.local_window_size, ctypes.c_int64),
            max_length=self.max_length,
            **self._inputs(),
            **self._caches(),
            **self._norms(),
            **self._rotary(),
            **self._bias(),
            head_sink=self._pointer("head_sink", self.dtype, self.heads),
            smooth_softmax=flag("smooth_softmax", step.smooth_softmax),
            scale=self.head_size**-0.5 if step.scale is None else step.scale,
            softcap=real("softcap", step.softcap),
            output=output_pointer,
        )
