"""Where things lie in a chunk's message.

Codes come first, in runs of one width (the largest first) and by super-group index within a run; then the
group scales of each super-group; then, if scales are hierarchical, the super-groups' bf16 scales. What the
chunk's capacity leaves over is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import TILE
from gradwire.codecs.dynamiq.format import Format
from gradwire.codecs.dynamiq.sizes import code_bytes, used_bytes

_DTYPES = {1: torch.uint8, 2: torch.int16}


@dataclass(frozen=True)
class Tile:
    """Some consecutive super-groups of one width: their rows within the chunk and their places in a
    message."""

    width: int
    rows: slice
    codes: Tensor
    group_scales: Tensor
    scales: Tensor


def tiles(message: Tensor, counts: Mapping[int, int], message_format: Format) -> Iterator[Tile]:
    """Cut a chunk's message (uint8) into tiles of at most `TILE` super-groups; tensors are views.

    Per tile of g rows: `codes` (g, 32·width) uint8; `group_scales` (g, 16) uint8 and `scales` (g,) int16, or
    with bf16 scales per group `group_scales` (g, 16) int16 and `scales` empty. Groups of 32: 8 instead of 16.
    """
    total = sum(counts.values())
    end_of_codes = sum(code_bytes(width) * number for width, number in counts.items())
    end_of_groups = end_of_codes + message_format.groups * message_format.group_scale_bytes * total
    group_scales = message[end_of_codes:end_of_groups].view(_DTYPES[message_format.group_scale_bytes])
    group_scales = group_scales.view(total, message_format.groups)
    scales = message[end_of_groups : used_bytes(counts, message_format)].view(torch.int16)
    row = offset = 0
    for width in sorted(counts, reverse=True):
        stop = row + counts[width]
        while row < stop:
            rows = slice(row, min(row + TILE, stop))
            size = (rows.stop - row) * code_bytes(width)
            codes = message[offset : offset + size].view(-1, code_bytes(width))
            yield Tile(width, rows, codes, group_scales[rows], scales[rows])
            row, offset = rows.stop, offset + size


def clear_unused(message: Tensor, counts: Mapping[int, int], message_format: Format) -> None:
    """Zero what a chunk's codes and scales leave of its message."""
    message[used_bytes(counts, message_format) :].zero_()
