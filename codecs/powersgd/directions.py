"""Where the power iteration starts: random rows, the same on all ranks, a function of what they are for."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.random import halves, philox4x32, stream_key


def random_directions(name: str, rows: range, columns: int, this_round: Round) -> Tensor:
    """The rows numbered `rows` of a random start for parameter `name`: (len(rows), columns) float32.

    Entries are nearly Gaussian: sums of eight uniform 16-bit integers, less their mean. They are odd
    multiples of 2⁻¹⁷, hence exact on every machine and never zero. They depend on the seed, the step, the
    parameter's name and the position alone, not on the bucket.
    """
    device = this_round.layout.device
    key = stream_key(this_round.seed, this_round.step, Layout.flat(columns, name).uid)
    column = torch.arange(columns, device=device)
    row = torch.arange(rows.start, rows.stop, device=device)[:, None]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    words = philox4x32((column, row, zero, zero), key)
    totals = halves(words).view(len(rows), columns, 8).sum(dim=-1)
    return (2 * totals - 8 * 0xFFFF + 1).float() * 2.0**-17


def resized(kept: Tensor | None, rank: int, name: str, columns: int, this_round: Round) -> Tensor:
    """`kept` (any rank, columns), None if there is nothing, cut or extended by random rows to `rank` rows.

    The first rows are the leading directions. Rows need no common length or right angles: the iteration
    begins by making them orthonormal, in their order.
    """
    if kept is None:
        return random_directions(name, range(rank), columns, this_round)
    if len(kept) >= rank:
        return kept[:rank]
    return torch.cat([kept, random_directions(name, range(len(kept), rank), columns, this_round)])
