"""A second implementation of DynamiQ with its switches: groups of 16 or 32, bf16 scales, uniform values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dynamiq_reference import (
    EPSILONS,
    SMALLEST,
    Floats,
    Reference,
    Table,
    bits_of,
    f32,
    float_of,
    make_table,
    philox_words,
    worker_order,
)


@dataclass
class SwitchedReference(Reference):
    """One worker's codec in one round."""

    values: str = "nonuniform"
    group: int = 16
    scales: str = "hierarchical"

    def table(self, width: int) -> Table:
        """Equidistant values have no thresholds; the dither and y are scaled by 1 and the largest level."""
        if self.values == "nonuniform" or width in (1, 16):
            return make_table(width, EPSILONS.get(width, 0.0))
        largest = 2 ** (width - 1) - 1
        return 1.0, np.empty(0, f32), f32(largest), [f32(r / largest) for r in range(largest + 1)]

    def dither(self, super_group: int, k: int) -> tuple[int, int]:
        """V and N of one coordinate."""
        independent = self.rounding == "independent"
        stream = self.rank + 1 if independent else 0
        half = philox_words((super_group, stream, k // 8, 0), self.key)[k % 8 // 2] >> 16 * (k % 2) & 0xFFFF
        if independent:
            return half, 1 << 16
        n = self.workers
        value = (half * n + (worker_order(self.key, super_group, n, self.rank) << 16)) % (n << 16)
        return value ^ (self.private_word(super_group, k // self.group) & 0xFFFF), n << 16

    def code(self, x: np.float32, maximum: np.float32, width: int, super_group: int, k: int) -> int:
        """Sign and level of one finite coordinate of a group with the given maximum."""
        if self.values == "nonuniform" or width in (1, 16):
            return super().code(x, maximum, width, super_group, k)
        largest = f32(2 ** (width - 1) - 1)
        value, total = self.dither(super_group, k)
        shift = f32(f32(value + 0.5 - total / 2) * f32(f32(1) / f32(total)))
        y = min(f32(abs(x) * f32(largest / maximum)), largest) if maximum > 0 else f32(0)
        threshold = f32(f32(0.5) + (-shift if np.signbit(x) else shift))
        level = int(y) + bool(f32(y - f32(int(y))) > threshold)
        return level | (int(np.signbit(x)) << (width - 1) if level else 0)

    def encode(self, x: Floats, width: int, super_group: int) -> tuple[list[int], list[int], int]:
        """Codes, group scales (patterns if they are bf16) and the super-group scale's pattern, 0 without."""
        if self.scales == "hierarchical":
            return self.encode_hierarchical(x, width, super_group)
        codes, patterns = [], []
        for g in range(256 // self.group):
            group = x[self.group * g : self.group * (g + 1)]
            pattern = self.bf16_scale(group, super_group, g)
            patterns.append(pattern)
            if pattern in (0, 0x7FC0):
                codes += [0] * self.group
                continue
            exponent = int(np.frexp(float_of(pattern << 16))[1]) - 2
            scaled = np.ldexp(group, -exponent)
            exact = self.scale_rounding == "stochastic"
            reference = f32(np.abs(scaled).max()) if exact else np.ldexp(float_of(pattern << 16), -exponent)
            codes += [
                self.code(v, reference, width, super_group, self.group * g + i) for i, v in enumerate(scaled)
            ]
        return codes, patterns, 0

    def bf16_scale(self, group: Floats, super_group: int, g: int) -> int:
        """Pattern of one group's scale: rounded up, or up as often as the dropped bits say."""
        if not np.isfinite(group).all():
            return 0x7FC0
        largest = np.abs(group).max()
        if largest < SMALLEST:
            return 0
        kept, dropped = divmod(bits_of(largest), 1 << 16)
        if self.scale_rounding == "stochastic":
            noise = self.private_word(super_group, g) >> 16
            return min(kept + (noise >= (1 << 16) - dropped), 0x7F7F)
        return min(kept + (dropped > 0), 0x7F7F)

    def encode_hierarchical(
        self, x: Floats, width: int, super_group: int
    ) -> tuple[list[int], list[int], int]:
        """Encodes as the function above does, with one byte per group and a bf16 per super-group."""
        groups, largest = 256 // self.group, np.abs(x).max()
        if not np.isfinite(x).all():
            return [0] * 256, [0] * groups, 0x7FC0
        if largest < SMALLEST:
            return [0] * 256, [0] * groups, 0
        pattern = min((bits_of(largest) + 0xFFFF) >> 16, 0x7F7F)
        exponent = int(np.frexp(float_of(pattern << 16))[1]) - 2
        unit, scaled = np.ldexp(float_of(pattern << 16), -exponent), np.ldexp(x, -exponent)
        codes, group_scales = [], []
        for g in range(groups):
            group = scaled[self.group * g : self.group * (g + 1)]
            scale, maximum = self.group_scale(f32(np.abs(group).max()), unit, super_group, g)
            group_scales.append(scale)
            codes += [
                self.code(v, maximum, width, super_group, self.group * g + i) for i, v in enumerate(group)
            ]
        return codes, group_scales, pattern

    def decode(self, codes: list[int], group_scales: list[int], scale: int, width: int) -> Floats:
        """The values of one super-group, (256,) float32."""
        values, half = self.table(width)[3], 1 << (width - 1)
        if self.scales == "bf16":
            steps = [float_of(pattern << 16) for pattern in group_scales]
        else:
            unit = f32(float_of(scale << 16) / f32(255))
            steps = [f32(unit * f32(r)) for r in group_scales]
        signed = [-values[code - half] if code >= half else values[code] for code in codes]
        return np.array([f32(value * steps[k // self.group]) for k, value in enumerate(signed)], f32)

    def message(self, rows: Floats, widths: list[int], super_groups: list[int]) -> bytes:
        """A chunk's message; `widths` are descending."""
        packed, group_bytes, scale_bytes = bytearray(), bytearray(), bytearray()
        for x, width, super_group in zip(rows, widths, super_groups, strict=True):
            codes, group_scales, scale = self.encode(x, width, super_group)
            number = sum(code << (k * width) for k, code in enumerate(codes))
            packed += number.to_bytes(32 * width, "little")
            if self.scales == "bf16":
                group_bytes += b"".join(pattern.to_bytes(2, "little") for pattern in group_scales)
            else:
                group_bytes += bytes(group_scales)
                scale_bytes += scale.to_bytes(2, "little")
        return bytes(packed + group_bytes + scale_bytes)


def ring_mean(references: list[SwitchedReference], xs: list[Floats], width: int) -> Floats:
    """The mean along a ring at one width and without means: chunk c holds the super-groups j with
    j mod n = c, starts at rank c + 1 and is sealed by rank c."""
    size, numel = len(xs), len(xs[0])
    total = -(-numel // 256)
    padded = [np.pad(x, (0, 256 * total - numel)).reshape(total, 256) for x in xs]
    result = np.empty((total, 256), f32)
    for j in range(total):
        incoming: Floats | None = None
        for hop in range(size):
            rank = (j + 1 + hop) % size
            rows = padded[rank][j] if incoming is None else padded[rank][j] + incoming
            incoming = references[rank].decode(*references[rank].encode(rows, width, j), width)
        assert incoming is not None
        result[j] = incoming * (f32(1) / f32(size)) + f32(0)
    return result.reshape(-1)[:numel]
