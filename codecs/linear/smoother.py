"""The Hadamard smoother: the 32-point Walsh-Hadamard transform of consecutive blocks (SDP4Bit §3.2.2).

Only its additions are here, in the order of `codecs.hadamard`; 1/√32 is part of a group's factor, so that a
transform multiplies no coordinate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.codecs.linear.message import BLOCK

NORM = 1 / math.sqrt(BLOCK)
"""What makes the transform orthogonal."""


def butterflies(values: Tensor) -> Tensor:
    """The transform without its factor, √32 times too large: contiguous float32 of a multiple of 32 values to
    a new tensor of the same shape.

    Stage s = 0 … 4 replaces the values a and b, 2^s apart, by a + b and a − b.
    """
    distance, result = 1, values
    while distance < BLOCK:
        first, second = result.view(-1, 2, distance).unbind(1)
        result = torch.stack((first + second, first - second), dim=1)
        distance *= 2
    return result.view(values.shape)
