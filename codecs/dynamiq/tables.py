"""Which quantization values serve which width."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch

from gradwire.codecs.dynamiq.codebooks import CODEBOOK_WIDTHS, Codebooks, codebooks_of
from gradwire.codecs.dynamiq.distinct import distinct_values
from gradwire.codecs.dynamiq.geometric import geometric_values
from gradwire.codecs.dynamiq.sign import sign_values
from gradwire.codecs.dynamiq.uniform import uniform_values
from gradwire.codecs.dynamiq.values import Values

Kind = Literal["nonuniform", "uniform", "distinct"]

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Every width there are values for."""


@lru_cache(maxsize=64)
def values_of(width: int, kind: Kind, epsilon: float, device: torch.device, group: int = 16) -> Values:
    """The values of one of `WIDTHS`: `nonuniform` (DynamiQ §3.3), their limit `uniform`, or `distinct`.

    ε is their non-uniformity; it has no effect on uniform values, nor on nonuniform ones of 2 bits.
    At 1 bit there is but the sign, of a coordinate in a group of `group`, and at 16 bits values are uniform
    whatever their kind.
    """
    if width == 1:
        return sign_values(device, group)
    if kind == "uniform" or width == 16:
        return uniform_values(device, width)
    if kind == "distinct":
        return distinct_values(width, epsilon, device)
    return geometric_values(width, epsilon, device)


def chosen_values(
    width: int, kind: Kind, epsilon: float, device: torch.device, group: int, codebooks: int
) -> Values | Codebooks:
    """The values of a width, or its codebooks if there are several."""
    if codebooks > 1 and width in CODEBOOK_WIDTHS:
        return codebooks_of(width, epsilon, device)
    return values_of(width, kind, epsilon, device, group)
