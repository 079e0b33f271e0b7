"""SDP4Bit's Algorithm 3 once more, from the paper's formulas: whole buckets, the smoother as a matrix, no
slices and no messages. It shares nothing with the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32


def smoother(dtype: torch.dtype) -> Tensor:
    """H, (32, 32): +1 or −1 by the parity of the bits that row and column share, over √32."""
    signs = [[(-1) ** (row & column).bit_count() for column in range(BLOCK)] for row in range(BLOCK)]
    return torch.tensor(signs, dtype=dtype) / BLOCK**0.5


def smoothed(x: Tensor) -> Tensor:
    return (x.view(-1, BLOCK) @ smoother(x.dtype)).view(-1)


def quantized(x: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Codes and values, (numel,) each: round(x / s · peak) with s = max|x| over the group."""
    peak = 2 ** (bits - 1) - 1
    rows = x.view(-1, group)
    scale = rows.abs().amax(dim=1, keepdim=True)
    codes = torch.where(scale > 0, rows / scale * peak, 0.0).round().clamp(-peak, peak)
    return codes.view(-1), (codes * scale / peak).view(-1)


@dataclass(frozen=True)
class TwoLevels:
    """The strategies on `num_nodes` nodes; `naive` has the transforms that cancel out, too (lines 6, 8)."""

    num_nodes: int
    bits_local: int = 8
    bits_node: int = 4
    group: int = 128
    hadamard: bool = True
    naive: bool = False

    def reduced(self, xs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean of all ranks' buckets, (numel,), in their dtype, and the codes that each node sends of its
        sum, (padded,): none where there is one node."""
        numel, ranks = xs[0].numel(), len(xs)
        whole = ranks * self.group
        padded = [torch.nn.functional.pad(x, (0, -numel % whole)) for x in xs]
        if self.hadamard:
            padded = [smoothed(x) for x in padded]
        local = ranks // self.num_nodes
        sums = [self._sum_of_node(padded[first : first + local]) for first in range(0, ranks, local)]
        codes = list[Tensor]()
        if self.num_nodes > 1:
            found = [quantized(each, self.bits_node, self.group) for each in sums]
            codes, sums = [own for own, _ in found], [values for _, values in found]
        total = torch.stack(sums).sum(dim=0)
        if self.hadamard:
            total = smoothed(total)
        return total[:numel] / ranks, codes

    def _sum_of_node(self, xs: Sequence[Tensor]) -> Tensor:
        if len(xs) == 1:
            return xs[0]
        values = [quantized(x, self.bits_local, self.group)[1] for x in xs]
        if not (self.hadamard and self.naive):
            return torch.stack(values).sum(dim=0)
        return smoothed(torch.stack([smoothed(each) for each in values]).sum(dim=0))
