"""Metadata combined by the kernel: the bytes of messages and results are those of the definition."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from implementations import CPU, IMPLEMENTATIONS, defined, implementation
from inputs import assert_same, gradient
from torch import Tensor

from gradwire.codecs.collectives import Op
from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.loading import cpu_level
from gradwire.harness.comm.collective import metadata_kernel
from gradwire.harness.comm.collective.metadata import MetadataHops
from gradwire.harness.comm.collective.metadata_kernel import _KINDS, kernel_for

Part = tuple[Op, torch.dtype, int]


def values(dtype: torch.dtype, numel: int, seed: int, kind: str = "normal") -> Tensor:
    if dtype.is_floating_point:
        return gradient(kind, numel, seed).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(numel, generator=generator) < 0.5
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (numel,), generator=generator, dtype=dtype)


def hop_by_hop(parts: Sequence[Part], num_chunks: int, kind: str) -> list[Tensor]:
    """All that two ranks have in the end: the second one's first half of the chunks is combined with the
    first one's, then all of them, then the second half, twice: of a message that begins at a multiple of 16
    bytes, and of one that lies to them as the rank's own values do."""
    made = [
        MetadataHops(
            [(values(dtype, numel, 7 * rank + i, kind), op) for i, (op, dtype, numel) in enumerate(parts)],
            num_chunks,
        )
        for rank in range(2)
    ]
    sent = made[0].messages_in_place()
    half = num_chunks // 2
    for chunks in range(half), range(num_chunks), range(half, num_chunks):
        begin = made[0].message_bytes(range(chunks.start), 1)
        message = sent[begin : begin + made[0].message_bytes(chunks, 1)]
        made[1].accumulate(message.clone(), chunks, 1)
        if begin:
            made[1].accumulate(message, chunks, 1)
    return [sent, *made[1].results()]


def assert_defined(name: str, parts: Sequence[Part], num_chunks: int, kind: str = "normal") -> None:
    expected = defined(hop_by_hop, tuple(parts), num_chunks, kind)
    with implementation(name):
        found = hop_by_hop(parts, num_chunks, kind)
    for actual, wanted in zip(found, expected, strict=True):
        assert_same(actual, wanted)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("op", "dtype"), _KINDS)
def test_every_kind_equals_the_definition(name: str, op: Op, dtype: torch.dtype) -> None:
    for numel, num_chunks in (1, 2), (5, 4), (257, 3), (9000, 2):
        assert_defined(name, [(op, dtype, numel)], num_chunks)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["subnormal", "largest", "infinite", "nan", "signed_zeros"])
def test_special_values(name: str, kind: str) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        assert_defined(name, [("sum", dtype, 3000), ("norm", dtype, 3000), ("max_bits", dtype, 70)], 4, kind)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("num_chunks", [1, 2, 7, 64])
def test_parts_of_different_lengths_and_types(name: str, num_chunks: int) -> None:
    """Chunks begin and end within parts, and the last one is padded to eight bytes."""
    parts: list[Part] = [
        ("or", torch.uint8, 13),
        ("sum", torch.bfloat16, 4999),
        ("norm", torch.bfloat16, 5000),
        ("max_bits", torch.float32, 129),
        ("sum", torch.int64, 3),
        ("sum", torch.float64, 1),
        ("or", torch.bool, 40),
        ("sum", torch.int32, 0),
    ]
    assert_defined(name, parts, num_chunks)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_message_of_another_length_is_refused(name: str) -> None:
    memory = torch.zeros(200, dtype=torch.uint8)
    with implementation(name):
        kernel = kernel_for(memory, (("sum", torch.bfloat16, 100),))
        assert kernel is not None
        with pytest.raises(ValueError, match="message must be a contiguous torch.uint8 of 100 elements"):
            kernel.run(torch.zeros(98, dtype=torch.uint8), 0, 100)
        for first, last in ((150, 202), (1, 101), (-2, 98)):
            with pytest.raises(KernelError, match="metadata_hop"):
                kernel.run(torch.zeros(last - first, dtype=torch.uint8), first, last)


def test_more_parts_than_a_call_takes_are_combined_by_pytorch() -> None:
    memory = torch.zeros(108, dtype=torch.uint8)
    with implementation("base"):
        assert kernel_for(memory, (("sum", torch.float32, 3),) * 9) is None
        assert kernel_for(memory, (("sum", torch.float16, 3),)) is None


def test_the_kernel_does_what_it_knows_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of the library is used, because no kernels may be compiled here."""
    ran: list[tuple[int, int]] = []

    class Kernel:
        def __init__(self, library: object, *settings: object) -> None:
            assert library == "library"

        def run(self, message: Tensor, first: int, last: int) -> None:
            ran.append((first, last))

    monkeypatch.setattr(metadata_kernel, "MetadataKernel", Kernel)
    for library in ("library", None):
        monkeypatch.setattr(metadata_kernel, "library_for", lambda device, found=library: found)
        for op, dtype in _KINDS:
            ran.clear()
            hops = MetadataHops([(torch.ones(2, dtype=dtype), op)], 1)
            message = torch.zeros(hops.message_bytes(range(1), 1), dtype=torch.uint8)
            hops.accumulate(message, range(1), 1)
            assert ran == ([(0, 2 * dtype.itemsize)] if library else []), (op, dtype)


@pytest.mark.parametrize("level", CPU)
def test_the_level_in_use_is_the_one_that_was_chosen(level: str) -> None:
    with implementation(level):
        assert cpu_level() == level
