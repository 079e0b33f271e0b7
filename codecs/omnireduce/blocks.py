"""Blocks: runs of consecutive coordinates that are sent together or not at all (the paper's chunks)."""

from __future__ import annotations

import torch
from torch import Tensor

_TILE = 1 << 18
"""Coordinates squared at a time: temporaries of 2 MiB."""


def num_blocks(numel: int, block: int) -> int:
    """Blocks of `block` coordinates in a bucket, the last one possibly partial."""
    return -(-numel // block)


def block_energies(x: Tensor, block: int) -> Tensor:
    """The squared l2 norm of every block of `x`, (numel,) of a floating dtype: (blocks,) float64.

    Infinite where a coordinate is not finite, and only there: squares of float32 neither overflow nor vanish
    in float64.
    """
    tile = max(_TILE // block, 1) * block
    starts = range(0, x.numel(), tile)
    return torch.cat([_energies(x[start : start + tile], block) for start in starts])


def _energies(x: Tensor, block: int) -> Tensor:
    width = min(block, x.numel())
    padding = num_blocks(x.numel(), width) * width - x.numel()
    rows = torch.nn.functional.pad(x.to(torch.float64), (0, padding)).view(-1, width)
    return _fold(rows.square_()).nan_to_num_(nan=torch.inf, posinf=torch.inf)


def _fold(rows: Tensor) -> Tensor:
    """The sum of each row in a fixed order: the second half is added to the first until one column is left,
    the middle column of an odd number waiting."""
    while (width := rows.shape[1]) > 1:
        half = (width + 1) // 2
        folded = rows[:, :half].clone()
        folded[:, : width - half] += rows[:, half:]
        rows = folded
    return rows[:, 0]


def largest_blocks(energies: Tensor, count: int) -> Tensor:
    """Which blocks are among the `count` of most energy, the earlier of two alike: (blocks,) bool.

    Blocks that are not finite always are, even if they are more.
    """
    chosen = energies.isinf()
    order = energies.sort(descending=True, stable=True).indices
    chosen[order[:count]] = True
    return chosen


class SomeBlocks:
    """The `Selection` of some blocks of a bucket of `numel` coordinates."""

    def __init__(self, chosen: Tensor, numel: int, block: int, device: torch.device) -> None:
        """`chosen` is (blocks,) bool on the host, where it decides how long messages are."""
        self._block, self._whole = block, numel // block
        self._rows = chosen[: self._whole].nonzero()[:, 0].to(device)
        has_partial = bool(chosen[self._whole :].any())
        self._partial = slice(self._whole * block, numel if has_partial else self._whole * block)

    def _whole_blocks(self, x: Tensor) -> Tensor:
        return x[: self._whole * self._block].view(self._whole, self._block)

    def take(self, x: Tensor) -> Tensor:
        rows = self._whole_blocks(x).index_select(0, self._rows)
        return torch.cat((rows.flatten(), x[self._partial]))

    def put(self, values: Tensor, into: Tensor) -> None:
        rows = self._rows.numel()
        whole, partial = values[: rows * self._block], values[rows * self._block :]
        self._whole_blocks(into).index_copy_(0, self._rows, whole.view(rows, self._block))
        into[self._partial] = partial
