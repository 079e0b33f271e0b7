"""The quantization values of one width and the rounding between them (DynamiQ §3.3).

A coordinate x of a group with maximum max|G| becomes y = |x|·(span/max|G|), in [0, span], and its dither
w = centre ± d·(step/N) (d: centred dither, see `rounding`; minus where x < 0); every operation is rounded to
float32 once. What a width makes of y and w is told in `sign` (1 bit), `geometric` (2, 4 and 8) and `uniform`
(16). Since w is affine in the dither, each is an unbiased rounding of x; since the dither is mirrored for
negative x, rounding up means towards +∞ of the signed value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Values(ABC):
    """The values of one width, the sign in a code's top bit.

    `decoded` maps a byte of packed codes to its 8/width values, held as one element (float32, float64,
    complex128) or a row of float32, so that a single look-up unpacks and decodes a byte; at 16 bits it maps
    each code.
    """

    width: int
    span: float
    centre: float
    step: float
    decoded: Tensor

    @abstractmethod
    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        """Codes of (rows, 256) float32 coordinates: uint8, or int16 at 16 bits.

        Only the sign of `x` counts; `y` is 0 in groups that are sent as zeros, and may be overwritten.
        """


def signed_codes(level: Tensor, x: Tensor, width: int) -> Tensor:
    """Levels (int32) with the signs of `x` (float32) as int32 codes; there is no negative zero."""
    sign = x.view(torch.int32) >> 31
    nonzero = level.neg().bitwise_right_shift_(31)
    return sign.bitwise_and_(nonzero).bitwise_and_(1 << (width - 1)).bitwise_or_(level)
