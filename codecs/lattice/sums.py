"""Partial sums of a chunk, and how they lose bits until they fit into their slots.

Halving integers at random, up or down, leaves their mean as it is: sums that take too many bits go on as
multiples of 2·D, 4·D, … in as few super-groups as suffice, and stay unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradwire.codecs.lattice.codes import BROKEN, MOST_FURTHER, SlotCode, slot_bits
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.options.dynamiq import SUPER_GROUP

LARGEST_SHIFT = 31


@dataclass(frozen=True)
class Sum:
    """Partial sums of a chunk: integers `q`, (slots, super-groups, 256) int64, and by super-group their
    `shift` and `mark`, int64."""

    q: Tensor
    shift: Tensor
    mark: Tensor

    @cached_property
    def whole(self) -> Tensor:
        """The sums in multiples of D."""
        return self.q << self.shift[..., None]


@dataclass(frozen=True)
class Shifts:
    """Shifts of a chunk's super-groups, whose places in the bucket are `order`, (slots, super-groups). A rank
    shifts a sum once in each `turn` at most, so that its random bits are fresh ones: turns 0 and 1 are for
    what it sends."""

    draws: Draws
    order: Tensor

    def shifted(self, found: Sum, shift: Tensor, turn: int) -> Sum:
        """A sum with at least this shift, rounded at random."""
        shift = torch.maximum(found.shift, shift)
        more = shift - found.shift
        noise = self.draws.below(self.order, more, turn)
        return replace(found, q=(found.q + noise) >> more[..., None], shift=shift)

    def fitted(self, found: Sum, code: SlotCode, size: int, workers: int) -> tuple[Sum, Tensor]:
        """Sums of `workers` contributions as slots of `size` bits can hold them, and the bits that each slot
        would have taken, (slots,)."""
        found = replace(found, q=found.q.masked_fill((found.mark == BROKEN)[..., None], 0))
        least = (found.shift.amax(dim=1, keepdim=True) - MOST_FURTHER).clamp(min=0)
        found = self.shifted(found, least.expand_as(found.shift), 0)
        wanted = slot_bits(lengths(found, code))
        if not bool((wanted > size).any()):
            return found, wanted
        target, over = self._targets(found, code, size, workers)
        shifted = self.shifted(found, target, 1)
        # Even the largest shift may leave a few −1: too many, perhaps, for the smallest slots.
        return replace(shifted, q=shifted.q.masked_fill(over[:, None, None], 0)), wanted

    def _targets(self, found: Sum, code: SlotCode, size: int, workers: int) -> tuple[Tensor, Tensor]:
        """Shifts with which all slots fit, and the slots that do not even with the largest ones. In slots
        that do not fit the first super-groups, in an order that changes from hop to hop, lose a bit, as
        few of them as suffice, or all of them several."""
        slots, num = found.shift.shape
        turn = turns(num, workers).to(found.q.device).expand(slots, num)
        ranks = torch.arange(num, device=turn.device).expand_as(turn)
        place = torch.empty_like(turn).scatter_(1, turn, ranks)
        base, target = found.shift.amin(dim=1, keepdim=True), found.shift
        room = size - slot_bits(torch.zeros_like(target))
        before = lengths(found, code)
        over = before.sum(dim=1) > room
        for level in range(1, LARGEST_SHIFT + 1):
            if not bool(over.any()):
                break
            raised = self.shifted(found, (base + level).expand_as(target), 1)
            after = lengths(raised, code)
            saved = (before - after).gather(1, turn).cumsum(dim=1)
            enough = saved >= (before.sum(dim=1) - room)[:, None]
            first = torch.where(enough.any(dim=1), enough.to(torch.int8).argmax(dim=1), num)
            chosen = torch.maximum(found.shift, base + level - (place > first[:, None]).to(torch.int64))
            target = torch.where(over[:, None], chosen, target)
            before = torch.where(over[:, None], after, before)
            over = over & (after.sum(dim=1) > room)
        return target, over

    def added(self, a: Sum, b: Sum, turn: int) -> Sum:
        """The sum of two sums, with the larger shift of each super-group; `turn` is 2 or more."""
        shift = torch.maximum(a.shift, b.shift)
        a, b = self.shifted(a, shift, turn), self.shifted(b, shift, turn)
        return Sum(a.q + b.q, shift, joined(a.mark, b.mark))


def exactly_added(a: Sum, b: Sum) -> Sum:
    """The sum of two sums, in multiples of D."""
    return Sum(a.whole + b.whole, torch.zeros_like(a.shift), joined(a.mark, b.mark))


def lengths(found: Sum, code: SlotCode) -> Tensor:
    """Bits of each super-group, (slots, super-groups)."""
    return code.lengths(found.q.reshape(-1, SUPER_GROUP)).view(found.shift.shape)


def joined(a: Tensor, b: Tensor) -> Tensor:
    """The marks of sums of two: broken if one is, silent if both are."""
    broken = (a == BROKEN) | (b == BROKEN)
    return torch.where(broken, BROKEN, torch.where(a == b, a, 0))


def turns(count: int, workers: int) -> Tensor:
    """The order in which super-groups of a slot lose bits."""
    stride = 13 if count % 13 else 11
    return (stride * torch.arange(count, device="cpu") + 5 * workers) % count
