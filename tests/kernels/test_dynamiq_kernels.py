"""DynamiQ's hops: every implementation gives the definition's bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dynamiq_hops_cases import CODERS, Chunk, make_coder
from implementations import EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, WRONG_KEY, assert_same, gradient, key_in_memory, misaligned
from torch import Tensor

from gradwire.codecs.dynamiq.native import NativeHop
from gradwire.codecs.native.choice import using_kernels

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def all_hops(first: Chunk, second: Chunk, x: Tensor, y: Tensor, seed: int) -> list[Tensor]:
    """The outputs of every hop: `first` encodes `x`; `second`, another worker, continues with `y`."""
    leaf, passed, again = first.message(seed), second.message(seed), second.message(seed)
    sums, more, decoded = second.rows(seed), second.rows(seed), second.rows(seed)
    sealed, results = second.message(seed), [second.result(seed) for _ in range(4)]
    first.hop().run(x=x, outgoing=leaf)
    hop = second.hop()
    hop.run(x=y, incoming=leaf, outgoing=passed)
    hop.run(x=y, incoming=leaf, new_sums=sums)
    hop.run(sums=sums, outgoing=again)
    more.copy_(sums)
    hop.run(sums=more, incoming=passed, new_sums=more)
    hop.run(incoming=passed, new_sums=decoded)
    hop.run(incoming=passed, result=results[0])
    hop.run(sums=more, result=results[1])
    hop.run(x=y, result=results[2])
    hop.run(x=y, incoming=leaf, outgoing=sealed, result=results[3])
    assert_same(again, passed)
    assert_same(sealed, passed)
    return [leaf, passed, sums, more, decoded, *results]


def hops_of(settings: str, x: Tensor, y: Tensor, share: int, workers: int, seed: int) -> list[Tensor]:
    return all_hops(*chunks(settings, x, share, workers), x, y, seed)


def chunks(settings: str, x: Tensor, share: int, workers: int) -> tuple[Chunk, Chunk]:
    """The chunks of two workers."""
    first, second = (make_coder(rank, workers, **CODERS[settings]) for rank in (workers // 2, workers - 1))
    return Chunk(x.numel(), first, x.dtype, share=share), Chunk(x.numel(), second, x.dtype, share=share)


def with_key_in_memory(chunk: Chunk) -> Chunk:
    """Returns the chunk with its key in memory, and a wrong one by value."""
    dither = chunk.coder.dither
    dither = replace(dither, key=WRONG_KEY, key_place=key_in_memory(dither.key))
    return replace(chunk, coder=replace(chunk.coder, dither=dither))


def compare(
    name: str,
    settings: str,
    x: Tensor,
    y: Tensor,
    share: int = 1,
    workers: int = 5,
    key_by_value: bool = True,
) -> None:
    expected = defined(hops_of, settings, x, y, share, workers, 0)
    first, second = chunks(settings, x, share, workers)
    if not key_by_value:
        first, second = with_key_in_memory(first), with_key_in_memory(second)
    with implementation(name):
        actual = all_hops(first, second, x, y, 1)
    places = second.order[:, None] * 256 + torch.arange(256)
    places = places[places < x.numel()]
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        # Of a result, what belongs to other chunks is not written.
        result = index >= len(actual) - 4
        assert_same(a[places] if result else a, b[places] if result else b)


@every_implementation
@pytest.mark.parametrize("settings", CODERS)
def test_every_setting(name: str, settings: str) -> None:
    for kind in ("mixed", "nan"):
        x, y = (gradient(kind, 30 * 256 - 37, seed) for seed in (0, 1))
        compare(name, settings, x, y)


@every_implementation
@pytest.mark.parametrize("settings", ["paper", "plus", "uniform"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gradient(name: str, settings: str, kind: str) -> None:
    x, y = (gradient(kind, 12 * 256 - 3, seed) for seed in (0, 1))
    compare(name, settings, x, y)


@pytest.mark.parametrize("settings", ["paper", "every_width", "plus"])
@pytest.mark.parametrize("workers", [1, 64])
def test_more_rows_than_a_warp_of_a_small_device_prepares(settings: str, workers: int) -> None:
    """On a device of one block, whose warps have 16 pairs of rows at a time, or 7 beside codebooks."""
    x, y = (gradient("heavy_tail", 600 * 256 - 37, seed) for seed in (0, 1))
    compare("small", settings, x, y, workers=workers)


@every_implementation
@pytest.mark.parametrize("settings", CODERS)
def test_a_key_in_memory(name: str, settings: str) -> None:
    x, y = (gradient("normal", 30 * 256 - 37, seed) for seed in (0, 1))
    compare(name, settings, x, y, key_by_value=False)
    compare(name, settings, x.to(torch.bfloat16), y.to(torch.bfloat16), workers=20, key_by_value=False)


@pytest.mark.parametrize("name", ["v3", "emulated"])
def test_hops_go_on_with_the_key_of_each_round(name: str) -> None:
    chunk, x = Chunk(1000, make_coder(0, 2)), gradient("normal", 1000)
    dither = chunk.coder.dither
    rounds = [dither, with_key_in_memory(chunk).coder.dither, replace(dither, key=WRONG_KEY), dither]
    with implementation(name):
        hop, messages = chunk.hop(), [chunk.message() for _ in rounds]
        assert isinstance(hop, NativeHop)
        for each, message in zip(rounds, messages, strict=True):
            hop.begin_round(each)
            hop.run(x=x, outgoing=message)
        with pytest.raises(ValueError, match="key_place must be a contiguous torch.int32 of 2 elements"):
            hop.begin_round(replace(dither, key_place=torch.zeros(2)))
    assert_same(messages[1], messages[0])
    assert_same(messages[3], messages[0])
    assert not torch.equal(messages[2], messages[0])


@every_implementation
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numel", [1, 255, 256, 257, 2500])
def test_any_length_and_address(name: str, dtype: torch.dtype, numel: int) -> None:
    for offset, share in ((0, 1), (1, 1), (3, 2)):
        x, y = (misaligned(gradient("normal", numel, seed).to(dtype), offset) for seed in (0, 1))
        compare(name, "paper", x, y, share)


@every_implementation
@pytest.mark.parametrize("workers", [1, 2, 3, 16, 33, 64, 256])
def test_any_number_of_workers(name: str, workers: int) -> None:
    x, y = (gradient("heavy_tail", 9 * 256, seed) for seed in (0, 1))
    compare(name, "paper", x, y, workers=workers)
    compare(name, "plus", x, y, workers=workers)


@every_implementation
def test_many_normal_coordinates_of_every_width(name: str) -> None:
    """Levels are estimated before they are decided: rare wrong estimates would show up here."""
    numel = (40 if name in EMULATED else 1000) * 256
    for settings in ("every_width", "plus"):
        x, y = (gradient("normal", numel, seed) for seed in (2, 3))
        compare(name, settings, x, y)


@pytest.mark.parametrize("name", EMULATED)
def test_estimates_in_doubt(name: str) -> None:
    """With thresholds so close to each other that the error of a logarithm reaches from one to the next."""
    x, y = (gradient("normal", 200 * 256, seed) for seed in (4, 5))
    compare(name, "fine", x, y)


def test_threads_change_nothing() -> None:
    chunk = Chunk(2000 * 256 - 5, make_coder(1, 4))
    x = gradient("heavy_tail", chunk.numel)
    messages = [chunk.message(seed) for seed in (0, 1)]
    with implementation("v4"):
        chunk.hop().run(x=x, outgoing=messages[0])
        torch.set_num_threads(3)
        try:
            chunk.hop().run(x=x, outgoing=messages[1])
        finally:
            torch.set_num_threads(1)
    assert_same(messages[1], messages[0])


def test_refuses_what_does_not_fit() -> None:
    chunk = Chunk(1000, make_coder(0, 2))
    x = gradient("normal", 1000)
    with using_kernels("cpu"):
        hop = chunk.hop()
        with pytest.raises(ValueError, match="dynamiq_hop: outgoing has 16 bytes, .* or more are needed"):
            hop.run(x=x, outgoing=torch.zeros(16, dtype=torch.uint8))
        with pytest.raises(ValueError, match="x must be a contiguous torch.float32 of 1000 elements"):
            hop.run(x=x[:999], outgoing=chunk.message())
        with pytest.raises(ValueError, match="sums must be a contiguous torch.float32"):
            hop.run(sums=chunk.rows().double(), outgoing=chunk.message())
