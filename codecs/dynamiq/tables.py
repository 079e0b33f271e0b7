"""Which quantization values serve which width."""

from __future__ import annotations

from functools import lru_cache

import torch

from gradwire.codecs.dynamiq.geometric import geometric_values
from gradwire.codecs.dynamiq.sign import sign_values
from gradwire.codecs.dynamiq.uniform import uniform_values
from gradwire.codecs.dynamiq.values import Values

WIDTHS = (1, 2, 4, 8, 16)
"""Every width there are values for."""


@lru_cache(maxsize=64)
def values_of(width: int, epsilon: float, device: torch.device) -> Values:
    """The values of `width` ∈ {1, 2, 4, 8, 16}; ε is their non-uniformity at 4 and 8 bits."""
    if width == 1:
        return sign_values(device)
    if width == 16:
        return uniform_values(device)
    return geometric_values(width, epsilon, device)
