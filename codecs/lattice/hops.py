"""One round of the lattice codec, hop by hop.

Partial sums are integers, multiples of D·2^shift; all but the last worker of a chunk round their gradients
to them, each with another of n − 1 strata of the interval between two multiples. The last one, the sink,
rounds once (`sink`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant, power_of_two
from gradwire.codecs.collectives import Hops, align
from gradwire.codecs.lattice import bits
from gradwire.codecs.lattice.codes import BROKEN, SILENT, SlotCode
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.logarithms import power
from gradwire.codecs.lattice.sink import coarser, finest, relative_step
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.lattice.sums import Shifts, Sum, exactly_added, joined
from gradwire.codecs.options.dynamiq import SUPER_GROUP


@dataclass(frozen=True)
class Grid:
    """The numbers of a round that all ranks share: log2 of D in units, () int64; whether there is `nothing`
    but zeros, () bool; bits of a slot by the number of contributions; and the sink of each chunk, None if
    messages are collected."""

    step: Tensor
    nothing: Tensor
    sizes: Mapping[int, int]
    sinks: Sequence[int] | None
    workers: int


Counter = Callable[[int, Tensor], None]
"""Is told the bits that slots would have taken, (slots,), and before that the number of contributions."""


class LatticeHops(Hops):
    """Hops of a bucket on a lattice."""

    def __init__(
        self, x: Tensor, slots: Slots, grid: Grid, code: SlotCode, draws: Draws, count: Counter
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to."""
        self._x, self._slots, self._grid, self._code, self._draws = x, slots, grid, code, draws
        self._count = count
        self._order = slots.order.to(x.device)
        self._sums: dict[int, Sum] = {}
        self._results: dict[int, Tensor] = {}
        self._additions = [0] * slots.num_chunks
        padding = -x.numel() % SUPER_GROUP
        self._all = torch.nn.functional.pad(x.to(torch.float32), (0, padding)).view(-1, SUPER_GROUP)

    def message_bytes(self, chunks: range, workers: int) -> int:
        size = self._grid.sizes.get(workers, 0)  # of sealed messages where there are none
        return len(chunks) * align(self._slots.per_chunk * size // 8)

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for chunk, part in self._parts(chunks, out):
            found = self._sums.get(chunk)
            found = self._rounded(chunk, None) if found is None else found
            size, shifts = self._grid.sizes[workers], self._shifts(chunk)
            found, wanted = shifts.fitted(found, self._code, size, workers)
            self._count(workers, wanted)
            base = found.shift.amin(dim=1)
            further = found.shift - base[:, None]
            self._fill(part, self._code.write(found.q, base, further, found.mark, size))

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._parts(chunks, message):
            received, found = self._read(part, workers), self._sums.get(chunk)
            if found is None:
                is_last = self._is_sink(chunk)
                self._sums[chunk] = received if is_last else self._rounded(chunk, received)
            elif self._is_sink(chunk) or self._grid.sinks is None:
                self._sums[chunk] = exactly_added(found, received)
            else:
                self._additions[chunk] += 1
                turn = 1 + self._additions[chunk]
                self._sums[chunk] = self._shifts(chunk).added(found, received, turn)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if message is not None:
            self.accumulate(message, chunks, received)
        for chunk, part in self._parts(chunks, out):
            self._seal(chunk, part, workers)
        self.decode(out, chunks, workers)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._parts(chunks, message):
            if workers < self._grid.workers:
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
        return torch.cat([torch.empty(0, device=self._x.device), *parts])

    def _ascending(self, chunk: int) -> Tensor:
        """The mean of a chunk, in the order of its shard."""
        places = self._slots.ascending[chunk].to(self._x.device)
        mean = self._mean(chunk).view(-1, SUPER_GROUP)[places]
        return mean.view(-1)[: self._slots.shard(chunk).numel]

    def _parts(self, chunks: range, message: Tensor) -> list[tuple[int, Tensor]]:
        """Each chunk with its part of a message."""
        return list(zip(chunks, message.view(len(chunks), -1), strict=True))

    def _is_sink(self, chunk: int) -> bool:
        return self._grid.sinks is not None and self._grid.sinks[chunk] == self._draws.rank

    def _shifts(self, chunk: int) -> Shifts:
        return Shifts(self._draws, self._order[chunk])

    def _rows(self, chunk: int) -> tuple[Tensor, Tensor]:
        """This worker's super-groups of a chunk, (slots, super-groups, 256) float32, zeros where one is not
        finite, and their marks."""
        order = self._order[chunk]
        rows = self._all[order.clamp(min=0)].masked_fill((order < 0)[..., None], 0.0)
        finite = rows.isfinite().all(dim=-1)
        rows = torch.where(finite[..., None], rows, 0.0)
        mark = torch.where(finite, SILENT * (rows == 0).all(dim=-1), BROKEN)
        return rows, mark

    def _rounded(self, chunk: int, received: Sum | None) -> Sum:
        """The sum of this worker's gradients, rounded, and what it has received."""
        rows, mark = self._rows(chunk)
        shift = torch.zeros_like(mark) if received is None else received.shift
        factor = power(-self._grid.step) * power_of_two((127 - shift).to(torch.int32))
        sinks, workers, rank = self._grid.sinks, self._grid.workers, self._draws.rank
        if sinks is None:
            noise = self._draws.strata(self._order[chunk], rank, workers)
        else:
            after_sink = (rank - sinks[chunk] - 1) % workers
            noise = self._draws.strata(self._order[chunk], after_sink, workers - 1)
        q = (rows * factor[..., None] + noise).floor().to(torch.int64)
        if received is None:
            return Sum(q, shift, mark)
        return Sum(q + received.q, shift, joined(mark, received.mark))

    def _read(self, message: Tensor, workers: int) -> Sum:
        """The partial sums in a chunk's message."""
        q, base, further, mark = self._opened(message, workers)
        return Sum(q, base[:, None] + further, mark)

    def _opened(self, message: Tensor, workers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        slots = self._slots
        used = slots.per_chunk * self._grid.sizes[workers] // 8
        return self._code.read(bits.from_bytes(message[:used], slots.per_chunk), slots.super_groups)

    def _fill(self, out: Tensor, words: Tensor) -> None:
        """Writes slots to a message, whose end is zeros."""
        used = 4 * words.numel()
        bits.to_bytes(words, out[:used])
        out[used:].zero_()

    def _seal(self, chunk: int, out: Tensor, workers: int) -> None:
        """Writes the sum of all workers with the finest step at which each slot fits."""
        rows, mark = self._rows(chunk)
        found, size = self._sums.pop(chunk), self._grid.sizes[workers]
        mark = joined(mark, found.mark)
        c = coarser(workers)
        own = rows * power(-self._grid.step - c)
        v = own + found.whole.to(torch.float32) * power(torch.full_like(self._grid.step, -c))
        noise = self._draws.dither(self._order[chunk])
        marked = (mark != 0)[..., None]
        q, number, wanted = finest(
            v.masked_fill(marked, 0.0), noise.masked_fill(marked, 0.0), self._code, size
        )
        self._count(workers, wanted)
        self._fill(out, self._code.write(q, number, torch.zeros_like(mark), mark, size))

    def _unsealed(self, chunk: int, message: Tensor, workers: int) -> Tensor:
        """The mean in a sealed message, (slots, super-groups, 256) float32."""
        q, number, _, mark = self._opened(message, workers)
        value = q.to(torch.float32) - self._draws.dither(self._order[chunk]) + 0.5
        value = value * power(self._grid.step + coarser(workers)) * relative_step(number)[:, None, None]
        return self._marked(value, mark)

    def _mean(self, chunk: int) -> Tensor:
        """The mean of complete partial sums that are not sealed."""
        found = self._sums[chunk]
        value, mark = found.whole.to(torch.float32) * power(self._grid.step), found.mark
        if self._is_sink(chunk):
            rows, own = self._rows(chunk)
            value, mark = value + rows, joined(mark, own)
        return self._marked(value, mark)

    def _marked(self, total: Tensor, mark: Tensor) -> Tensor:
        """The mean from a sum, with what marks say of super-groups."""
        mean = total / constant(self._grid.workers, total)
        silent = (mark == SILENT) | self._grid.nothing & (mark == 0)
        mean = mean.masked_fill(silent[..., None], 0.0)
        return mean.masked_fill((mark == BROKEN)[..., None], torch.nan)
