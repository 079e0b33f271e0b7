"""One bit: a coordinate is sent as plus or minus its group's maximum (DynamiQ §3.3 with b = 1).

There is no level between. The expectation is right because the sign is random: x is sent as +max with
probability (1 + x/max)/2, so a zero is +max or −max with equal chance. The sign of x is kept iff y > w, with
y = |x|/max and w = ± d·(2/N) in [−1, 1]. Groups without a non-zero value have code 0 everywhere and
scale 0: they decode to exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.packing import decoding_table
from gradwire.codecs.dynamiq.values import Values


@dataclass(frozen=True)
class Sign(Values):
    """Code 0 is +max, code 1 is −max; `group` coordinates share a maximum."""

    group: int

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        kept = y > w
        down = (x.view(torch.int32) < 0).eq_(kept)
        alive = y.view(-1, self.group).amax(dim=1, keepdim=True) > 0
        return down.view(-1, self.group).logical_and_(alive).view_as(y).to(torch.uint8)


def sign_values(device: torch.device, group: int = 16) -> Sign:
    """The values of 1 bit, for groups of `group` coordinates."""
    decoded = decoding_table(torch.tensor([1.0, -1.0]), 1).to(device)
    return Sign(width=1, span=1.0, centre=0.0, step=2.0, decoded=decoded, group=group)
