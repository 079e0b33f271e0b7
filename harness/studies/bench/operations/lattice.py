"""The lattice codec on a bucket that is one chunk, with either code of its slots.

`encode` writes a worker's own integers, `hop` adds them to a message and writes the sum. `seal` is all that
the sink does: it reads a message, seals the sum and decodes what it has sealed, as the others do by `unseal`.
`means` are those of complete sums that are not sealed, at the sink. Slots are as large as they need to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from gradwire.codecs.lattice.codec import CODES
from gradwire.codecs.lattice.compiled_hops import CompiledLatticeHops
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.hops import Grid, LatticeHops
from gradwire.codecs.lattice.logarithms import UNITS, log2_units
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.dynamiq import SUPER_GROUP
from gradwire.harness.studies.bench.operation import Case, Operation

WORKERS, RECEIVED, KEY, RANK = 8, 3, (0x1234_5678, 0x9ABC_DEF0), 1
"""`RECEIVED` of `WORKERS` workers have added their gradients to the message of a hop."""

SLOT = 64

STEPS = 2 * UNITS
"""log2 in units of how many steps D the root mean square of a gradient is: some 5 bits for the sums of 4."""

ONE = range(1)
"""The chunk."""


def operations() -> Iterator[Operation]:
    for code in CODES:
        for name, kernel, make, dtypes in (
            ("encode", "hop", _encode, BOTH),
            ("hop", "hop", _hop, BOTH),
            ("seal", "seal", _seal, BOTH),
            ("unseal", "unseal", _unseal, BOTH[:1]),
        ):
            yield Operation(
                f"lattice.{name}.{code}", (f"lattice_{kernel}",), partial(_made, make, code), dtypes=dtypes
            )
    yield Operation("lattice.means", ("lattice_means",), partial(_made, _means, "rice"), dtypes=BOTH[:1])


BOTH = ("float32", "bfloat16")


@dataclass
class _LatticeChunk:
    """A bucket as one chunk, with the sizes of slots by the number of contributions."""

    x: Tensor
    code: str
    sizes: dict[int, int] = field(default_factory=dict)
    _wanted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        with self._sized(1):
            self._encoded(self.hops(), 1)
        with self._sized(RECEIVED):
            self._encoded(self.received(), RECEIVED)
        message = self.message(RECEIVED)
        with self._sized(RECEIVED + 1):
            out = self.out(RECEIVED + 1)
            self.hops().accumulate_encode(message, ONE, out, RECEIVED, RECEIVED + 1)
        with self._sized(WORKERS - 1):
            self._encoded(self.received(WORKERS - 1), WORKERS - 1)
        message = self.message(WORKERS - 1)
        with self._sized(WORKERS):
            self.hops(sink=True).seal(message, ONE, self.out(WORKERS), WORKERS - 1, WORKERS)

    @contextmanager
    def _sized(self, workers: int) -> Iterator[None]:
        """Slots of these messages are as large as may be in the block, then as large as they had to be."""
        self.sizes[workers] = 32 * SUPER_GROUP * self.slots.super_groups
        yield
        self.sizes[workers] = 32 * -(-int(self._wanted.max()) // 32)

    @cached_property
    def slots(self) -> Slots:
        return Slots(self.x.numel(), 1, SLOT)

    @cached_property
    def step(self) -> Tensor:
        """log2 of D in units."""
        return log2_units(self.x.float().square().mean().sqrt()) - STEPS

    def hops(self, *, x: Tensor | None = None, sink: bool = False) -> LatticeHops:
        """The bucket's hops at some worker, or at the chunk's sink; new ones, which hold nothing."""
        x = self.x if x is None else x
        nothing = torch.zeros((), dtype=torch.bool, device=x.device)
        grid = Grid(self.step, nothing, self.sizes, [RANK if sink else RANK - 1], WORKERS)
        draws, library = Draws(KEY, RANK), library_for(x.device)
        if library is None:
            return LatticeHops(x, self.slots, grid, CODES[self.code], draws, self._count)
        return CompiledLatticeHops(x, self.slots, grid, self.code == "packed", draws, self._count, library)

    def received(self, workers: int = RECEIVED) -> LatticeHops:
        """Hops of a bucket that is as large as the sum of so many."""
        return self.hops(x=self.x.flip(0) * workers**0.5)

    def message(self, workers: int) -> Tensor:
        """A message with the sum of so many workers' gradients."""
        return self._encoded(self.received(workers), workers)

    def out(self, workers: int) -> Tensor:
        """Memory for a message."""
        size = self.hops().message_bytes(ONE, workers)
        return torch.empty(size, dtype=torch.uint8, device=self.x.device)

    def _encoded(self, hops: LatticeHops, workers: int) -> Tensor:
        out = self.out(workers)
        hops.encode(ONE, out, workers)
        return out

    def _count(self, workers: int, wanted: Tensor) -> None:
        self._wanted = wanted


def _made(make: Callable[[_LatticeChunk], Case], code: str, x: Tensor) -> Case:
    return make(_LatticeChunk(x, code))


def _encode(chunk: _LatticeChunk) -> Case:
    hops, out = chunk.hops(), chunk.out(1)
    return Case(lambda: hops.encode(ONE, out, 1), (chunk.x,), (out,))


def _hop(chunk: _LatticeChunk) -> Case:
    message, out, hops = chunk.message(RECEIVED), chunk.out(RECEIVED + 1), chunk.hops()
    keeps_sums = not isinstance(hops, CompiledLatticeHops)

    def run() -> None:
        used = chunk.hops() if keeps_sums else hops
        used.accumulate_encode(message, ONE, out, RECEIVED, RECEIVED + 1)

    return Case(run, (chunk.x, message), (out,))


def _seal(chunk: _LatticeChunk) -> Case:
    hops, message, out = chunk.hops(sink=True), chunk.message(WORKERS - 1), chunk.out(WORKERS)
    run = partial(hops.seal, message, ONE, out, WORKERS - 1, WORKERS)
    return Case(run, (chunk.x, message), (out, torch.empty_like(chunk.x, dtype=torch.float32)))


def _unseal(chunk: _LatticeChunk) -> Case:
    hops, out = chunk.hops(sink=True), chunk.out(WORKERS)
    hops.seal(chunk.message(WORKERS - 1), ONE, out, WORKERS - 1, WORKERS)
    return Case(partial(hops.decode, out, ONE, WORKERS), (out,), (hops.finish(),))


def _means(chunk: _LatticeChunk) -> Case:
    hops = chunk.hops(sink=True)
    hops.accumulate(chunk.message(WORKERS - 1), ONE, WORKERS - 1)
    return Case(hops.finish, (chunk.x, torch.empty_like(chunk.x, dtype=torch.int32)), (hops.finish(),))
