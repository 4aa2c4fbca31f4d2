"""Measurements that can be trusted: several models side by side, interleaved."""

from lean_attention.bench.decode import DecodeTimes, time_decode

__all__ = ["DecodeTimes", "time_decode"]
