"""One round of the lattice codec, hop by hop.

Partial sums are integers, multiples of D·2^shift; all but the last worker of a chunk round their gradients to them, each with
another of n − 1 strata of the interval between two multiples. The last one, the sink, rounds once to multiples of c·D·2^(i/16),
dithered by bits that all ranks know and subtract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant, power_of_two
from gradwire.codecs.arithmetic.random import PER_COUNTER, WORD, Key, halves, philox4x32
from gradwire.codecs.collectives import Hops
from gradwire.codecs.lattice import bits, rice
from gradwire.codecs.lattice.logarithms import UNITS, power
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.options.dynamiq import SUPER_GROUP

LARGEST_SHIFT = 31
STEP_CODES = 256
"""Steps of a sink, 16 an octave."""

FINEST = 16
"""The number of the code of the step c·D: smaller ones are finer."""

_PER_CODE = UNITS // 16

_STRATUM, _ROUNDING, _DITHER, _SHIFT = 2, 0, 3, 4
"""Third words of the counters of random bits: shared by all ranks, private, shared, private."""


@dataclass(frozen=True)
class Draws:
    """The random bits of a round: 16 for every coordinate of a super-group."""

    key: Key
    rank: int

    def _of(self, super_groups: Tensor, rank: int, purpose: int) -> Tensor:
        per_row = SUPER_GROUP // PER_COUNTER
        counter = super_groups.reshape(-1, 1).clamp(min=0) * per_row + torch.arange(
            per_row, device=super_groups.device
        )
        zero = torch.zeros((), dtype=torch.int64, device=super_groups.device)
        words = philox4x32((counter & WORD, zero + rank, zero + purpose, zero), self.key)
        return halves(words).view(*super_groups.shape, SUPER_GROUP)

    def strata(self, super_groups: Tensor, index: int, count: int) -> Tensor:
        """Numbers in (0, 1) to add before rounding down, float32: in the stratum of the worker `index` of `count`, which
        differs from those of the others in every coordinate."""
        first = self._of(super_groups, 0, _STRATUM).to(torch.int64) * count >> 16
        within = self._of(super_groups, self.rank, _ROUNDING)
        place = ((first + index) % count << 16) + within
        return between_0_and_1(place, count)

    def dither(self, super_groups: Tensor) -> Tensor:
        """Numbers in (0, 1) that all ranks know, float32."""
        return between_0_and_1(self._of(super_groups, 0, _DITHER), 1)

    def below(self, super_groups: Tensor, shift: Tensor) -> Tensor:
        """Natural numbers below 2^shift, int64; `shift` has a number for each super-group."""
        drawn = self._of(super_groups, self.rank, _SHIFT).to(torch.int64)
        return (drawn << shift[..., None]) >> 16


def between_0_and_1(place: Tensor, count: int) -> Tensor:
    """(place + ½)/(count·2¹⁶) as float32, below 1."""
    each = constant(1 / (count << 16), place)
    return ((place.to(torch.float32) + 0.5) * each).clamp(max=1 - 2**-24)


@dataclass(frozen=True)
class Sum:
    """Partial sums of a chunk: integers `q`, (slots, super-groups, 256) int64, and by super-group their `shift` and
    `mark`, int64."""

    q: Tensor
    shift: Tensor
    mark: Tensor

    @cached_property
    def whole(self) -> Tensor:
        """The sums in multiples of D."""
        return self.q << self.shift[..., None]


@dataclass(frozen=True)
class Lattice:
    """The numbers of a round that all ranks share: log2 of D in units, () int64, or that of no step at all if all
    gradients are zero; bits of a slot by the number of contributions; the sink of each chunk, None if there is none."""

    step: Tensor
    nothing: Tensor
    sizes: Mapping[int, int]
    sinks: Sequence[int] | None
    workers: int
    coarser: int
    """log2 c in units."""


class LatticeHops(Hops):
    """Hops of a bucket on a lattice. `wanted` is told the bits that slots would have taken: the number of
    contributions, their sum and the number of slots."""

    def __init__(
        self,
        x: Tensor,
        slots: Slots,
        lattice: Lattice,
        draws: Draws,
        wanted: Callable[[int, Tensor, int], None],
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to."""
        self._x, self._slots, self._lattice, self._draws, self._wanted = x, slots, lattice, draws, wanted
        self._order = slots.order.to(x.device)
        self._sums: dict[int, Sum] = {}
        self._results: dict[int, Tensor] = {}
        padding = (int(slots.order.max()) + 1) * SUPER_GROUP - x.numel()
        self._all = torch.nn.functional.pad(x.to(torch.float32), (0, padding)).view(-1, SUPER_GROUP)

    def message_bytes(self, chunks: range, workers: int) -> int:
        size = self._lattice.sizes[workers]
        return len(chunks) * _message_bytes(self._slots.per_chunk, size)

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for chunk, part in self._parts(chunks, out, workers):
            found = self._sums.get(chunk)
            self._write(self._rounded(chunk, None) if found is None else found, chunk, part, workers)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._parts(chunks, message, workers):
            received, found = self._read(part, workers), self._sums.get(chunk)
            if found is not None:
                self._sums[chunk] = self._added(found, received, chunk)
            elif self._is_sink(chunk):
                self._sums[chunk] = received
            else:
                self._sums[chunk] = self._rounded(chunk, received)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if message is not None:
            self.accumulate(message, chunks, received)
        for chunk, part in self._parts(chunks, out, workers):
            self._seal(chunk, part, workers)
        self.decode(out, chunks, workers)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._parts(chunks, message, workers):
            if workers < self._lattice.workers:
                self._sums[chunk] = self._read(part, workers)
            else:
                self._results[chunk] = self._unsealed(chunk, part, workers)

    def finish(self) -> Tensor:
        every = torch.zeros_like(self._all)
        for chunk in range(self._slots.num_chunks):
            mean = self._results[chunk] if chunk in self._results else self._mean(chunk)
            there = self._order[chunk] >= 0
            every[self._order[chunk][there]] = mean[there]
        return every.view(-1)[: self._x.numel()].to(self._x.dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        parts = [self._ascending(chunk) for chunk in chunks]
        return torch.cat([self._all.new_empty(0), *parts])

    def _ascending(self, chunk: int) -> Tensor:
        """The mean of a chunk, in the order of its shard."""
        places = self._slots.ascending[chunk].to(self._x.device)
        mean = self._mean(chunk).view(-1, SUPER_GROUP)[places]
        return mean.view(-1)[: self._slots.shard(chunk).numel]

    def _parts(self, chunks: range, message: Tensor, workers: int) -> list[tuple[int, Tensor]]:
        """Each chunk with its part of a message."""
        return list(zip(chunks, message.view(len(chunks), -1), strict=True))

    def _is_sink(self, chunk: int) -> bool:
        return self._lattice.sinks is not None and self._lattice.sinks[chunk] == self._draws.rank

    def _rows(self, chunk: int) -> tuple[Tensor, Tensor]:
        """This worker's super-groups of a chunk, (slots, super-groups, 256) float32, zeros where one is not finite, and
        their marks."""
        order = self._order[chunk]
        rows = self._all[order.clamp(min=0)].masked_fill((order < 0)[..., None], 0.0)
        finite = rows.isfinite().all(dim=-1)
        rows = torch.where(finite[..., None], rows, 0.0)
        mark = torch.where(finite, rice.SILENT * (rows == 0).all(dim=-1), rice.BROKEN)
        return rows, mark

    def _rounded(self, chunk: int, received: Sum | None) -> Sum:
        """The sum of this worker's gradients, rounded, and what it has received."""
        rows, mark = self._rows(chunk)
        shift = torch.zeros_like(mark) if received is None else received.shift
        factor = power(-self._lattice.step) * power_of_two((127 - shift).to(torch.int32))
        sinks, workers, rank = self._lattice.sinks, self._lattice.workers, self._draws.rank
        index, count = (
            (rank, workers) if sinks is None else ((rank - sinks[chunk] - 1) % workers, workers - 1)
        )
        noise = self._draws.strata(self._order[chunk], index, count)
        q = (rows * factor[..., None] + noise).floor().to(torch.int64)
        if received is None:
            return Sum(q, shift, mark)
        return Sum(q + received.q, shift, joined(mark, received.mark))

    def _added(self, a: Sum, b: Sum, chunk: int) -> Sum:
        """The sum of two sums, with the larger shift of each super-group; exact at the sink."""
        if self._is_sink(chunk):
            none = torch.zeros_like(a.shift)
            return Sum(a.whole + b.whole, none, joined(a.mark, b.mark))
        shift = torch.maximum(a.shift, b.shift)
        a, b = self._shifted(a, shift, chunk), self._shifted(b, shift, chunk)
        return Sum(a.q + b.q, shift, joined(a.mark, b.mark))

    def _shifted(self, found: Sum, shift: Tensor, chunk: int) -> Sum:
        """The same sum with at least this shift, rounded at random."""
        shift = torch.maximum(found.shift, shift)
        more = shift - found.shift
        noise = self._draws.below(self._order[chunk], more)
        return replace(found, q=(found.q + noise) >> more[..., None], shift=shift)

    def _write(self, found: Sum, chunk: int, out: Tensor, workers: int) -> None:
        """Writes partial sums, shifted as far as it takes to fit."""
        size = self._lattice.sizes[workers]
        found = replace(found, q=found.q.masked_fill((found.mark == rice.BROKEN)[..., None], 0))
        least = (found.shift.amax(dim=1, keepdim=True) - rice.MOST_FURTHER).clamp(min=0)
        found = self._shifted(found, least.expand_as(found.shift), chunk)
        choice, wanted = _measured(found)
        self._wanted(workers, wanted.sum(), len(wanted))
        if bool((wanted > size).any()):
            found = self._made_to_fit(found, chunk, size, workers)
            choice = _measured(found)[0]
        base = found.shift.amin(dim=1)
        further = found.shift - base[:, None]
        bits.to_bytes(
            rice.write(found.q, choice, base, further, found.mark, size), out[: len(base) * size // 8]
        )
        out[len(base) * size // 8 :].zero_()

    def _made_to_fit(self, found: Sum, chunk: int, size: int, workers: int) -> Sum:
        """Sums whose slots all fit: of slots that do not, the first super-groups in an order that changes from hop to
        hop lose a bit, as few of them as suffice, or all of them several."""
        slots, num = found.shift.shape
        turn = turns(num, workers).to(found.q.device).expand(slots, num)
        place = torch.empty_like(turn).scatter_(
            1, turn, torch.arange(num, device=turn.device).expand_as(turn)
        )
        room = size - rice.head_bits(num) + num * rice.HEADER_BITS
        base, target = found.shift.amin(dim=1, keepdim=True), found.shift
        before = _measured(found)[0].num_bits.view(slots, num)
        over = before.sum(dim=1) > room
        for level in range(1, LARGEST_SHIFT + 1):
            if not bool(over.any()):
                break
            raised = self._shifted(found, (base + level).expand_as(target), chunk)
            after = _measured(raised)[0].num_bits.view(slots, num)
            saved = (before - after).gather(1, turn).cumsum(dim=1)
            enough = saved >= (before.sum(dim=1) - room)[:, None]
            first = torch.where(enough.any(dim=1), enough.to(torch.int8).argmax(dim=1), num)
            chosen = torch.maximum(found.shift, base + level - (place > first[:, None]).to(torch.int64))
            target = torch.where(over[:, None], chosen, target)
            before = torch.where(over[:, None], after, before)
            over = over & (after.sum(dim=1) > room)
        assert not bool(over.any()), "a slot that not even zeros fit into"
        return self._shifted(found, target, chunk)

    def _read(self, message: Tensor, workers: int) -> Sum:
        """The partial sums in a chunk's message."""
        q, base, further, mark = self._opened(message, workers)
        return Sum(q, base[:, None] + further, mark)

    def _opened(self, message: Tensor, workers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        slots = self._slots
        used = slots.per_chunk * self._lattice.sizes[workers] // 8
        return rice.read(bits.from_bytes(message[:used], slots.per_chunk), slots.super_groups)

    def _seal(self, chunk: int, out: Tensor, workers: int) -> None:
        """Writes the sum of all workers with the finest step at which each slot fits."""
        lattice, size = self._lattice, self._lattice.sizes[workers]
        rows, mark = self._rows(chunk)
        found = self._sums.pop(chunk)
        mark = joined(mark, found.mark)
        own = rows * power(-lattice.step - lattice.coarser)
        v = own + found.whole.to(torch.float32) * power(torch.full_like(lattice.step, -lattice.coarser))
        v = v.masked_fill((mark != 0)[..., None], 0.0)
        noise = self._draws.dither(self._order[chunk])
        noise = noise.masked_fill((mark != 0)[..., None], 0.0)

        def at(code: Tensor) -> tuple[Tensor, rice.Choice, Tensor]:
            q = (v * power(-_PER_CODE * (code - FINEST))[:, None, None] + noise).floor().to(torch.int64)
            choice, wanted = _measured(Sum(q, mark, mark))
            return q, choice, wanted

        slots = len(v)
        middle = torch.full((slots,), FINEST, dtype=torch.int64, device=v.device)
        self._wanted(workers, at(middle)[2].sum(), slots)
        low, high = torch.full_like(middle, -1), torch.full_like(middle, STEP_CODES - 1)
        for _ in range(STEP_CODES.bit_length() - 1):
            middle = (low + high) // 2
            fits = at(middle)[2] <= size
            low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
        q, choice, _ = at(high)
        words = rice.write(q, choice, high, torch.zeros_like(mark), mark, size)
        bits.to_bytes(words, out[: slots * size // 8])
        out[slots * size // 8 :].zero_()

    def _unsealed(self, chunk: int, message: Tensor, workers: int) -> Tensor:
        """The mean in a sealed message, (slots, super-groups, 256) float32."""
        q, code, _, mark = self._opened(message, workers)
        lattice = self._lattice
        step = power(lattice.step + lattice.coarser + _PER_CODE * (code - FINEST))
        value = (q.to(torch.float32) - self._draws.dither(self._order[chunk]) + 0.5) * step[:, None, None]
        return self._marked(value, mark)

    def _mean(self, chunk: int) -> Tensor:
        """The mean of complete partial sums that are not sealed."""
        found = self._sums[chunk]
        value, mark = found.whole.to(torch.float32) * power(self._lattice.step), found.mark
        if self._is_sink(chunk):
            rows, own = self._rows(chunk)
            value, mark = value + rows, joined(mark, own)
        return self._marked(value, mark)

    def _marked(self, total: Tensor, mark: Tensor) -> Tensor:
        """The mean from a sum, with what marks say of super-groups."""
        mean = total / constant(self._lattice.workers, total)
        silent = (mark == rice.SILENT) | self._lattice.nothing & (mark == 0)
        mean = mean.masked_fill(silent[..., None], 0.0)
        return mean.masked_fill((mark == rice.BROKEN)[..., None], torch.nan)


def joined(a: Tensor, b: Tensor) -> Tensor:
    """The marks of sums of two: broken if one is, silent if both are."""
    broken = (a == rice.BROKEN) | (b == rice.BROKEN)
    return torch.where(broken, rice.BROKEN, torch.where(a == b, a, 0))


def turns(count: int, workers: int) -> Tensor:
    """The order in which super-groups of a slot lose bits."""
    stride = 13 if count % 13 else 11
    return (stride * torch.arange(count, device="cpu") + 5 * workers) % count


def _padding(super_groups: int) -> int:
    """Bits that complete the headers' last word."""
    return rice.head_bits(super_groups) - 32 - super_groups * rice.HEADER_BITS


def _measured(found: Sum) -> tuple[rice.Choice, Tensor]:
    """The codes of super-groups, and the bits of each slot."""
    choice = rice.choose(found.q.reshape(-1, SUPER_GROUP))
    num = found.q.shape[1]
    return choice, choice.num_bits.view(-1, num).sum(dim=1) + 32 + _padding(num)


def _message_bytes(slots: int, size: int) -> int:
    return -(-slots * size // 8 // 16) * 16
