"""Element formats E4M3, E3M2 and E2M1 (OCP Microscaling Formats v1.0, §5.3) and the scales of their blocks.

A code is a sign, an exponent field and a mantissa, in this order from the top bit. Exponent field 0 holds
zero and the subnormals. None of the formats has an infinity; only E4M3 has a NaN, which no cast produces.

Let G be the block's maximum over all workers (bf16) and s = μ·G; MAX, emax and M are the element format's
maximum, its exponent and its mantissa bits. Elements are cast from g/X:

- `bf16_mu`     X = s/MAX: the scale of DynamiQ's Appendix C, after FP8-LM. A bf16 maximum times μ.
- `e8m0_floor`  X = 2^(⌊log2 s⌋ − emax): OCP Microscaling Formats v1.0 §6.3. Elements above MAX saturate.
- `e8m0_even`   as `e8m0_floor`, of s rounded to M mantissa bits, halves up: `EVEN` of torchao's MX formats.
- `e8m0_ceil`   X = 2^⌈log2(s/MAX)⌉, the smallest power of two that brings s to at most MAX: NVIDIA's rule for
                MXFP8 and torchao's `RCEIL`.

The powers of two are known to all workers and never sent, so they are not confined to E8M0's range.
Everything is computed relative to a power of two near G: no product of it overflows or vanishes, and a
gradient scaled by 2^k changes no bit of any element while its block maxima lie in [2⁻¹²⁶, 2¹²⁸ − 2¹²⁰].
Below, a maximum is rounded up to a multiple of 2⁻¹³³, so that smaller gradients fade; above, it is rounded
down, and a value that a power-of-two scale rounds up beyond float32's range becomes infinite.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import unpacked
from gradwire.codecs.arithmetic.floats import SMALLEST_NORMAL, constant, exponents, normalizers, power_of_two
from gradwire.codecs.options.quantized import ScaleRule

_BIAS = 127


@dataclass(frozen=True)
class ElementFormat:
    """A small floating-point format: `width` bits, `mantissa_bits` of them mantissa, exponent bias `bias`,
    and the code of its largest finite value."""

    name: str
    width: int
    mantissa_bits: int
    bias: int
    largest_code: int

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of every code, the negative ones (sign bit set) in the second half; each is exact."""
        positive = [self._value(code) for code in range(1 << (self.width - 1))]
        return (*positive, *(-value for value in positive))

    def _value(self, code: int) -> float:
        if code > self.largest_code:
            return float("nan")
        field, mantissa = divmod(code, 1 << self.mantissa_bits)
        significand = mantissa + ((1 << self.mantissa_bits) if field else 0)
        return significand * 2.0 ** (max(field, 1) - self.bias - self.mantissa_bits)

    @property
    def maximum(self) -> float:
        """The largest finite value."""
        return self.values[self.largest_code]

    @cached_property
    def maximum_bits(self) -> int:
        """The float32 pattern of the largest finite value."""
        return int.from_bytes(struct.pack("<f", self.maximum), "little")

    @property
    def largest_exponent(self) -> int:
        """Floor of log2 of the maximum: `emax` of the OCP specification."""
        return (self.largest_code >> self.mantissa_bits) - self.bias


FORMATS = {
    "mxfp8": ElementFormat("E4M3", 8, mantissa_bits=3, bias=7, largest_code=0x7E),
    "mxfp6": ElementFormat("E3M2", 6, mantissa_bits=2, bias=3, largest_code=0x1F),
    "mxfp4": ElementFormat("E2M1", 4, mantissa_bits=1, bias=1, largest_code=0x07),
}
"""By the name of the codec; their maxima are 448, 28 and 6."""

BY_WIDTH = {element.width: element for element in FORMATS.values()}


def cast(x: Tensor, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """Round to nearest, ties to even, saturating: float32 of any shape to codes, int32, and a mask of those
    that saturated, bool.

    A cast saturates if the value rounded with an unbounded exponent would exceed the maximum (IEEE 754 §7.4):
    460 becomes 448 in E4M3 by rounding, 470 by saturation. Infinities and NaN saturate too, keeping their
    sign. Zeros and underflowing values keep their sign.

    With 2^e ≤ |x| < 2^(e+1), e at least the smallest normal exponent, |x| is rounded to a whole number of
    steps of 2^(e−M); all else is exact. The next binade starts 2^M codes later, and its steps are counted
    from 2^M.
    """
    beyond = 2.0 ** (element.largest_exponent + 1)
    magnitude = x.abs().nan_to_num(nan=beyond).clamp(max=beyond)
    smallest = 1 - element.bias + _BIAS
    field = exponents(magnitude, smallest)
    steps = (magnitude * power_of_two(2 * _BIAS + element.mantissa_bits - field)).round().to(torch.int32)
    code = steps + ((field - smallest) << element.mantissa_bits)
    sign = x.signbit().to(torch.int32) << (element.width - 1)
    return code.clamp(max=element.largest_code) | sign, code > element.largest_code


def decode(stream: Tensor, element: ElementFormat) -> Tensor:
    """The values of packed codes, (m·width/8,) uint8: (m,) float32."""
    return values_of(unpacked(stream, element.width), element)


def values_of(codes: Tensor, element: ElementFormat) -> Tensor:
    """The values of int32 codes of any shape: float32 of that shape."""
    return _table(element, codes.device)[codes]


@lru_cache(maxsize=16)
def _table(element: ElementFormat, device: torch.device) -> Tensor:
    return torch.tensor(element.values, dtype=torch.float32, device=device)


@dataclass(frozen=True)
class SharedScales:
    """The inputs for the scales of a bucket's blocks, the same on all workers: the reduced `maxima`,
    (blocks,) bf16, μ and the rule. Sums of elements are divided by the number of `workers`. μ is read from
    `mu_place`, (1,) float32, if that is given: captured rounds have another one in each launch."""

    maxima: Tensor
    mu: float
    rule: ScaleRule
    workers: int
    mu_place: Tensor | None = None

    def of(self, element: ElementFormat) -> BlockScales:
        """The scales of all blocks."""
        mu = self.mu if self.mu_place is None else self.mu_place
        return block_scales(self.maxima, mu, self.rule, element, self.workers)


@dataclass(frozen=True)
class BlockScales:
    """Factors of blocks for encoding, (g·normalizer)·factor, and decoding, (v·step)·restorer.

    All are (blocks, 1), float32. `alive` is bool and False for blocks of zeros and for blocks that are not
    finite; the elements of both are +0. `step` includes the division by the number of workers; it is NaN
    where the maximum is not finite.
    """

    normalizer: Tensor
    factor: Tensor
    alive: Tensor
    step: Tensor
    restorer: Tensor


def block_scales(
    maximum: Tensor, mu: float | Tensor, rule: ScaleRule, element: ElementFormat, workers: int
) -> BlockScales:
    """The scales of blocks with reduced maxima `maximum`, (blocks,) bf16; a μ on the device is one
    float32.

    With 2^(f−127) ≤ G < 2^(f−126) the normalizer is 2^(128−f), which makes 2 ≤ G·normalizer < 4 (less if G is
    subnormal). The restorer 2^(f−127) is twice its inverse, so that both are normal numbers; `step`
    compensates for the factor 2.
    """
    maximum = maximum.to(torch.float32)[:, None]
    finite = maximum.isfinite()
    field = exponents(maximum, SMALLEST_NORMAL)
    normalizer = normalizers(field)
    shared = maximum * normalizer * (mu if isinstance(mu, Tensor) else constant(mu, maximum))
    factor, unit = _exact_scale(shared, element) if rule == "bf16_mu" else _power_scale(shared, rule, element)
    step = (unit / constant(2 * workers, unit)).masked_fill(~finite, torch.nan)
    return BlockScales(normalizer, factor, finite & (maximum > 0), step, power_of_two(field))


def _exact_scale(shared: Tensor, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """1/X and X for X = s/MAX, each computed with one division."""
    maximum = constant(element.maximum, shared)
    return maximum / shared, shared / maximum


def _power_scale(shared: Tensor, rule: ScaleRule, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """1/X and X for X a power of two, by integer arithmetic on the bits of `shared` (float32)."""
    bits = shared.view(torch.int32)
    if rule == "e8m0_ceil":
        field = ((bits - element.maximum_bits + 0x7F_FFFF) >> 23) + 127
    else:
        half = 1 << (22 - element.mantissa_bits) if rule == "e8m0_even" else 0
        field = ((bits + half) >> 23) - element.largest_exponent
    field = field.clamp(1, 253)  # what is not alive: any scale will do
    return power_of_two(254 - field), power_of_two(field)
