"""A second linear quantizer: one group at a time in numpy float32, messages taken apart by hand.

It shares only the generator of random words with the package.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

F32 = np.float32
Vector = np.ndarray[Any, Any]

SMALLEST = F32(2.0**-100)


def transformed(block: Vector) -> Vector:
    """32 values times √32 times the orthogonal Hadamard matrix, by the stages of SDP4Bit's transform."""
    values = block.copy()
    for stage in range(5):
        for first in range(32):
            if not first >> stage & 1:
                a, b = values[first], values[first + (1 << stage)]
                values[first], values[first + (1 << stage)] = a + b, a - b
    return values


def bf16_up(value: Any) -> Any:
    """The smallest bfloat16 number ≥ a positive one, infinity beyond the largest."""
    mantissa, exponent = math.frexp(float(value))
    rounded = math.ceil(mantissa * 256) / 256
    return F32(math.inf) if exponent + (rounded == 1) > 128 else F32(math.ldexp(rounded, exponent))


def encode(
    x: Vector, bits: int, group: int, scales: str, hadamard: bool, noise: Vector | None
) -> tuple[Vector, Vector]:
    """Scales and codes of all groups, float32 and int, the codes up to whole blocks of 32."""
    peak, norm = F32(2 ** (bits - 1) - 1), F32(1 / math.sqrt(32))
    padded = np.zeros(-(-len(x) // group) * group, dtype=F32)
    padded[: len(x)] = x
    all_scales, codes = [], np.zeros(len(padded), dtype=np.int64)
    for start in range(0, len(padded), group):
        values = padded[start : start + group]
        if hadamard:
            values = np.concatenate([transformed(block) for block in values.reshape(-1, 32)])
        maximum = np.abs(values).max()
        scale = max(maximum * norm if hadamard else maximum, SMALLEST)
        if np.isfinite(scale) and scales == "bfloat16":
            scale = bf16_up(scale)
        if not np.isfinite(scale) or not np.isfinite(values).all():
            all_scales.append(F32(math.nan))
            continue
        all_scales.append(scale)
        factor = peak / scale
        if hadamard:
            factor *= norm
        for i, value in enumerate(values):
            if noise is None:
                codes[start + i] = int(np.rint(value * factor))
            else:
                fine = int(np.rint(value * (factor * F32(2**14))))
                codes[start + i] = (4 * fine + int(noise[start + i])) // 2**16
    return np.array(all_scales, dtype=F32), codes[: -(-len(x) // 32) * 32]


def decode(scales: Vector, codes: Vector, bits: int, group: int, hadamard: bool, numel: int) -> Vector:
    """(numel,) float32."""
    peak = 2 ** (bits - 1) - 1
    inverse = F32(1 / (peak * math.sqrt(32)) if hadamard else 1 / peak)
    values = np.empty(len(codes), dtype=F32)
    for start in range(0, len(codes), 32):
        block = codes[start : start + 32].astype(F32)
        values[start : start + 32] = (transformed(block) if hadamard else block) * (
            scales[start // group] * inverse
        )
    return values[:numel]


def message(scales: Vector, codes: Vector, bits: int, dtype: str) -> bytes:
    """The bytes of a message."""
    patterns = scales.view(np.uint32).copy()
    patterns[np.isnan(scales)] = 0x7FC0_0000
    head = patterns.tobytes() if dtype == "float32" else (patterns >> 16).astype(np.uint16).tobytes()
    head += bytes(-len(head) % 16)
    if bits == 8:
        return head + codes.astype(np.int8).tobytes()
    nibbles = (codes % 16).astype(np.uint8)
    return head + (nibbles[0::2] | nibbles[1::2] << 4).tobytes()


def dithers(bits_of: Any, key: tuple[int, int], rank: int, first: int, numel: int) -> Vector:
    """16 random bits for each coordinate from `first` on; `bits_of` is Philox: four words of a counter."""
    halves = []
    for counter in range(first // 8, -(-(first + numel) // 8)):
        for word in bits_of((counter, rank, 0, 0), key):
            halves += [word & 0xFFFF, word >> 16]
    return np.array(halves[:numel], dtype=np.int64)
