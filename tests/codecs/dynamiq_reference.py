"""A second implementation of DynamiQ, on scalars: Python integers and single numpy float32 operations."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

f32 = np.float32
Floats = npt.NDArray[np.float32]
WORD = 0xFFFFFFFF
EPSILONS = {3: 0.4, 4: 0.25, 5: 0.15, 6: 0.1, 8: 0.06}
"""Non-uniformity by width."""
SMALLEST, INFINITY = 2.0**-100, float("inf")


@functools.lru_cache(maxsize=64)
def philox_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], rounds: int = 7
) -> tuple[int, ...]:
    """Philox4x32 of one counter."""
    x, y, z, w = counter
    k0, k1 = key
    for _ in range(rounds):
        p, q = x * 0xD2511F53, z * 0xCD9E8D57
        x, y, z, w = (q >> 32) ^ y ^ k0, q & WORD, (p >> 32) ^ w ^ k1, p & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return x, y, z, w


def mix32_word(x: int) -> int:
    """lowbias32 of one word."""
    x ^= x >> 16
    x = x * 0x7FEB352D & WORD
    x ^= x >> 15
    x = x * 0x846CA68B & WORD
    return x ^ (x >> 16)


def bits_of(x: float) -> int:
    """The bit pattern of a float32."""
    return int(np.array(x, f32).view(np.uint32))


def float_of(bits: int) -> np.float32:
    """The float32 of a bit pattern."""
    return f32(np.array(bits, np.uint32).view(f32))


def nearest_bf16(x: float) -> int:
    """Bit pattern of the bf16 nearest to a finite x, ties to even."""
    bits = bits_of(x)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@functools.lru_cache(maxsize=64)
def worker_order(key: tuple[int, int], super_group: int, workers: int, rank: int) -> int:
    """σ: the rank's place among the workers' hashes for a super-group."""
    base = mix32_word(super_group ^ key[0]) + key[1]
    hashes = [mix32_word((base + j * 0x27D4EB2F) & WORD) >> 8 << 8 | j for j in range(workers)]
    return sorted(hashes).index(hashes[rank])


Table = tuple[float, Floats, np.float32, list[np.float32]]
"""a − 1, T, K, f(ε, ·); at 1 and 16 bits, without T, what the dither and y are scaled by instead."""


@functools.cache
def make_table(width: int, epsilon: float) -> Table:
    """The tables of `width` at non-uniformity ε."""
    if width == 1:
        return 2.0, np.empty(0, f32), f32(1), [f32(1)]
    if width == 16:
        return 1.0, np.empty(0, f32), f32(32767), [f32(r / 32767) for r in range(32768)]
    step = 1.0 if width == 2 else round(2 * epsilon * epsilon * 2**22) / 2**22
    powers = [1.0]
    while len(powers) < 1 << (width - 1):
        powers.append(powers[-1] * (1.0 + step))
    span = powers[-1] - 1.0
    return step, np.array(powers, f32), f32(span), [f32((p - 1.0) / span) for p in powers]


@dataclass
class Reference:
    """One worker's codec in one round."""

    key: tuple[int, int]
    rank: int
    workers: int
    rounding: str = "correlated"
    scale_rounding: str = "stochastic"

    def table(self, width: int) -> Table:
        """The tables of one width."""
        return make_table(width, EPSILONS.get(width, 0.0))

    def private_word(self, super_group: int, group: int) -> int:
        inner = mix32_word(super_group ^ self.key[1]) + self.key[0]
        return mix32_word((inner + (self.rank + 1) * 0x85EBCA6B + group * 0xC2B2AE35) & WORD)

    def dither(self, super_group: int, k: int) -> tuple[int, int]:
        """V and N of one coordinate."""
        independent = self.rounding == "independent"
        counter = (super_group, self.rank + 1 if independent else 0, k // 8, 0)
        half = philox_words(counter, self.key)[k % 8 // 2] >> 16 * (k % 2) & 0xFFFF
        if independent:
            return half, 1 << 16
        n = self.workers
        value = (half * n + (worker_order(self.key, super_group, n, self.rank) << 16)) % (n << 16)
        return value ^ (self.private_word(super_group, k // 16) & 0xFFFF), n << 16

    def code(self, x: np.float32, maximum: np.float32, width: int, super_group: int, k: int) -> int:
        """Sign and level of one finite coordinate of a group with the given maximum."""
        step, thresholds, span, _ = self.table(width)
        value, total = self.dither(super_group, k)
        shift = f32(f32(value + 0.5 - total / 2) * f32(f32(step) / f32(total)))
        shift = -shift if np.signbit(x) else shift
        y = f32(abs(x) * f32(span / maximum)) if maximum > 0 else f32(0)
        if width == 1:
            return int(maximum > 0 and bool(y > shift) == bool(np.signbit(x)))
        if width == 16:
            y = min(y, span)
            level = int(y) + bool(f32(y - int(y)) > f32(f32(0.5) + shift))
        else:
            t, w = f32(y + f32(1)), f32(f32(1 + step / 2) + shift)
            level = int((t > thresholds[:-1] * w).sum())
        return level | (int(np.signbit(x)) << (width - 1) if level else 0)

    def encode(self, x: Floats, width: int, super_group: int) -> tuple[list[int], list[int], int]:
        """Codes, group scales and the scale's bit pattern of one super-group."""
        largest = np.abs(x).max()
        if not np.isfinite(x).all():
            return [0] * 256, [0] * 16, 0x7FC0
        if largest < SMALLEST:
            return [0] * 256, [0] * 16, 0
        scale = min((bits_of(largest) + 0xFFFF) >> 16, 0x7F7F)
        # Scaled exactly by a power of two, so that the scale lies in [2, 4).
        exponent = int(np.frexp(float_of(scale << 16))[1]) - 2
        unit, scaled = np.ldexp(float_of(scale << 16), -exponent), np.ldexp(x, -exponent)
        codes, group_scales = [], []
        for g in range(16):
            group = scaled[16 * g : 16 * g + 16]
            group_scale, maximum = self.group_scale(f32(np.abs(group).max()), unit, super_group, g)
            group_scales.append(group_scale)
            codes += [self.code(v, maximum, width, super_group, 16 * g + i) for i, v in enumerate(group)]
        return codes, group_scales, scale

    def group_scale(
        self, maximum: np.float32, scale: np.float32, super_group: int, group: int
    ) -> tuple[int, np.float32]:
        """r_G and the magnitude that the group's values are normalised by; 0 where it is sent as zeros."""
        if maximum < 2.0**-26:  # too small for its scale ever to be rounded up to 1
            return 0, f32(0)
        quotient = f32(maximum * f32(f32(255) / scale))
        fraction = float(quotient) - int(quotient)
        if self.scale_rounding == "ceil":
            rounded = min(int(quotient) + (fraction > 0), 255)
            return rounded, f32(f32(rounded) * f32(scale / f32(255)))
        noise = self.private_word(super_group, group) >> 16
        return min(int(quotient) + ((noise + 0.5) / 65536 < fraction), 255), maximum

    def decode(self, codes: list[int], group_scales: list[int], scale: int, width: int) -> Floats:
        """The values of one super-group, (256,) float32."""
        values, half = self.table(width)[3], 1 << (width - 1)
        unit = f32(float_of(scale << 16) / f32(255))
        steps = [f32(unit * f32(r)) for r in group_scales]
        signed = [-values[code - half] if code >= half else values[code] for code in codes]
        return np.array([f32(value * steps[k // 16]) for k, value in enumerate(signed)], f32)

    def message(self, rows: Floats, widths: list[int], super_groups: list[int]) -> bytes:
        """A chunk's message; `widths` are descending."""
        packed, group_bytes, scale_bytes = bytearray(), bytearray(), bytearray()
        for x, width, super_group in zip(rows, widths, super_groups, strict=True):
            codes, group_scales, scale = self.encode(x, width, super_group)
            number = sum(code << (k * width) for k, code in enumerate(codes))
            packed += number.to_bytes(32 * width, "little")
            group_bytes += bytes(group_scales)
            scale_bytes += scale.to_bytes(2, "little")
        return bytes(packed + group_bytes + scale_bytes)


def fold(values: list[np.float32]) -> np.float32:
    """Adds halves until one value is left."""
    while len(values) > 1:
        half = len(values) // 2
        values = [f32(values[k] + values[k + half]) for k in range(half)]
    return values[0]


def statistics(x: Floats) -> tuple[int, int]:
    """bf16 patterns of the mean and the norm (both over 2⁸) of up to 256 finite coordinates."""
    padded = list(x) + [f32(0)] * (256 - len(x))
    exponent = max(int(np.frexp(np.abs(x).max())[1]) - 2, -101)
    scaled = [f32(np.ldexp(v, -exponent)) for v in padded]
    back = f32(np.ldexp(1.0, exponent - 8))
    mean = f32(f32(fold(scaled) / f32(len(x))) * back)
    norm = f32(np.sqrt(fold([f32(v * v) for v in scaled])) * back)
    return nearest_bf16(mean), nearest_bf16(norm)
