"""Rice codes of super-groups of integers, in slots of a fixed number of bits (`codec.code=rice`).

A slot holds some super-groups of 256 integers q. Each is coded as z = 2q, or −2q − 1 if q is negative: r
low bits, then z >> r zeros and a one. The parameter r follows the mean of z: of the super-group, or of
groups of 32, whichever takes fewer bits. From 24 zeros on, which one more bit ends, z follows as a whole.

After a slot's word and headers (`codes`) there are, one after another:

    masks           by super-group, of modes that have some
    low bits        r of each coded coordinate
    unary           of each coded coordinate
    escapes         32 bits each

A header has the mode in two bits and r in four. A super-group is all zero (mode 0, whose r is a mark), has
one r (1), one r and a mask of the groups that are not zero (2), or a smallest r and 2 bits for each group,
0 for zeros, else 1 more than what it adds to r (3).
"""

from __future__ import annotations

from dataclasses import dataclass

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
from gradwire.codecs.lattice.tables import RICE
from gradwire.codecs.options.dynamiq import SUPER_GROUP

GROUP = 32
GROUPS = SUPER_GROUP // GROUP
LARGEST_R = 12
ESCAPE = 24
"""Zeros before an integer that follows as a whole."""

MASK_BITS = (0, 0, 8, 16)


@dataclass(frozen=True)
class RiceChoice:
    """The code of super-groups: `mode`, the least parameter `r` and `num_bits`, (super-groups,), header
    included, and each group's own parameter and whether it is coded at all, (super-groups, 8)."""

    mode: Tensor
    r: Tensor
    of_groups: Tensor
    coded: Tensor
    num_bits: Tensor


class Rice(SlotCode):
    """The code of variable length."""

    table = RICE

    def lengths(self, q: Tensor) -> Tensor:
        return choose(q).num_bits

    def write(self, q: Tensor, number: Tensor, further: Tensor, mark: Tensor, size: int) -> Tensor:
        choice, shape = choose(q.reshape(-1, SUPER_GROUP)), further.shape
        words = blank(len(q), size, q)
        mode, r = choice.mode.view(shape), choice.r.view(shape)
        coded = choice.coded.view(*shape, GROUPS) & (mode > 0)[:, :, None]
        mask_bits = torch.tensor(MASK_BITS, device=q.device)[mode]
        starts = before(mask_bits) + head_bits(shape[1])
        rows = torch.arange(len(q), device=q.device)[:, None].expand(shape)
        shown = mask_bits > 0
        bits.put(words, rows[shown], starts[shown], _masks(choice, mode, coded)[shown])

        of_slot, z, r_each = _coded_integers(q, coded, choice.of_groups.view_as(coded))
        zeros = (z >> r_each).clamp(max=ESCAPE)
        escaped = z >> r_each >= ESCAPE
        first = head_bits(shape[1]) + mask_bits.sum(dim=1)
        low_at, unary_at, escape_at, used = _regions(of_slot, first, r_each, zeros + 1, escaped)
        low = z & ((torch.ones_like(r_each) << r_each) - 1)
        bits.put(words, of_slot, low_at, low)
        bits.put(words, of_slot, unary_at + zeros, torch.ones_like(zeros))
        bits.put(words, of_slot[escaped], escape_at[escaped], z[escaped])
        write_head(words, number, used, mode | (torch.where(mode == 0, mark, r) << 2) | (further << 6))
        return words

    def read(self, words: Tensor, super_groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        number, headers, further = read_head(words, super_groups)
        mode, r = headers & 3, headers >> 2
        mark = torch.where(mode == 0, r, 0)
        coded, r_groups, first = _groups(words, mode, r)
        shape = (*mode.shape, SUPER_GROUP)
        q = torch.zeros(shape, dtype=torch.int64, device=words.device)
        of_slot, _, r_each = _coded_integers(q, coded, r_groups)
        low_bits = torch.zeros_like(first).index_add_(0, of_slot, r_each)
        zeros = _zeros(words, first + low_bits, of_slot)
        escaped = zeros >= ESCAPE
        low_at, _, escape_at, _ = _regions(of_slot, first, r_each, zeros + 1, escaped)
        z = (zeros << r_each) | bits.get(words, of_slot, low_at, r_each)
        whole = torch.full_like(r_each[escaped], 32)
        z[escaped] = bits.get(words, of_slot[escaped], escape_at[escaped], whole)
        q[coded.repeat_interleave(GROUP, dim=2).view_as(q)] = unzigzag(z)
        return q, number, further, mark


def code_bits(z: Tensor, r: Tensor) -> Tensor:
    """Bits of natural numbers with parameter `r`."""
    zeros = z >> r
    return r + 1 + zeros.clamp(max=ESCAPE) + 32 * (zeros >= ESCAPE)


def choose(q: Tensor) -> RiceChoice:
    """The shortest code of each super-group of `q`, (super-groups, 256) int64; of equally long ones the
    first."""
    z = zigzag(q).view(-1, GROUPS, GROUP)
    sums = z.sum(dim=2)
    filled = sums > 0
    total, number = sums.sum(dim=1), filled.sum(dim=1)
    by_group = parameter(sums, GROUP)
    least = by_group.masked_fill(~filled, LARGEST_R).amin(dim=1)
    whole = parameter(total, SUPER_GROUP)
    masked = parameter(total, GROUP * number.clamp(min=1))
    several = torch.minimum(by_group, least[:, None] + 2)

    one = code_bits(z, whole[:, None, None]).sum(dim=(1, 2))
    some = MASK_BITS[2] + (code_bits(z, masked[:, None, None]).sum(dim=2) * filled).sum(dim=1)
    each = MASK_BITS[3] + (code_bits(z, several[:, :, None]).sum(dim=2) * filled).sum(dim=1)
    length = torch.minimum(torch.minimum(one, some), each)
    mode = torch.where(one == length, 1, torch.where(some == length, 2, 3)) * (total > 0)

    r = torch.where(mode == 1, whole, torch.where(mode == 2, masked, torch.where(mode == 3, least, 0)))
    of_groups = torch.where((mode == 3)[:, None], several, r[:, None])
    coded = torch.where((mode == 1)[:, None], True, filled)
    return RiceChoice(mode, r, of_groups, coded, HEADER_BITS + length * (total > 0))


def parameter(sums: Tensor, count: Tensor | int) -> Tensor:
    """r = ⌊log2(max(mean, 1))⌋, at most 12, for `sums` of `count` natural numbers each."""
    return (bit_length(sums // count) - 1).clamp(0, LARGEST_R)


def _masks(choice: RiceChoice, mode: Tensor, coded: Tensor) -> Tensor:
    """The masks of super-groups, zeros of those without."""
    group = torch.arange(GROUPS, device=mode.device)
    added = (choice.of_groups - choice.r[:, None]).view_as(coded) + 1
    by_two = torch.where(coded, added, 0) << (2 * group)
    return torch.where((mode == 2)[:, :, None], coded.long() << group, by_two).sum(dim=2)


def _groups(words: Tensor, mode: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By group, which ones are coded and with which parameter; and by slot where low bits begin."""
    mask_bits = torch.tensor(MASK_BITS, device=words.device)[mode]
    starts = before(mask_bits) + head_bits(mode.shape[1])
    rows = torch.arange(len(words), device=words.device)[:, None].expand_as(mode)
    mask = bits.get(words, rows.reshape(-1), starts.view(-1), mask_bits.view(-1)).view_as(mode)
    group = torch.arange(GROUPS, device=words.device)
    by_two = mask[:, :, None] >> (2 * group) & 3
    coded = torch.where((mode == 2)[:, :, None], mask[:, :, None] >> group & 1, by_two) > 0
    coded = torch.where((mode == 1)[:, :, None], True, coded) & (mode > 0)[:, :, None]
    more = torch.where((mode == 3)[:, :, None], (by_two - 1).clamp(min=0), 0)
    return coded, r[:, :, None] + more, head_bits(mode.shape[1]) + mask_bits.sum(dim=1)


def _zeros(words: Tensor, unary: Tensor, of_slot: Tensor) -> Tensor:
    """The zeros before the one of each coded coordinate, where the unary codes of slots begin at the bits
    `unary`."""
    per_slot = torch.zeros_like(unary).index_add_(0, of_slot, torch.ones_like(of_slot))
    ends = bits.ones_from(words, unary, per_slot)
    last = torch.cat((ends.new_zeros(1), ends[:-1]))[: len(ends)]
    begins = torch.ones_like(of_slot, dtype=torch.bool)
    begins[1:] = of_slot[1:] != of_slot[:-1]
    return ends - torch.where(begins, unary[of_slot] - 1, last) - 1


def _coded_integers(q: Tensor, coded: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slot, z and parameter of every coded coordinate, (coordinates,), in their order."""
    taken = coded.repeat_interleave(GROUP, dim=2).view_as(q)
    slot = torch.arange(len(q), device=q.device)[:, None, None].expand_as(q)
    return slot[taken], zigzag(q[taken]), r.repeat_interleave(GROUP, dim=2).view_as(q)[taken]


def _regions(
    slot: Tensor, first: Tensor, low: Tensor, unary: Tensor, escaped: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first bits of each coded coordinate's low bits, unary code and escape, and each slot's end,
    (slots,).

    `first`, (slots,), is where the slots' low bits begin; `low` and `unary` are lengths.
    """
    starts = []
    for length in (low, unary, 32 * escaped):
        total = torch.zeros_like(first).index_add_(0, slot, length)
        earlier = (total.cumsum(0) - total)[slot]
        starts.append(first[slot] + length.cumsum(0) - length - earlier)
        first = first + total
    return starts[0], starts[1], starts[2], first
