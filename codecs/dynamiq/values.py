"""The quantization values of one width and the rounding between them (DynamiQ §3.3).

A coordinate x of a group with maximum max|G| becomes y = |x|·(span/max|G|), in [0, span], and its dither
w = centre ± d·(step/N) (d: centred dither, see `rounding`; minus where x < 0); every operation is rounded to
float32 once. What is made of y and w is told in `sign` (1 bit), `geometric`, `distinct` and `uniform`. Since
w is affine in the dither, each is an unbiased rounding of x; since the dither is mirrored for negative x,
rounding up means towards +∞ of the signed value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.floats import constant

Parameter = float | Tensor
"""A number for all rows, or one for each of them, (rows, 1) float32."""


def as_tensor(parameter: Parameter, like: Tensor) -> Tensor:
    """A parameter as float32 on the device of `like`."""
    return parameter if isinstance(parameter, Tensor) else constant(parameter, like)


@dataclass(frozen=True)
class Values(ABC):
    """The values of one width.

    `decoded` maps packed codes to their values, see `packing.decoding_table`.
    """

    width: int
    span: Parameter
    centre: Parameter
    step: Parameter
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
