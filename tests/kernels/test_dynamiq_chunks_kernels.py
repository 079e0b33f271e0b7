"""DynamiQ's hops of several chunks in one call: the bytes and values of a call for each chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from dynamiq_hops_cases import CODERS, make_coder
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import assert_same, gradient, poisoned
from torch import Tensor

from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq.definition import Coder, OrderedChunk
from gradwire.codecs.dynamiq.format import num_super_groups, numbers_of, used_bytes
from gradwire.codecs.dynamiq.hops import Hop, make_hop
from gradwire.codecs.dynamiq.native import ChunkSizes, NativeHop
from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.dynamiq import SUPER_GROUP

FEW = (3, 0, 9, 1)
"""The super-groups of chunks, one without any."""
MANY = (2, 1, 0, 3, 2, 1, 5, 1, 1, 2, 2, 0, 1, 1, 4, 1, 1, 2, 3, 1)
"""More chunks than a launch can have."""

Run = Callable[..., None]


@dataclass
class Bucket:
    """A bucket of chunks with these numbers of super-groups, each with counts of its own."""

    sizes: tuple[int, ...]
    coder: Coder
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.numel = sum(self.sizes) * SUPER_GROUP - 37
        total = num_super_groups(self.numel)
        self.order = torch.randperm(total, generator=generator).int()
        self.mean = torch.randn(total, generator=generator) * 1e-3
        widths = self.coder.format.widths
        picks = [torch.randint(len(widths), (size,), generator=generator) for size in self.sizes]
        self.counts = [{w: int((pick == i).sum()) for i, w in enumerate(widths)} for pick in picks]
        used = (used_bytes(counts, self.coder.format) for counts in self.counts)
        self.bytes = [align(each) + 32 if size else 0 for each, size in zip(used, self.sizes, strict=True)]
        self.numbers = torch.stack([numbers_of(counts, self.order.device) for counts in self.counts])

    def parts(self, lengths: list[int] | tuple[int, ...]) -> list[slice]:
        return [slice(a, b) for a, b in pairwise((0, *accumulate(lengths)))]

    def separate(self) -> Run:
        """A hop for each chunk."""
        hops = [
            make_hop(
                self.numel, self.dtype, OrderedChunk(self.order[r], self.mean[r], self.numbers[i]), self.coder
            )
            for i, r in enumerate(self.parts(self.sizes))
        ]

        def run(**given: Tensor) -> None:
            places = zip(hops, self.parts(self.sizes), self.parts(self.bytes), strict=True)
            for hop, rows, message in places:
                cut = {"sums": rows, "new_sums": rows, "incoming": message, "outgoing": message}
                own = {name: value[cut[name]] if name in cut else value for name, value in given.items()}
                if rows.stop > rows.start:
                    hop.run(**own)

        return run

    def together(self) -> Hop:
        library = library_for(self.order.device)
        assert library is not None
        sizes = ChunkSizes(library, list(zip(self.sizes, self.bytes, strict=True))).of(range(len(self.sizes)))
        chunks = OrderedChunk(self.order, self.mean, self.numbers)
        return NativeHop(library, self.numel, self.dtype, chunks, self.coder, sizes)

    def message(self, seed: int) -> Tensor:
        return poisoned(sum(self.bytes), torch.uint8, seed)

    def rows(self, seed: int) -> Tensor:
        return poisoned(len(self.order) * SUPER_GROUP, torch.float32, seed).view(-1, SUPER_GROUP)


def all_hops(bucket: Bucket, run: Run, x: Tensor, seed: int) -> list[Tensor]:
    """The outputs of every kind of hop."""
    leaf, passed, again, sealed = (bucket.message(seed) for _ in range(4))
    sums, decoded = bucket.rows(seed), bucket.rows(seed)
    results = [poisoned(bucket.numel, bucket.dtype, seed) for _ in range(4)]
    run(x=x, outgoing=leaf)
    run(x=x, incoming=leaf, outgoing=passed)
    run(x=x, incoming=leaf, new_sums=sums)
    run(sums=sums, outgoing=again)
    run(incoming=passed, new_sums=decoded)
    run(incoming=passed, result=results[0])
    run(sums=sums, result=results[1])
    run(sums=sums, incoming=leaf, outgoing=sealed, result=results[2])
    run(x=x, outgoing=leaf, result=results[3])
    return [leaf, passed, again, sealed, sums, decoded, *results]


def separately(settings: str, sizes: tuple[int, ...], x: Tensor) -> list[Tensor]:
    bucket = Bucket(sizes, make_coder(1, 5, **CODERS[settings]), x.dtype)
    return all_hops(bucket, bucket.separate(), x, 0)


def compare(name: str, settings: str, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    x = gradient("heavy_tail", sum(sizes) * SUPER_GROUP - 37).to(dtype)
    expected = defined(separately, settings, sizes, x)
    with implementation(name):
        bucket = Bucket(sizes, make_coder(1, 5, **CODERS[settings]), dtype)
        found = all_hops(bucket, bucket.together().run, x, 1)
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("settings", ["paper", "plus", "uniform", "bf16_ceil", "group_32"])
def test_chunks_together_give_what_each_gives(name: str, settings: str) -> None:
    compare(name, settings, FEW, torch.float32)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_many_chunks(name: str) -> None:
    compare(name, "every_width", MANY, torch.bfloat16)


@pytest.mark.parametrize("name", ["v3", "small"])
def test_more_rows_than_a_turn_of_the_grid_has(name: str) -> None:
    compare(name, "paper", (150, 0, 301), torch.bfloat16)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("wrong", [0, 2])
def test_wrong_counts_give_nan_in_their_chunk_alone(name: str, wrong: int) -> None:
    bucket, right = (Bucket(FEW, make_coder(0, 4)) for _ in range(2))
    bucket.numbers[wrong, 2] += 1
    x = gradient("normal", bucket.numel)
    with implementation(name):
        outputs = []
        for each in (bucket, right):
            leaf, sealed = each.message(0), each.message(0)
            results = [poisoned(each.numel, torch.float32) for _ in range(2)]
            right.together().run(x=x, outgoing=leaf)
            hop = each.together()
            hop.run(incoming=leaf, result=results[0])
            hop.run(x=x, incoming=leaf, outgoing=sealed, result=results[1])
            outputs.append((sealed, *results))
    for (sealed, *means), (sound, *others) in [outputs]:
        for chunk, (rows, part) in enumerate(zip(bucket.parts(FEW), bucket.parts(bucket.bytes), strict=True)):
            places = bucket.order[rows][:, None] * SUPER_GROUP + torch.arange(SUPER_GROUP)
            places = places[places < bucket.numel]
            for mean, other in zip(means, others, strict=True):
                if chunk == wrong:
                    assert mean[places].isnan().all()
                else:
                    assert_same(mean[places], other[places])
            if chunk == wrong:
                assert (sealed[part] == 0xFF).all()
            else:
                assert_same(sealed[part], sound[part])


@pytest.mark.parametrize("name", ["v3", "emulated"])
@pytest.mark.parametrize(
    "change",
    [
        lambda bucket: bucket.bytes.__setitem__(0, bucket.bytes[0] + 8),
        lambda bucket: bucket.bytes.__setitem__(1, 16),
        lambda bucket: bucket.bytes.__setitem__(0, bucket.bytes[0] + 16),
        lambda bucket: setattr(bucket, "sizes", (4, 0, 9, 1)),
    ],
    ids=["misaligned", "bytes without rows", "more bytes than messages", "more rows than all"],
)
def test_refuses_chunks_that_do_not_fit(name: str, change: Callable[[Any], None]) -> None:
    bucket = Bucket(FEW, make_coder(0, 4))
    message, x = bucket.message(0), gradient("normal", bucket.numel)
    change(bucket)
    with implementation(name):
        hop = bucket.together()
        with pytest.raises(KernelError, match="dynamiq_hop"):
            hop.run(x=x, outgoing=message)
