"""Fields of a few bits in rows of 32-bit words: written, read and found, for all rows at once.

Words are int64 tensors that hold unsigned 32-bit numbers; bit k of a row is bit k mod 32 of its word k div
32. Fields of a row never overlap, so adding them writes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32
_WORD = 0xFFFF_FFFF


def put(words: Tensor, row: Tensor, position: Tensor, value: Tensor) -> None:
    """Adds fields to `words`, (rows, words) int64 with zeros in their place.

    `row`, `position` and `value` are (fields,) int64: the row, its first bit, and the field, at most 32
    bits long, whose unused bits are zero.
    """
    per_row = words.shape[1]
    place, shift = row * per_row + position // WORD_BITS, position % WORD_BITS
    moved = value << shift
    flat = words.view(-1)
    flat.index_add_(0, place, moved & _WORD)
    beyond = moved >> WORD_BITS
    carried = beyond != 0
    flat.index_add_(0, place[carried] + 1, beyond[carried])


def get(words: Tensor, row: Tensor, position: Tensor, length: Tensor) -> Tensor:
    """Fields of at most 32 bits of `words`, (rows, words) int64: (fields,) int64 for as many rows, first bits
    and lengths. A field of length 0 is 0, wherever it lies."""
    per_row = words.shape[1]
    flat = torch.nn.functional.pad(words, (0, 2)).view(-1)
    place = row * (per_row + 2) + (position // WORD_BITS).clamp(max=per_row)
    both = flat[place] | (flat[place + 1] << WORD_BITS)
    shift = position % WORD_BITS
    # An arithmetic shift of 64 bits: what enters from above is masked away.
    return (both >> shift) & ((torch.ones_like(length) << length) - 1)


def ones_from(words: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """The positions of the first `count` ones of each row of `words` from bit `first` on, row by row: (all
    counts,) int64. `first` and `count` are (rows,) int64."""
    bits = (words[:, :, None] >> torch.arange(WORD_BITS, device=words.device)) & 1
    bits = bits.view(len(words), -1).to(torch.bool)
    position = torch.arange(bits.shape[1], device=words.device)
    bits = bits & (position >= first[:, None])
    taken = bits & (bits.cumsum(dim=1) <= count[:, None])
    return taken.nonzero(as_tuple=True)[1]


def to_bytes(words: Tensor, out: Tensor) -> None:
    """Writes (rows, words) int64 words to `out`, (rows·words·4,) uint8, little-endian."""
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words)
    out.copy_(signed.to(torch.int32).view(-1).view(torch.uint8))


def from_bytes(message: Tensor, rows: int) -> Tensor:
    """The words of `message`, (rows·words·4,) uint8: (rows, words) int64."""
    return message.contiguous().view(torch.int32).view(rows, -1).to(torch.int64) & _WORD
