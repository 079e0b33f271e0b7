"""Common parts of the codes of slots: marks, headers, and the interface by which hops use them.

A slot begins with a word: in bits 0-9 the shift of all its super-groups, or the sink's step code, in bits
10-31 the bits in use. A header of a byte follows for each super-group, whose uppermost two bits are its
further shift, and zeros up to a whole word. The rest is each code's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.lattice import bits

SILENT, BROKEN = 1, 15
"""Marks of super-groups: every coordinate so far was exactly 0; or one was not finite, so that all of them
are NaN."""

MOST_FURTHER = 3
"""The largest shift of a super-group beyond that of its slot."""

HEADER_BITS = 8
NUMBER_BITS = 10
_NUMBER = (1 << NUMBER_BITS) - 1


class SlotCode(Protocol):
    """A code of slots of super-groups of 256 integers."""

    @property
    def table(self) -> Sequence[int]:
        """Bits of a Gaussian super-group, see `tables`."""
        ...

    def lengths(self, q: Tensor) -> Tensor:
        """Bits of each super-group of `q`, (super-groups, 256) int64, header included: int64."""
        ...

    def write(self, q: Tensor, number: Tensor, further: Tensor, mark: Tensor, size: int) -> Tensor:
        """The slots of `q`, (slots, super-groups, 256) int64: (slots, size/32) int64 words.

        `number`, (slots,), below 2¹⁰, goes into the first word; `further`, (slots, super-groups), are the
        super-groups' further shifts, and `mark`, of that shape, what is said of those that are all zero in
        `q`.
        """
        ...

    def read(self, words: Tensor, super_groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The inverse of `write`: q, the numbers, the further shifts and the marks, 0 where a super-group is
        not all zero."""
        ...


def zigzag(q: Tensor) -> Tensor:
    """Integers as natural numbers: 0, −1, 1, −2, … become 0, 1, 2, 3, …; int64."""
    return (q << 1) ^ (q >> 63)


def unzigzag(z: Tensor) -> Tensor:
    """The inverse of `zigzag`."""
    return (z >> 1) ^ -(z & 1)


def bit_length(x: Tensor) -> Tensor:
    """Bits of natural numbers below 2⁵³, 0 for 0: int64."""
    return torch.frexp(x.to(torch.float64)).exponent.to(torch.int64)


def head_bits(super_groups: int) -> int:
    """Bits of a slot's word and headers."""
    return 32 + 32 * -(-super_groups * HEADER_BITS // 32)


def slot_bits(lengths: Tensor) -> Tensor:
    """Bits of slots whose super-groups take `lengths` bits, (slots, super-groups) int64: (slots,)."""
    super_groups = lengths.shape[1]
    return lengths.sum(dim=1) + head_bits(super_groups) - super_groups * HEADER_BITS


def blank(slots: int, size: int, like: Tensor) -> Tensor:
    """Slots of `size` bits without anything in them: (slots, size/32) int64."""
    return torch.zeros(slots, size // 32, dtype=torch.int64, device=like.device)


def write_head(words: Tensor, number: Tensor, used: Tensor, headers: Tensor) -> None:
    """Writes slots' first words and headers: the `number` and the bits `used` of each, (slots,), and
    `headers`, (slots, super-groups), with whose further shift."""
    rows, at = _header_places(headers)
    bits.put(words, rows.reshape(-1), at.reshape(-1), headers.reshape(-1))
    words[:, 0] += number + (used << NUMBER_BITS)


def read_head(words: Tensor, super_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers, headers without further shifts, and further shifts of slots."""
    rows, at = _header_places(words.new_zeros(len(words), super_groups))
    length = torch.full_like(at, HEADER_BITS).reshape(-1)
    headers = bits.get(words, rows.reshape(-1), at.reshape(-1), length).view_as(at)
    return words[:, 0] & _NUMBER, headers & 63, headers >> 6


def _header_places(headers: Tensor) -> tuple[Tensor, Tensor]:
    """The slot and first bit of each header."""
    slots, super_groups = headers.shape
    at = 32 + HEADER_BITS * torch.arange(super_groups, device=headers.device).expand(slots, super_groups)
    rows = torch.arange(slots, device=headers.device)[:, None].expand_as(at)
    return rows, at


def before(lengths: Tensor) -> Tensor:
    """The sums of the lengths before each one of its row."""
    return lengths.cumsum(dim=1) - lengths
