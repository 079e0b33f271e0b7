"""From a block's maximum to the scale of its elements: the rules of the shared scale.

Let G be the block's maximum over all workers (bf16) and s = μ·G what the rule starts from; MAX, emax and M
are the element format's maximum, its exponent and its mantissa bits. Elements are cast from g/X:

- `bf16_mu`     X = s/MAX: the scale of DynamiQ's Appendix C, after FP8-LM. A bf16 maximum times μ.
- `e8m0_floor`  X = 2^(⌊log2 s⌋ − emax): OCP Microscaling Formats v1.0 §6.3. Elements above MAX saturate.
- `e8m0_even`   as `e8m0_floor`, of s rounded to M mantissa bits, halves up: `EVEN` of torchao's MX formats.
- `e8m0_ceil`   X = 2^⌈log2(s/MAX)⌉, the smallest power of two that brings s to at most MAX: NVIDIA's rule for
                MXFP8 and torchao's `RCEIL`.

The powers of two are known to all workers and never sent, so they are not confined to E8M0's range.
Everything is computed relative to a power of two near G: no product of it overflows or vanishes, and a
gradient scaled by 2^k changes no bit of any element while its block maxima lie in [2⁻¹²⁶, 2¹²⁸ − 2¹²⁰].
Below, a maximum is rounded up to a multiple of 2⁻¹³³, so that smaller gradients fade; above, it is rounded
down, and what a power of two rounds up beyond float32's range is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import SMALLEST_NORMAL, constant, exponents, normalizers, power_of_two
from gradwire.codecs.mxfp.formats import ElementFormat
from gradwire.codecs.options.quantized import ScaleRule


@dataclass(frozen=True)
class SharedScales:
    """What gives a bucket's blocks their scales, the same on all workers: the reduced `maxima`, (blocks,)
    bf16, μ and the rule. Sums of elements are divided by the number of `workers`."""

    maxima: Tensor
    mu: float
    rule: ScaleRule
    workers: int

    def of(self, element: ElementFormat) -> BlockScales:
        """The scales of all blocks."""
        return block_scales(self.maxima, self.mu, self.rule, element, self.workers)


@dataclass(frozen=True)
class BlockScales:
    """How blocks are scaled on the way in, (g·normalizer)·factor, and out, (v·step)·restorer.

    All are (blocks, 1), float32; `alive` is bool: blocks of zeros and those that are not finite are not, the
    elements of both are +0. `step` includes the division by the number of workers; it is NaN
    where the maximum is not finite.
    """

    normalizer: Tensor
    factor: Tensor
    alive: Tensor
    step: Tensor
    restorer: Tensor


def block_scales(
    maximum: Tensor, mu: float, rule: ScaleRule, element: ElementFormat, workers: int
) -> BlockScales:
    """The scales of blocks with reduced maxima `maximum`, (blocks,) bf16.

    With 2^(f−127) ≤ G < 2^(f−126) the normalizer is 2^(128−f), which makes 2 ≤ G·normalizer < 4 (less if G
    is subnormal). The restorer 2^(f−127) is twice its inverse, so that both are normal numbers; `step` makes
    up for the 2.
    """
    maximum = maximum.to(torch.float32)[:, None]
    finite = maximum.isfinite()
    field = exponents(maximum, SMALLEST_NORMAL)
    normalizer = normalizers(field)
    shared = maximum * normalizer * constant(mu, maximum)
    factor, unit = _exact_scale(shared, element) if rule == "bf16_mu" else _power_scale(shared, rule, element)
    step = (unit / constant(2 * workers, unit)).masked_fill(~finite, torch.nan)
    return BlockScales(normalizer, factor, finite & (maximum > 0), step, power_of_two(field))


def _exact_scale(shared: Tensor, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """1/X and X for X = s/MAX, each by one division."""
    maximum = constant(element.maximum, shared)
    return maximum / shared, shared / maximum


def _power_scale(shared: Tensor, rule: ScaleRule, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """1/X and X for X a power of two, by integer arithmetic on the bits of `shared` (float32)."""
    bits = shared.view(torch.int32)
    if rule == "e8m0_ceil":
        largest = int(torch.tensor(element.maximum, device="cpu").view(torch.int32))
        field = ((bits - largest + 0x7F_FFFF) >> 23) + 127
    else:
        half = 1 << (22 - element.mantissa_bits) if rule == "e8m0_even" else 0
        field = ((bits + half) >> 23) - element.largest_exponent
    field = field.clamp(1, 253)  # what is not alive: any scale will do
    return power_of_two(254 - field), power_of_two(field)
