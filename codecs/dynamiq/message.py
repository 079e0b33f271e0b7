"""Where things lie in a chunk's message, and in which order a chunk holds its super-groups.

Codes come first, in runs of one width (the largest first) and by super-group index within a run; then 16
group scales a super-group; then their bf16 scales. What the chunk's capacity leaves over is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import GROUPS, TILE
from gradwire.codecs.dynamiq.sizes import code_bytes, used_bytes


@dataclass(frozen=True)
class Tile:
    """Some consecutive super-groups of one width: their rows within the chunk and their places in a
    message."""

    width: int
    rows: slice
    codes: Tensor
    group_scales: Tensor
    scales: Tensor


def tiles(message: Tensor, counts: Mapping[int, int]) -> Iterator[Tile]:
    """Cut a chunk's message (uint8) into tiles of at most `TILE` super-groups; tensors are views.

    Per tile of g rows: `codes` (g, 32·width) uint8, `group_scales` (g, 16) uint8, `scales` (g,) int16.
    """
    total = sum(counts.values())
    end_of_codes = sum(code_bytes(width) * number for width, number in counts.items())
    end_of_groups = end_of_codes + GROUPS * total
    group_scales = message[end_of_codes:end_of_groups].view(total, GROUPS)
    scales = message[end_of_groups : end_of_groups + 2 * total].view(torch.int16)
    row = offset = 0
    for width in sorted(counts, reverse=True):
        stop = row + counts[width]
        while row < stop:
            rows = slice(row, min(row + TILE, stop))
            size = (rows.stop - row) * code_bytes(width)
            codes = message[offset : offset + size].view(-1, code_bytes(width))
            yield Tile(width, rows, codes, group_scales[rows], scales[rows])
            row, offset = rows.stop, offset + size


def clear_unused(message: Tensor, counts: Mapping[int, int]) -> None:
    """Zero what a chunk's codes and scales leave of its message."""
    message[used_bytes(counts) :].zero_()


def message_order(widths: Tensor, total: int) -> Tensor:
    """Super-group indices in the order of the messages, chunk after chunk: (total,) int64.

    `widths` is (chunks, super-groups) int64; its entry (c, i) is super-group i·chunks + c, which exists if
    below `total`.
    """
    chunks, length = widths.shape
    index = torch.arange(length, device=widths.device) * chunks
    index = index + torch.arange(chunks, device=widths.device)[:, None]
    by_width = widths.masked_fill(index >= total, 0).argsort(dim=1, descending=True, stable=True)
    index = index.gather(1, by_width).flatten()
    return index[index < total]
