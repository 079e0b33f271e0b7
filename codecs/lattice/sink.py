"""The last rounding of a chunk's sum: by the worker at which it is complete, once, dithered by bits that all
ranks know.

Multiples of c·D·2^(i/16) are sent n − 1 times, where a hop's sums are sent once: c = √(n − 1) is what
Lagrange's condition wants. Each slot has the smallest i at which it fits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.lattice.codes import NUMBER_BITS, SlotCode, slot_bits
from gradwire.codecs.lattice.logarithms import UNITS, power
from gradwire.codecs.options.dynamiq import SUPER_GROUP

STEP_CODES = 1 << NUMBER_BITS
"""Steps of a sink, 16 an octave. With the largest one, 2⁶² times the usual one, all integers are 0."""

FINEST = 16
"""The number of the code of the step c·D: smaller ones are finer."""

_PER_CODE = UNITS // 16


def coarser(workers: int) -> int:
    """log2 c in units, for the sum of so many workers."""
    return (
        round(UNITS * torch.tensor(float(workers - 1), device="cpu").log2().item() / 2) if workers > 2 else 0
    )


def relative_step(number: Tensor) -> Tensor:
    """The steps 2^(i/16) of these codes, float32."""
    return power(_PER_CODE * (number - FINEST))


def finest(v: Tensor, noise: Tensor, code: SlotCode, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The integers of a chunk, (slots, super-groups, 256) int64, in the finest step at which each slot fits
    into `size` bits; the numbers of these steps, (slots,); and the bits that each slot takes with the step
    c·D.

    `v`, float32, is the sum in multiples of c·D; `noise` is added before rounding down.
    """

    def rounded(number: Tensor) -> Tensor:
        scale = power(_PER_CODE * (FINEST - number))
        return (v * scale[:, None, None] + noise).floor().to(torch.int64)

    def taken(number: Tensor) -> Tensor:
        lengths = code.lengths(rounded(number).view(-1, SUPER_GROUP))
        return slot_bits(lengths.view(v.shape[:2]))

    middle = torch.full((len(v),), FINEST, dtype=torch.int64, device=v.device)
    wanted = taken(middle)
    low, high = torch.full_like(middle, -1), torch.full_like(middle, STEP_CODES - 1)
    for _ in range(NUMBER_BITS):
        middle = (low + high) // 2
        fits = taken(middle) <= size
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return rounded(high), high, wanted
