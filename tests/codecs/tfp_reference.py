"""A second TFP: formats as sorted lists of numbers, values rounded one at a time with exact fractions."""

from __future__ import annotations

import functools
from bisect import bisect_right
from fractions import Fraction

import ml_dtypes
import numpy as np
from mxfp_reference import bf16_up
from slice_rounds import Vector, random_word

F32 = np.float32
BASE = {2: "e2m1", 3: "e2m1", 4: "e2m1", 5: "e4m3", 6: "e4m3", 7: "fp16", 8: "fp16", 9: "fp16"}
SMALLEST_NORMAL = {"e2m1": 1.0, "e4m3": 2.0**-6, "fp16": 2.0**-14}


@functools.lru_cache(maxsize=32)
def magnitudes(bits: int) -> Vector:
    """Ascending, finite, float64; of up to 16 bits."""
    codes = np.arange(1 << (bits - 1))
    if bits >= 10:
        values = (codes << (32 - bits)).astype(np.uint32).view(np.float32)
    elif bits >= 7:
        values = (codes << (16 - bits)).astype(np.uint16).view(np.float16)
    elif bits >= 5:
        values = (codes << (8 - bits)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    else:
        values = (codes << (4 - bits)).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    found: Vector = wide[np.isfinite(wide)]
    return found


def neighbours(magnitude: float, bits: int) -> tuple[float, float]:
    """T_low and T_up; both the largest value where the format has none above."""
    values = magnitudes(bits)
    low = bisect_right(values.tolist(), magnitude) - 1
    return float(values[low]), float(values[min(low + 1, len(values) - 1)])


def rounded_up(magnitude: float, bits: int, word: int) -> float:
    """T_up if a random integer and the part of the way to it add up to the whole way, T_low otherwise.

    The way has as many steps as fit into the bits that are dropped of a float32, or of the smallest normal
    number where steps are not those of float32.
    """
    low, up = neighbours(magnitude, bits)
    if low == up:
        return low
    base = BASE.get(bits)
    step = Fraction(2) ** -23 * Fraction(SMALLEST_NORMAL[base]) if base else Fraction(2) ** -149
    if low >= (SMALLEST_NORMAL[base] if base else 2.0**-126):
        step = Fraction(float(np.spacing(F32(low))))
    steps = int((Fraction(up) - Fraction(low)) / step)
    done = int((Fraction(magnitude) - Fraction(low)) / step)
    return up if done + word * steps // 2**32 >= steps else low


def block_scale(block: Vector, bits: int, up: bool) -> np.float32:
    """bf16, as float32: the largest magnitude over the format's maximum."""
    quotient = F32(np.abs(block).max() / F32(magnitudes(bits)[-1]))
    if quotient == 0:
        return F32(0)
    return F32(bf16_up(float(quotient)) if up else -_bf16_up_of_negative(float(quotient)))


def _bf16_up_of_negative(value: float) -> float:
    """−value rounded up, that is, value rounded down."""
    return -float(np.array(np.array(value, F32).view(np.uint32) & 0xFFFF_0000, np.uint32).view(F32))


def encoded(values: Vector, first: int, rank: int, bits: int, stochastic: bool, scaled: bool) -> Vector:
    """One encoding and decoding of normal float32 values."""
    decoded = np.empty_like(values)
    for start in range(0, len(values), 32):
        own = values[start : start + 32]
        scale = block_scale(own, bits, stochastic) if scaled else F32(1)
        for i, x in enumerate(own):
            magnitude = float(F32(abs(x) / (scale or F32(1))))
            if stochastic:
                magnitude = rounded_up(magnitude, bits, random_word(first + start + i, rank))
            else:
                magnitude = neighbours(magnitude, bits)[0]
            decoded[start + i] = np.copysign(F32(magnitude) * scale, x)
    return decoded
