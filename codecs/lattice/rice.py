"""Rice codes of super-groups of integers, in slots of a fixed number of bits (`codec.code=rice`).

A slot holds some super-groups of 256 integers q. Each is coded as z = 2q, or −2q − 1 if q is negative: r low bits,
then z >> r zeros and a one. The parameter r follows the mean of z: of the super-group, or of groups of 32, whichever takes
fewer bits. From 24 zeros on, which one more bit ends, z follows as a whole.

In a slot there are, one after another:

    word            bits 0-7: the shift of all super-groups, or the sink's step code; bits 8-31: the bits in use
    headers         a byte for each super-group: mode, r << 2, its further shift << 6; zeros up to a whole word
    masks           by super-group, of modes that have some
    low bits        r of each coded coordinate
    unary           of each coded coordinate
    escapes         32 bits each

A super-group is all zero (mode 0, whose r is a mark: `SILENT` or `BROKEN`), has one r (1), one r and a mask of the groups
that are not zero (2), or a smallest r and 2 bits for each group, 0 for zeros, else 1 more than what it adds to r (3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.lattice import bits
from gradwire.codecs.options.dynamiq import SUPER_GROUP

GROUP = 32
GROUPS = SUPER_GROUP // GROUP
LARGEST_R = 12
ESCAPE = 24
"""Zeros before an integer that follows as a whole."""

SILENT, BROKEN = 1, 15
"""Marks of super-groups: every coordinate so far was exactly 0; or one was not finite, so that all of them are NaN."""

HEADER_BITS, MASK_BITS = 8, (0, 0, 8, 16)
MOST_FURTHER = 3
"""The largest shift of a super-group beyond that of its slot."""


def zigzag(q: Tensor) -> Tensor:
    """Integers as natural numbers: 0, −1, 1, −2, … become 0, 1, 2, 3, …; int64."""
    return (q << 1) ^ (q >> 63)


def unzigzag(z: Tensor) -> Tensor:
    """The inverse of `zigzag`."""
    return (z >> 1) ^ -(z & 1)


def bit_length(x: Tensor) -> Tensor:
    """Bits of natural numbers below 2⁵³, 0 for 0: int64."""
    return torch.frexp(x.to(torch.float64)).exponent.to(torch.int64)


@dataclass(frozen=True)
class Choice:
    """The code of super-groups: `mode`, the least parameter `r` and `num_bits`, (super-groups,), header included, and
    each group's own parameter and whether it is coded at all, (super-groups, 8)."""

    mode: Tensor
    r: Tensor
    of_groups: Tensor
    coded: Tensor
    num_bits: Tensor


def code_bits(z: Tensor, r: Tensor) -> Tensor:
    """Bits of natural numbers with parameter `r`."""
    zeros = z >> r
    return r + 1 + zeros.clamp(max=ESCAPE) + 32 * (zeros >= ESCAPE)


def choose(q: Tensor) -> Choice:
    """The shortest code of each super-group of `q`, (super-groups, 256) int64; of equally long ones the first."""
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
    return Choice(mode, r, of_groups, coded, HEADER_BITS + length * (total > 0))


def parameter(sums: Tensor, count: Tensor | int) -> Tensor:
    """r = ⌊log2(max(mean, 1))⌋, at most 12, for `sums` of `count` natural numbers each."""
    return (bit_length(sums // count) - 1).clamp(0, LARGEST_R)


def head_bits(super_groups: int) -> int:
    """Bits of a slot before the masks."""
    return 32 + 32 * -(-super_groups * HEADER_BITS // 32)


def write(q: Tensor, choice: Choice, number: Tensor, further: Tensor, mark: Tensor, size: int) -> Tensor:
    """The slots of `q`, (slots, super-groups, 256) int64, whose super-groups have the code `choice`: (slots, size/32)
    int64 words.

    `number`, (slots,), goes into the first byte; `further`, (slots, super-groups), are the super-groups' further
    shifts, and `mark`, of that shape, what is said of those that are all zero in `q`.
    """
    slots, super_groups = further.shape
    device = q.device
    words = torch.zeros(slots, size // 32, dtype=torch.int64, device=device)
    rows = torch.arange(slots, device=device)[:, None].expand_as(further)
    mode, r = choice.mode.view_as(further), choice.r.view_as(further)
    headers = mode | (torch.where(mode == 0, mark, r) << 2) | (further << 6)
    at = 32 + 8 * torch.arange(super_groups, device=device).expand_as(further)
    bits.put(words, rows.reshape(-1), at.reshape(-1), headers.view(-1))

    coded = choice.coded.view(slots, super_groups, GROUPS) & (mode > 0)[:, :, None]
    added = (choice.of_groups - choice.r[:, None]).view_as(coded) + 1
    group = torch.arange(GROUPS, device=device)
    mask = torch.where(
        (mode == 2)[:, :, None], coded.long() << group, torch.where(coded, added, 0) << (2 * group)
    ).sum(dim=2)
    mask_bits = torch.tensor(MASK_BITS, device=device)[mode]
    start = head_bits(super_groups)
    starts = _starts(mask_bits) + start
    shown = mask_bits > 0
    bits.put(words, rows[shown], starts[shown], mask[shown])

    of_slot, z, r_each = _coded_integers(q, coded, choice.of_groups.view_as(coded))
    zeros = (z >> r_each).clamp(max=ESCAPE)
    escaped = z >> r_each >= ESCAPE
    low_at, unary_at, escape_at, used = _regions(
        of_slot, start + mask_bits.sum(dim=1), r_each, zeros + 1, escaped
    )
    low = z & ((torch.ones_like(r_each) << r_each) - 1)
    bits.put(words, of_slot, low_at, low)
    bits.put(words, of_slot, unary_at + zeros, torch.ones_like(zeros))
    bits.put(words, of_slot[escaped], escape_at[escaped], z[escaped])
    words[:, 0] += number + (used << 8)
    return words


def read(words: Tensor, super_groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The inverse of `write` for (slots, words) int64: q, the first bytes, the further shifts and the marks, 0 where a
    super-group is not all zero."""
    slots, device = len(words), words.device
    at = 32 + 8 * torch.arange(super_groups, device=device).expand(slots, super_groups)
    rows = torch.arange(slots, device=device)[:, None].expand_as(at)
    headers = bits.get(words, rows.reshape(-1), at.reshape(-1), torch.full_like(at, 8).reshape(-1)).view_as(
        at
    )
    mode, r, further = headers & 3, headers >> 2 & 15, headers >> 6
    mark = torch.where(mode == 0, r, 0)

    mask_bits = torch.tensor(MASK_BITS, device=device)[mode]
    starts = _starts(mask_bits) + head_bits(super_groups)
    mask = bits.get(words, rows.reshape(-1), starts.view(-1), mask_bits.view(-1)).view_as(mode)
    group = torch.arange(GROUPS, device=device)
    by_two = mask[:, :, None] >> (2 * group) & 3
    coded = torch.where((mode == 2)[:, :, None], mask[:, :, None] >> group & 1, by_two) > 0
    coded = torch.where((mode == 1)[:, :, None], True, coded) & (mode > 0)[:, :, None]
    r_groups = r[:, :, None] + torch.where((mode == 3)[:, :, None], (by_two - 1).clamp(min=0), 0)

    q = torch.zeros(slots, super_groups, SUPER_GROUP, dtype=torch.int64, device=device)
    of_slot, _, r_each = _coded_integers(q, coded, r_groups)
    first = head_bits(super_groups) + mask_bits.sum(dim=1)
    per_slot = torch.zeros_like(first).index_add_(0, of_slot, torch.ones_like(of_slot))
    low_bits = torch.zeros_like(first).index_add_(0, of_slot, r_each)
    ends = bits.ones_from(words, first + low_bits, per_slot)
    before = torch.cat((ends.new_zeros(1), ends[:-1]))
    begins = torch.ones_like(of_slot, dtype=torch.bool)
    begins[1:] = of_slot[1:] != of_slot[:-1]
    before = torch.where(begins, (first + low_bits)[of_slot] - 1, before)
    zeros = ends - before - 1
    escaped = zeros >= ESCAPE
    low_at, _, escape_at, _ = _regions(of_slot, first, r_each, zeros + 1, escaped)
    z = (zeros << r_each) | bits.get(words, of_slot, low_at, r_each)
    whole = torch.full_like(r_each[escaped], 32)
    z[escaped] = bits.get(words, of_slot[escaped], escape_at[escaped], whole)
    q[coded.repeat_interleave(GROUP, dim=2).view_as(q)] = unzigzag(z)
    return q, words[:, 0] & 0xFF, further, mark


def _coded_integers(q: Tensor, coded: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slot, z and parameter of every coded coordinate, (coordinates,), in their order."""
    taken = coded.repeat_interleave(GROUP, dim=2).view_as(q)
    slot = torch.arange(len(q), device=q.device)[:, None, None].expand_as(q)
    return slot[taken], zigzag(q[taken]), r.repeat_interleave(GROUP, dim=2).view_as(q)[taken]


def _regions(
    slot: Tensor, first: Tensor, low: Tensor, unary: Tensor, escaped: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first bits of each coded coordinate's low bits, unary code and escape, and each slot's end, (slots,).

    `first`, (slots,), is where the slots' low bits begin; `low` and `unary` are lengths.
    """
    starts = []
    for length in (low, unary, 32 * escaped):
        total = torch.zeros_like(first).index_add_(0, slot, length)
        before = (total.cumsum(0) - total)[slot]
        starts.append(first[slot] + length.cumsum(0) - length - before)
        first = first + total
    return starts[0], starts[1], starts[2], first


def _starts(lengths: Tensor) -> Tensor:
    """The sums of the lengths before each one of its row."""
    return lengths.cumsum(dim=1) - lengths
