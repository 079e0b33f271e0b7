"""Hops of the lattice codec by every implementation of its kernels: messages, counts and means of buckets of
any kind are those of the definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import assert_same
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.lattice.codec import CODES
from gradwire.codecs.lattice.compiled_hops import CompiledLatticeHops
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.hops import Grid, LatticeHops
from gradwire.codecs.lattice.logarithms import log2_units
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.native.call import KernelError, run
from gradwire.codecs.native.choice import library_for

WORKERS, CHUNKS = 4, 2
SINKS = [3, 2]
"""The sinks of the two chunks; the other workers' order is that of their ranks."""

KEY: Key = (0x1234_5678, 0xDEAD_BEEF)

NUMEL = 20_011

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
every_code = pytest.mark.parametrize("code", CODES)


def bucket(seed: int, numel: int, dtype: torch.dtype, offset: int, special: bool) -> Tensor:
    """Heavy-tailed gradients with super-groups of zeros, whose memory begins `offset` elements after a
    multiple of 16 bytes."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=draw) * (2 * torch.randn(numel, generator=draw)).exp()
    rows = torch.arange(numel) // 256
    x *= (rows % 7 > 0) * (1.0 + 3 * (rows % 3))
    x[rows % 11 == 2] *= 1e-3
    x[5::4001] *= 300.0
    if special:
        for place, value in enumerate((torch.nan, torch.inf, -0.0, 1e-42)):
            x[1300 * (place + 1) + 77 * seed] = value
        x[rows == 7] = -0.0
    memory = torch.zeros(numel + 16, dtype=dtype)
    memory[offset : offset + numel] = x.to(dtype)
    return memory[offset : offset + numel]


class Worker:
    """A rank's hops of its bucket. `sizes` are bits of a slot by the number of contributions; without
    `sinks` messages are collected."""

    def __init__(
        self,
        rank: int,
        x: Tensor,
        code: str,
        slot: int,
        sizes: dict[int, int],
        sinks: Sequence[int] | None = SINKS,
        key_place: Tensor | None = None,
    ) -> None:
        self.slots, self.sizes, self.wanted = Slots(x.numel(), CHUNKS, slot), sizes, list[Tensor]()
        step = log2_units(torch.tensor(0.25))
        grid = Grid(step, torch.tensor(False), sizes, sinks, WORKERS)
        draws, library = Draws(KEY, rank), library_for(x.device)
        made = (
            LatticeHops(x, self.slots, grid, CODES[code], draws, self._count)
            if library is None
            else CompiledLatticeHops(
                x, self.slots, grid, code == "packed", draws, self._count, library, key_place
            )
        )
        self.hops: LatticeHops = made

    def _count(self, workers: int, wanted: Tensor) -> None:
        self.wanted.append(wanted.clone())

    def out(self, chunk: int, workers: int) -> Tensor:
        """Memory for a message, whose contents do not matter."""
        size = self.hops.message_bytes(range(chunk, chunk + 1), workers)
        return torch.full((size,), 0x5B, dtype=torch.uint8)


def passed_on(xs: Sequence[Tensor], code: str, slot: int, sizes: dict[int, int]) -> list[Tensor]:
    """All that workers send, count and find where chunks travel along a ring, then where sums are added to
    sums, then where all is collected."""
    found = list[Tensor]()
    ring = [Worker(rank, x, code, slot, sizes) for rank, x in enumerate(xs)]
    for chunk, sink in enumerate(SINKS):
        only, received = range(chunk, chunk + 1), None
        for workers, rank in enumerate((rank for rank in range(WORKERS) if rank != sink), start=1):
            out = ring[rank].out(chunk, workers)
            if received is None:
                ring[rank].hops.encode(only, out, workers)
            else:
                ring[rank].hops.accumulate_encode(received, only, out, workers - 1, workers)
            received = out
            found.append(out)
        sealed = ring[sink].out(chunk, WORKERS)
        ring[sink].hops.seal(received, only, sealed, WORKERS - 1, WORKERS)
        found.append(sealed)
        for rank in set(range(WORKERS)) - {sink}:
            ring[rank].hops.decode(sealed, only, WORKERS)
    found += [worker.hops.finish() for worker in ring]
    found += [counted for worker in ring for counted in worker.wanted]
    found += _added(xs, code, slot, sizes, SINKS)
    return [*found, *_added(xs, code, slot, sizes, None)]


def _added(
    xs: Sequence[Tensor], code: str, slot: int, sizes: dict[int, int], sinks: Sequence[int] | None
) -> Iterator[Tensor]:
    """Worker 1 receives from worker 0, and adds what another has of the same; what it then sends, the mean
    that its sink finds without a seal, and that of sums that are received as they are."""
    only = range(1)
    workers = [Worker(rank, x, code, slot, sizes, sinks) for rank, x in enumerate(xs)]
    first, other = workers[0].out(0, 1), workers[2].out(0, 1)
    workers[0].hops.encode(only, first, 1)
    workers[2].hops.encode(only, other, 1)
    workers[1].hops.accumulate(first, only, 1)
    workers[1].hops.accumulate(other, only, 1)
    sent = workers[1].out(0, 3)
    workers[1].hops.encode(only, sent, 3)
    yield from (first, other, sent)
    workers[3].hops.accumulate(sent, only, 3)
    workers[3].hops.accumulate(first, only, 1)
    yield workers[3].hops.shard([0])
    workers[0].hops.decode(sent, only, 3)
    yield workers[0].hops.shard([0])
    yield from (counted for worker in workers for counted in worker.wanted)


def sizes_of(bits: float, slot: int, numel: int = NUMEL) -> dict[int, int]:
    """Slots of so many bits per coordinate, more for sums of more."""
    each = 256 * Slots(numel, CHUNKS, slot).super_groups
    return {workers: 32 * int(each * bits * (1 + workers / 9) / 32) for workers in range(1, WORKERS + 1)}


def compare(name: str, *given: Any) -> None:
    expected = defined(passed_of, *given)
    with implementation(name):
        actual = passed_of(*given)
    assert len(actual) == len(expected)
    for own, wanted in zip(actual, expected, strict=True):
        assert_same(own, wanted)


def passed_of(
    dtype: torch.dtype, offset: int, special: bool, code: str, slot: int, bits: float, numel: int
) -> list[Tensor]:
    xs = [bucket(rank, numel, dtype, offset, special) for rank in range(WORKERS)]
    return passed_on(xs, code, slot, sizes_of(bits, slot, numel))


@every_implementation
@every_code
@pytest.mark.parametrize(
    ("dtype", "offset"), [(torch.float32, 0), (torch.float32, 1), (torch.bfloat16, 0), (torch.bfloat16, 3)]
)
def test_buckets_of_any_dtype_anywhere(name: str, code: str, dtype: torch.dtype, offset: int) -> None:
    compare(name, dtype, offset, False, code, 16, 7.0, NUMEL)


@every_implementation
@every_code
@pytest.mark.parametrize("bits", [2.0, 4.0])
def test_sums_that_do_not_fit(name: str, code: str, bits: float) -> None:
    compare(name, torch.float32, 0, True, code, 64, bits, NUMEL)


@every_implementation
@every_code
@pytest.mark.parametrize(("slot", "bits"), [(128, 24.0), (32, 12.0)])
def test_messages_longer_than_what_a_block_keeps(name: str, code: str, slot: int, bits: float) -> None:
    compare(name, torch.float32, 0, True, code, slot, bits, 66_000)


@every_implementation
@every_code
@pytest.mark.parametrize("numel", [2048, 2049, 3000])
def test_slots_with_empty_places(name: str, code: str, numel: int) -> None:
    compare(name, torch.float32, 0, False, code, 16, 9.0, numel)


@every_implementation
@every_code
def test_the_key_may_lie_in_memory(name: str, code: str) -> None:
    """A message depends on the two words there, not on those among the arguments."""
    x, sizes = bucket(0, 4096, torch.float32, 0, False), sizes_of(9.0, 16, 4096)
    place = torch.tensor(KEY, dtype=torch.int64).to(torch.int32)
    messages = []
    with implementation(name):
        for key_place in (None, place, place + 1):
            worker = Worker(0, x, code, 16, sizes, key_place=key_place)
            messages.append(worker.out(0, 1))
            worker.hops.encode(range(1), messages[-1], 1)
    assert torch.equal(messages[0], messages[1]) and not torch.equal(messages[0], messages[2])


@pytest.mark.parametrize("name", ["base", "emulated"])
def test_a_message_that_begins_elsewhere_is_refused(name: str) -> None:
    message = torch.zeros(64 + 4, dtype=torch.uint8)[4:]
    with implementation(name):
        library = library_for(message.device)
        assert library is not None
        with pytest.raises(KernelError, match="a multiple of 16 bytes"):
            run(
                library,
                "lattice_unseal",
                message.device,
                order=(torch.zeros(1, dtype=torch.int64), 1),
                step=(torch.zeros(1, dtype=torch.int64), 1),
                message_in=(message, 64),
                size_in=512,
                means=(torch.zeros(256), 256),
                nothing=(torch.zeros(1, dtype=torch.uint8), 1),
                numel=256,
                slots=1,
                super_groups=1,
                workers=2,
                count=1,
            )
