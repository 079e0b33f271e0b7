"""A second implementation of distinct values and of the choice among codebooks, on scalars."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from dynamiq_reference import SMALLEST, Floats, Table, bits_of, f32, float_of, fold
from dynamiq_switches_reference import SwitchedReference

EPSILONS = {2: 0.5, 3: 0.4, 4: 0.25, 5: 0.15, 6: 0.1, 8: 0.06}
"""Non-uniformity by width."""
SPREAD = 1.2


@functools.cache
def powers(epsilon: float, width: int) -> tuple[float, ...]:
    """1, a, …, a^P."""
    a = 1 + round(2 * epsilon * epsilon * 2**22) / 2**22
    found = [1.0]
    while len(found) <= 1 << (width - 1):
        found.append(found[-1] * a)
    return tuple(found)


@functools.cache
def levels(epsilon: float, width: int, negative: bool) -> tuple[float, ...]:
    """The levels of one side, from 0 to 1, float64."""
    side = powers(epsilon, width)[: (1 << (width - 1)) + 1 - negative]
    return tuple((power - 1) / (side[-1] - 1) for power in side)


@functools.cache
def errors_at_points(epsilon: float, width: int, negative: bool) -> tuple[float, ...]:
    """(v − q)(q′ − v) at 8·2^b + 1 equidistant v from 0 to 1."""
    side, errors, points = levels(epsilon, width, negative), [], 8 << width
    for k in range(points + 1):
        v = k / points
        upper = next(i for i, level in enumerate(side) if level >= v) or 1
        errors.append((v - side[upper - 1]) * (side[upper] - v))
    return tuple(errors)


@functools.cache
def cost_table(epsilon: float, width: int, negative: bool) -> tuple[int, ...]:
    """`errors_at_points` as integers, scaled so that the largest error of all codebooks of the width is
    2047."""
    both = (EPSILONS[width] / SPREAD, EPSILONS[width] * SPREAD)
    largest = max(max(errors_at_points(e, width, side)) for e in both for side in (False, True))
    return tuple(round(error * (2047 / largest)) for error in errors_at_points(epsilon, width, negative))


@functools.cache
def signed_table(epsilon: float, width: int) -> tuple[np.float32, ...]:
    """Value by code: levels of the positive side, the additional one where a negative zero would be, negative
    levels."""
    positive, negative = (levels(epsilon, width, side) for side in (False, True))
    return tuple(f32(v) for v in positive + tuple(-v for v in negative[1:]))


def distinct_code(y: np.float32, shift: np.float32, x: np.float32, epsilon: float, width: int) -> int:
    """The count of the definition: `y` is |x|·(K/max), `shift` the scaled dither with its sign."""
    power, negative = powers(epsilon, width), bool(np.signbit(x))
    if negative:
        y = f32(y * f32((power[-2] - 1) / (power[-1] - 1)))
    t, w = f32(y + f32(1)), f32(f32(1 + (power[1] - 1) / 2) + shift)
    level = sum(bool(t > f32(f32(power[k]) * w)) for k in range((1 << (width - 1)) - negative))
    return level | (1 << (width - 1) if negative and level else 0)


@dataclass
class PlusReference(SwitchedReference):
    """One worker's codec in one round: distinct values, hierarchical scales, 1 or 4 codebooks."""

    codebooks: int = 4

    def epsilon(self, width: int, choice: int) -> float:
        if self.codebooks == 1:
            return EPSILONS[width]
        return EPSILONS[width] * SPREAD if choice >> 1 else EPSILONS[width] / SPREAD

    def table(self, width: int) -> Table:
        return super().table(width) if width in (1, 16) else (0.0, np.empty(0, f32), f32(0), [])

    def choose(self, groups: list[Floats], references: list[np.float32], width: int) -> int:
        """The number of the first codebook with the least error."""
        if self.codebooks == 1 or width in (1, 16):
            return 0
        errors = []
        for choice in range(4):
            by_group = []
            for group, reference in zip(groups, references, strict=True):
                cost = 0
                if reference > 0:
                    inverse = f32(f32(8 << width) / reference)
                    for v in group:
                        point = min(int(np.rint(f32(abs(v) * inverse))), 8 << width)
                        fewer = bool(np.signbit(v)) != bool(choice & 1)
                        cost += cost_table(self.epsilon(width, choice), width, fewer)[point]
                by_group.append(f32(f32(cost) * f32(reference * reference)))
            errors.append(fold(by_group))
        return errors.index(min(errors))

    def plus_code(
        self, x: np.float32, maximum: np.float32, width: int, choice: int, place: int, k: int
    ) -> int:
        """The code of coordinate k of super-group `place`; an odd `choice` mirrors it."""
        if width in (1, 16):
            return self.code(x, maximum, width, place, k)
        epsilon = self.epsilon(width, choice)
        power = powers(epsilon, width)
        value, total = self.dither(place, k)
        shift = f32(f32(value + 0.5 - total / 2) * f32(f32(power[1] - 1) / f32(total)))
        y = f32(abs(x) * f32(f32(power[-1] - 1) / maximum)) if maximum > 0 else f32(0)
        sided = -x if choice & 1 else x
        return distinct_code(y, -shift if np.signbit(x) else shift, sided, epsilon, width)

    def encode(self, x: Floats, width: int, super_group: int) -> tuple[list[int], list[int], int]:
        """Codes, group scales and the marked pattern of the super-group's scale."""
        count, largest = 256 // self.group, np.abs(x).max()
        if not np.isfinite(x).all():
            return [0] * 256, [0] * count, 0x7FC0
        if largest < SMALLEST:
            return [0] * 256, [0] * count, 0
        spare = self.codebooks > 1
        pattern = _rounded_up(largest, spare)
        exponent = int(np.frexp(float_of(pattern << 16))[1]) - 2
        unit, scaled = np.ldexp(float_of(pattern << 16), -exponent), np.ldexp(x, -exponent)
        groups = [scaled[self.group * g : self.group * (g + 1)] for g in range(count)]
        scales = [self.group_scale(f32(np.abs(v).max()), unit, super_group, g) for g, v in enumerate(groups)]
        references = [reference for _, reference in scales]
        choice = self.choose(groups, references, width)
        codes = [
            self.plus_code(v, references[g], width, choice, super_group, self.group * g + i)
            for g, group in enumerate(groups)
            for i, v in enumerate(group)
        ]
        return codes, [scale for scale, _ in scales], pattern | choice >> 1 | (choice & 1) << 15

    def decode(self, codes: list[int], group_scales: list[int], scale: int, width: int) -> Floats:
        """The values of one super-group, (256,) float32."""
        if width in (1, 16):
            return super().decode(codes, group_scales, scale, width)
        choice, spare = 0, self.codebooks > 1
        if spare:
            choice, scale = (scale & 1) << 1 | scale >> 15, scale & ~1
        table = signed_table(self.epsilon(width, choice), width)
        unit = f32(float_of(scale << 16) / f32(255))
        steps = [f32(unit * f32(r)) for r in group_scales]
        return np.array([f32(table[code] * steps[k // self.group]) for k, code in enumerate(codes)], f32)


def _rounded_up(largest: np.float32, spare: bool) -> int:
    """The smallest finite pattern that is not below, with its spare bits 0."""
    bits = 16 + spare
    return min(((bits_of(largest) + (1 << bits) - 1) >> bits) << spare, 0x7F7F >> spare << spare)
