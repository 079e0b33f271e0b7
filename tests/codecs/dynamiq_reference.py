"""DynamiQ's definition once more, on scalars: Python integers and single numpy float32 operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

f32 = np.float32
Floats = npt.NDArray[np.float32]
WORD = 0xFFFFFFFF
SMALLEST, INFINITY = 2.0**-100, float("inf")


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


@dataclass
class Reference:
    """One worker's codec in one round."""

    key: tuple[int, int]
    rank: int
    workers: int
    rounding: str = "correlated"
    epsilon_4: float = 0.25
    epsilon_8: float = 0.06

    def table(self, width: int) -> tuple[float, list[np.float32], np.float32, list[np.float32]]:
        """a − 1, T, K, f(ε, ·)."""
        epsilon = {4: self.epsilon_4, 8: self.epsilon_8}.get(width, 0.0)
        step = 1.0 if width == 2 else round(2 * epsilon * epsilon * 2**22) / 2**22
        powers = [1.0]
        while len(powers) < 1 << (width - 1):
            powers.append(powers[-1] * (1.0 + step))
        span = powers[-1] - 1.0
        return step, [f32(p) for p in powers], f32(span), [f32((p - 1.0) / span) for p in powers]

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
        base = mix32_word(super_group ^ self.key[0]) + self.key[1]
        hashes = [mix32_word((base + j * 0x27D4EB2F) & WORD) >> 8 << 8 | j for j in range(n)]
        order = sorted(hashes).index(hashes[self.rank])
        value = (half * n + (order << 16)) % (n << 16)
        return value ^ (self.private_word(super_group, k // 16) & 0xFFFF), n << 16

    def code(self, x: np.float32, maximum: np.float32, width: int, super_group: int, k: int) -> int:
        """Sign and level of one finite coordinate of a group with the given maximum."""
        step, thresholds, span, _ = self.table(width)
        value, total = self.dither(super_group, k)
        shift = f32(f32(value + 0.5 - total / 2) * f32(f32(step) / f32(total)))
        w = f32(f32(1 + step / 2) + (-shift if np.signbit(x) else shift))
        t = f32(f32(abs(x) * f32(span / maximum)) + f32(1)) if maximum > 0 else f32(1)
        level = sum(bool(t > f32(threshold * w)) for threshold in thresholds[:-1])
        return level | (int(np.signbit(x)) << (width - 1) if level else 0)

    def encode(self, x: Floats, width: int, super_group: int) -> tuple[list[int], list[int], int]:
        """Codes, group scales and the scale's bit pattern of one super-group."""
        groups = np.abs(x).reshape(16, 16)
        largest = groups.max()
        if not np.isfinite(x).all():
            return [0] * 256, [0] * 16, 0x7FC0
        if largest < SMALLEST:
            return [0] * 256, [0] * 16, 0
        scale = min((bits_of(largest) + 0xFFFF) >> 16, 0x7F7F)
        codes, group_scales = [], []
        for g in range(16):
            maximum = f32(groups[g].max())
            quotient = f32(maximum * f32(f32(255) / float_of(scale << 16)))
            noise = self.private_word(super_group, g) >> 16
            up = (noise + 0.5) / 65536 < float(quotient) - int(quotient)
            group_scales.append(min(int(quotient) + up, 255))
            # Too small for its scale ever to be rounded up to 1: sent as zeros.
            kept = (
                maximum if maximum >= 2.0**-26 * 2.0 ** (np.frexp(float_of(scale << 16))[1] - 2.0) else f32(0)
            )
            codes += [self.code(x[16 * g + i], kept, width, super_group, 16 * g + i) for i in range(16)]
        return codes, group_scales, scale

    def decode(self, codes: list[int], group_scales: list[int], scale: int, width: int) -> Floats:
        """The values of one super-group, (256,) float32."""
        values, half = self.table(width)[3], 1 << (width - 1)
        unit = f32(float_of(scale << 16) / f32(255))
        steps = [f32(unit * f32(r)) for r in group_scales]
        return np.array(
            [
                f32((-values[c - half] if c >= half else values[c]) * steps[k // 16])
                for k, c in enumerate(codes)
            ],
            f32,
        )

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
    """Halves added until one value is left."""
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
