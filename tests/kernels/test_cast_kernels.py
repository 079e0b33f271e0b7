"""Hops of uncompressed sums: every implementation gives the definition's bytes."""

from __future__ import annotations

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.casts import SlicePass
from gradwire.codecs.native.call import KernelError

WIRES = (torch.float32, torch.bfloat16)

GIVEN = (("sums",), ("out",), ("mean",), ("out", "mean"), ("sums", "out", "mean"))


def message(kind: str, numel: int, wire: torch.dtype) -> Tensor:
    return gradient(kind, numel, seed=1).to(wire).view(torch.uint8)


def cast(
    own: Tensor, added: Tensor | None, wire: torch.dtype, given: tuple[str, ...], workers: int, seed: int = 0
) -> list[Tensor]:
    numel = own.numel() // wire.itemsize if own.dtype == torch.uint8 else own.numel()
    bucket = torch.float32 if own.dtype == torch.uint8 else own.dtype
    results = {
        "sums": poisoned(numel, torch.float32, seed),
        "out": poisoned(numel, wire, seed).view(torch.uint8),
        "mean": poisoned(numel, bucket, seed),
    }
    SlicePass(wire, workers).run(own, added, **{name: results[name] for name in given})
    return [results[name].view(wire) if name == "out" else results[name] for name in given]


def assert_defined(name: str, *arguments: object) -> None:
    expected = defined(cast, *arguments)
    with implementation(name):
        found = cast(*arguments, seed=1)  # type: ignore[arg-type]
    for actual, wanted in zip(found, expected, strict=True):
        assert_same(actual, wanted)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", WIRES)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_the_definition(name: str, wire: torch.dtype, dtype: torch.dtype, kind: str) -> None:
    """Sums that are sent, kept, divided by a power of two and by another number."""
    for numel, workers in (5000, 3), (257, 8):
        own, added = gradient(kind, numel).to(dtype), message(kind, numel, wire)
        for given in GIVEN:
            assert_defined(name, own, added, wire, given, workers)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("numel", [1, 7, 8, 9, 1023, 1024, 1025, 5000])
def test_lengths_and_addresses(name: str, wire: torch.dtype, numel: int) -> None:
    for offset in (0, 1, 3):
        own = misaligned(gradient("normal", numel), offset)
        assert_defined(name, own, message("normal", numel, wire), wire, ("out", "mean"), 3)
        assert_defined(name, own, None, wire, ("out",), 1)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_message_is_decoded_and_added_to_another(name: str, wire: torch.dtype) -> None:
    first, other = message("mixed", 3000, wire), gradient("normal", 3000).to(wire).view(torch.uint8)
    for given in (("mean",), ("sums",)):
        assert_defined(name, first, None, wire, given, 5)
        assert_defined(name, first, other, wire, given, 5)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_sums_may_be_written_where_they_are_read(name: str) -> None:
    own, added = gradient("normal", 5000), message("normal", 5000, torch.bfloat16)
    expected = defined(cast, own, added, torch.bfloat16, ("sums",), 1)[0]
    with implementation(name):
        SlicePass(torch.bfloat16).run(own, added, sums=own)
    assert_same(own, expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_what_cannot_be_is_refused(name: str) -> None:
    x = gradient("normal", 100)
    with implementation(name):
        with pytest.raises(KernelError, match="cast_slice"):
            SlicePass(torch.float32).run(x)
        with pytest.raises(KernelError, match="cast_slice"):
            SlicePass(torch.float32, 0).run(x, mean=torch.empty(100))
        with pytest.raises(ValueError, match="out must be a contiguous torch.uint8 of 200 elements"):
            SlicePass(torch.bfloat16).run(x, out=torch.empty(199, dtype=torch.uint8))
        with pytest.raises(ValueError, match="sums must be a contiguous torch.float32"):
            SlicePass(torch.bfloat16).run(x, sums=torch.empty(99))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("numel", [1, 9, 5000])
def test_means_may_be_written_where_sums_are_read(name: str, wire: torch.dtype, numel: int) -> None:
    sums = gradient("mixed", numel).to(wire)
    expected = poisoned(numel, wire, 0)
    with implementation(name):
        SlicePass(wire, 3).run(sums.clone().view(torch.uint8), mean=expected)
        SlicePass(wire, 3).run(sums.view(torch.uint8), mean=sums)
    assert_same(sums, expected)
