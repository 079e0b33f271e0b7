"""The quantization values of one width, and the rounding between them (DynamiQ §3.3).

A coordinate x of a group with maximum max|G| becomes y = |x|·(span/max|G|), in [0, span], and its dither w =
centre ± d·(step/N) (d: centred dither, see `rounding`; minus where x < 0); every operation is rounded to
float32 once. The four kinds of values below derive the code from y and w in different ways. Since w is affine
in the dither, each is an unbiased rounding of x; since the dither is mirrored for negative x, rounding up
means towards +∞ of the signed value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.options.dynamiq import ValueKind

Parameter = float | Tensor
"""A number for all rows, or one for each of them, (rows, 1) float32."""


def as_tensor(parameter: Parameter, like: Tensor) -> Tensor:
    """A parameter as float32 on the device of `like`."""
    return parameter if isinstance(parameter, Tensor) else constant(parameter, like)


@dataclass(frozen=True)
class Values(ABC):
    """The values of one width; `decoded`, (2^width,) float32, holds them by code."""

    width: int
    span: Parameter
    centre: Parameter
    step: Parameter
    decoded: Tensor

    @abstractmethod
    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        """Codes, int32, of (rows, 256) float32 coordinates.

        Only the sign of `x` is used; `y` is 0 in groups that are sent as zeros.
        """


def signed_codes(level: Tensor, x: Tensor, width: int) -> Tensor:
    """Levels (int32) with the signs of `x` (float32) as codes; there is no negative zero."""
    return torch.where(x.signbit() & (level > 0), level + (1 << (width - 1)), level)


@lru_cache(maxsize=64)
def values_of(width: int, kind: ValueKind, epsilon: float, device: torch.device, group: int = 16) -> Values:
    """The values of one of `WIDTHS`: `nonuniform` (DynamiQ §3.3), their limit `uniform`, or `distinct`.

    ε is their non-uniformity; it has no effect on uniform values, nor on nonuniform ones of 2 bits. At 1 bit
    only the sign of a coordinate is sent, for groups of `group`; at 16 bits values are always uniform.
    """
    if width == 1:
        return sign_values(device, group)
    if kind == "uniform" or width == 16:
        return uniform_values(device, width)
    if kind == "distinct":
        return distinct_values(width, epsilon, device)
    return geometric_values(width, epsilon, device)


@dataclass(frozen=True)
class Sign(Values):
    """One bit: a coordinate is sent as plus (code 0) or minus (code 1) the maximum of its `group`
    coordinates.

    There is no level in between. The result is unbiased because the sign is random: x is sent as +max with
    probability (1 + x/max)/2, so a zero is +max or −max with equal chance. The sign of x is kept iff y > w,
    with y = |x|/max and w = ± d·(2/N) in [−1, 1]. Groups without a non-zero value have code 0 everywhere and
    scale 0: they decode to exact zeros.
    """

    group: int

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        kept = y > w
        minus = x.signbit() == kept
        alive = y.view(-1, self.group).amax(dim=1, keepdim=True) > 0
        return (minus.view(-1, self.group) & alive).view_as(y).to(torch.int32)


def sign_values(device: torch.device, group: int = 16) -> Sign:
    """The values of 1 bit, for groups of `group` coordinates."""
    decoded = torch.tensor([1.0, -1.0], device=device)
    return Sign(width=1, span=1.0, centre=0.0, step=2.0, decoded=decoded, group=group)


@dataclass(frozen=True)
class Uniform(Values):
    """A sign and equidistant levels (DynamiQ §3.3 with ε → 0): level r of R is r/R of the group's maximum.

    r = ⌊y⌋ + (y − ⌊y⌋ > w), y = |x|·(R/max) with R = 2^(b−1) − 1 and w = ½ ± d/N in [0, 1]; the fraction is
    exact in float32, so rounding is as unbiased as y is right, which is to 2⁻²⁴ of the value.

    At 16 bits these are the only values. A geometric progression would be too fine for float32: its
    thresholds lie only some 200 float32 numbers apart, those of a uniform grid 2⁹ at the top and 2²³ at the
    bottom. Nor would it help: on gradients the best progression has 0–10 % less error, and that error is a
    ten-thousandth of the error that stochastic group scales add.
    """

    @property
    def largest(self) -> int:
        """R."""
        return (1 << (self.width - 1)) - 1

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        y = y.clamp(max=self.largest)  # the maximum itself may be rounded beyond
        up = y - y.floor() > w
        return signed_codes(y.floor().to(torch.int32) + up, x, self.width)


def uniform_values(device: torch.device, width: int = 16) -> Uniform:
    """The values of `width` ≥ 2 bits."""
    largest = (1 << (width - 1)) - 1
    levels = (torch.arange(largest + 1, dtype=torch.float64, device="cpu") / largest).to(torch.float32)
    decoded = torch.cat((levels, -levels)).to(device)
    return Uniform(width=width, span=float(largest), centre=0.5, step=1.0, decoded=decoded)


@dataclass(frozen=True)
class Geometric(Values):
    """Non-uniform values at 2 to 8 bits, in geometric progression.

    A coordinate of b bits is a sign and a level r ≤ R = 2^(b−1) − 1 of value f(ε, r) = (a^r − 1)/(a^R − 1) of
    its group's maximum, a = 1 + 2ε². Rounding is defined by a count, every operation rounded to float32 once:

        t = 1 + y,   span K = a^R − 1      (no fused multiply-add)
        w = 1 + (a − 1)/2 ± d·((a − 1)/N)
        r = #{k < R : t > T[k]·w},  T[k] = a^k

    so t lies in [1, a^R] and w in [1, a]. `step` is a − 1. `thresholds` is T[0…R], float32, or several tables
    of which a row's begins at `first`, (rows, 1) int32. Kernels need `levels_per_octave`, 1/log₂ a.
    """

    thresholds: Tensor
    levels_per_octave: Parameter
    first: Tensor | int

    @property
    def largest(self) -> int:
        """R, the largest level."""
        return (1 << (self.width - 1)) - 1

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        return signed_codes(count_levels(1 + y, w, self), x, self.width)


def count_levels(t: Tensor, w: Tensor, values: Geometric) -> Tensor:
    """#{k < R : t > T[k]·w} for t ∈ [1, a^R], w ∈ [1, a] (float32, (rows, coordinates)), as int32.

    Found by bisection, because the products ascend with k: t exceeds all below `low` and none from `high` on.
    """
    low, high = torch.zeros_like(t, dtype=torch.int32), torch.full_like(t, values.largest, dtype=torch.int32)
    for _ in range(values.largest.bit_length()):
        middle = (low + high) // 2
        exceeded = (middle < high) & (t > values.thresholds[values.first + middle] * w)
        low, high = torch.where(exceeded, middle + 1, low), torch.where(exceeded, high, middle)
    return low


_GRID = float(1 << 22)
"""a is a multiple of 2⁻²²: a, a − 1 and 1 + (a − 1)/2 are then float32 numbers, and w cannot fall below 1."""


def progression_step(epsilon: float) -> float:
    """a − 1 = 2ε², a multiple of 2⁻²²."""
    return round(2 * epsilon * epsilon * _GRID) / _GRID


def geometric_powers(step: float, largest: int) -> list[float]:
    """1, a, …, a^largest, by repeated multiplication: the C library's pow may differ between machines."""
    powers = [1.0]
    for _ in range(largest):
        powers.append(powers[-1] * (1 + step))
    return powers


def levels_per_octave(step: float) -> float:
    """1/log₂ a, for estimates: its last bits decide nothing."""
    return 1 / float(torch.tensor(1 + step, dtype=torch.float64, device="cpu").log2())


def geometric_values(width: int, epsilon: float, device: torch.device) -> Geometric:
    """The values of `width` from 2 to 8 bits. At 2 bits ε has no effect and a = 2 makes t exact."""
    step = 1.0 if width == 2 else progression_step(epsilon)
    powers = geometric_powers(step, (1 << (width - 1)) - 1)
    span = powers[-1] - 1
    values = torch.tensor([(power - 1) / span for power in powers], dtype=torch.float32, device="cpu")
    return Geometric(
        width=width,
        span=torch.tensor(span, dtype=torch.float32, device="cpu").item(),
        centre=1 + step / 2,
        step=step,
        decoded=torch.cat((values, -values)).to(device),
        thresholds=torch.tensor(powers, dtype=torch.float32, device=device),
        levels_per_octave=levels_per_octave(step),
        first=0,
    )


@dataclass(frozen=True)
class Distinct(Geometric):
    """Values that use every code: there is no negative zero, but one more level on the positive side.

    A sign-magnitude code of b bits has two zeros. Here the second one is the level 2^(b−1), which only
    positive coordinates have. Each side is a geometric progression of its own that ends at the group's
    maximum, with a = 1 + 2ε² on both:

    positive   f(r) = (a^r − 1)/(a^P − 1),  r ≤ P = 2^(b−1)
        negative  −f(r) = −(a^r − 1)/(a^N − 1),  r ≤ N = P − 1

    At 2 bits and a = 1.5 these are −1, 0, 0.4 and 1. Rounding is the count of `Geometric` with the largest
    level and the span of the coordinate's own side, every operation rounded to float32 once:

    t = 1 + y for positive and 1 + y·(K₋/K) for negative coordinates,  K = a^P − 1, K₋ = a^N − 1
        r = #{k < (P or N) : t > a^k·w}

    so it is unbiased, "up" is towards +∞, and zero is sent as zero. `negative_span` is K₋/K, float32.
    """

    negative_span: Parameter

    @property
    def largest(self) -> int:
        """P, the largest level of positive coordinates."""
        return 1 << (self.width - 1)

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        negative = x.signbit()
        t = 1 + torch.where(negative, y * as_tensor(self.negative_span, y), y)
        level = count_levels(t, w, self)
        # A rounding error may exceed the largest negative level, whose successor's code is a positive one.
        level = torch.where(negative, level.clamp(max=self.largest - 1), level)
        return signed_codes(level, x, self.width)


def distinct_values(width: int, epsilon: float, device: torch.device) -> Distinct:
    """The values of `width` from 2 to 8 bits."""
    step = progression_step(epsilon)
    powers = geometric_powers(step, 1 << (width - 1))
    span, negative_span = powers[-1] - 1, powers[-2] - 1
    positive = [(power - 1) / span for power in powers]
    negative = [(1 - power) / negative_span for power in powers[1:-1]]
    # By code: the levels 0 … N, the level P in the place of a negative zero, the negative levels.
    values = torch.tensor(positive + negative, dtype=torch.float32, device="cpu")
    return Distinct(
        width=width,
        span=torch.tensor(span, dtype=torch.float32, device="cpu").item(),
        centre=1 + step / 2,
        step=step,
        decoded=values.to(device),
        thresholds=torch.tensor(powers, dtype=torch.float32, device=device),
        levels_per_octave=levels_per_octave(step),
        first=0,
        negative_span=torch.tensor(negative_span / span, dtype=torch.float32, device="cpu").item(),
    )
