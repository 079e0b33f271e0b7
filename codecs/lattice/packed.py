"""Integers of a super-group in as many bits as each eight of them need (`codec.code=packed`).

The lattice without an entropy code, for cheaper kernels. A lane is 8 coordinates, one after another, whose
z (see `codes`) have at most w bits. After a slot's word and headers there are, one after another:

    codes           by super-group that is not all zero, 3 bits for each of its 32 lanes
    lanes           of those whose code is not 0, base + code bits for each coordinate

A header has the base in its lowest five bits and then a one, or a zero if the super-group is all zero; the
base is its mark then. The code of a lane is 0 if w = 0, else max(1, w − base): the base is the largest one
that fits all lanes, or, where widths differ by more than six, the smallest one that lets the widest lane
fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.lattice import bits
from gradwire.codecs.lattice.codes import (
    HEADER_BITS,
    SlotCode,
    before,
    bit_length,
    blank,
    head_bits,
    read_head,
    unzigzag,
    write_head,
    zigzag,
)
from gradwire.codecs.lattice.tables import PACKED
from gradwire.codecs.options.dynamiq import SUPER_GROUP

LANE = 8
LANES = SUPER_GROUP // LANE
CODE_BITS = 3
_LARGEST_CODE = (1 << CODE_BITS) - 1
_FILLED = 5
"""The bit of a header that says that codes follow."""


class Packed(SlotCode):
    """The code of whole bits."""

    table = PACKED

    def lengths(self, q: Tensor) -> Tensor:
        base, code = _codes(q)
        filled = (code > 0).any(dim=1)
        return HEADER_BITS + filled * (LANES * CODE_BITS + LANE * _widths(base, code).sum(dim=1))

    def write(self, q: Tensor, number: Tensor, further: Tensor, mark: Tensor, size: int) -> Tensor:
        words = blank(len(q), size, q)
        base, code = _codes(q.view(-1, SUPER_GROUP))
        base, code = base.view(further.shape), code.view(*further.shape, LANES)
        filled = (code > 0).any(dim=2)
        first, starts = _places(base, code)
        rows = torch.arange(len(q), device=q.device)[:, None, None].expand_as(code)
        bits.put(words, rows[filled].view(-1), first[filled].view(-1), code[filled].view(-1))
        width, taken = _widths(base, code), code > 0
        z = zigzag(q).view(*code.shape, LANE)[taken]
        each = torch.arange(LANE, device=q.device)
        at = starts[taken][:, None] + each * width[taken][:, None]
        bits.put(words, rows[taken][:, None].expand_as(at).reshape(-1), at.view(-1), z.view(-1))
        used = head_bits(further.shape[1]) + _lengths(base, code).sum(dim=1)
        headers = torch.where(filled, base | 1 << _FILLED, mark) | (further << 6)
        write_head(words, number, used, headers)
        return words

    def read(self, words: Tensor, super_groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        number, headers, further = read_head(words, super_groups)
        filled, base = headers >> _FILLED > 0, headers & ((1 << _FILLED) - 1)
        code = torch.zeros(*base.shape, LANES, dtype=torch.int64, device=words.device)
        rows = torch.arange(len(words), device=words.device)[:, None, None].expand_as(code)
        first, _ = _places(base, code, filled)
        there = rows[filled].view(-1), first[filled].view(-1)
        code[filled] = bits.get(words, *there, torch.full_like(there[0], CODE_BITS)).view(-1, LANES)
        _, starts = _places(base, code, filled)
        q = torch.zeros(*code.shape, LANE, dtype=torch.int64, device=words.device)
        taken = code > 0
        width = _widths(base, code)[taken][:, None].expand(-1, LANE)
        at = starts[taken][:, None] + torch.arange(LANE, device=words.device) * width
        of_slot = rows[taken][:, None].expand_as(at)
        z = bits.get(words, of_slot.reshape(-1), at.view(-1), width.reshape(-1))
        q[taken] = unzigzag(z).view(-1, LANE)
        return q.view(*base.shape, SUPER_GROUP), number, further, torch.where(filled, 0, base)


def _codes(q: Tensor) -> tuple[Tensor, Tensor]:
    """The base of each super-group of `q`, (super-groups, 256) int64, and the codes of its lanes,
    (super-groups, 32)."""
    width = bit_length(zigzag(q).view(-1, LANES, LANE).amax(dim=2))
    most = width.amax(dim=1)
    least = torch.where(width > 0, width, most[:, None]).amin(dim=1)
    base = torch.maximum(least - 1, most - _LARGEST_CODE).clamp(min=0)
    return base, torch.where(width > 0, (width - base[:, None]).clamp(min=1), 0)


def _widths(base: Tensor, code: Tensor) -> Tensor:
    """Bits of a coordinate of each lane."""
    return (base[..., None] + code) * (code > 0)


def _lengths(base: Tensor, code: Tensor) -> Tensor:
    """Bits of super-groups apart from their headers."""
    filled = (code > 0).any(dim=-1)
    return filled * LANES * CODE_BITS + LANE * _widths(base, code).sum(dim=-1)


def _places(base: Tensor, code: Tensor, filled: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The first bits of the codes and of the lanes of slots, (slots, super-groups, 32)."""
    filled = (code > 0).any(dim=2) if filled is None else filled
    super_groups = base.shape[1]
    of_codes = filled * LANES * CODE_BITS
    first = before(of_codes)[:, :, None] + CODE_BITS * torch.arange(LANES, device=base.device)
    lanes = LANE * _widths(base, code).flatten(1)
    starts = (before(lanes) + of_codes.sum(dim=1, keepdim=True)).view_as(code)
    return first + head_bits(super_groups), starts + head_bits(super_groups)
