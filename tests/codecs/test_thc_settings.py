"""The settings that are refused, and the messages; sums never overflow; how buckets are cut."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from thc_rounds import gradients, mean_and_losses

from gradwire.codecs.interface import Layout
from gradwire.codecs.thc import THC
from gradwire.codecs.thc.blocks import cut

LAYOUT = Layout.flat(1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 100}, "codec.block=100: choose 0 or a power of two from 16 to 16777216"),
        ({"block": 8}, "codec.block=8: choose 0 or a power of two"),
        ({"block": 1 << 25}, "codec.block=33554432: choose"),
        ({"norm": "layer"}, "codec.norm=layer: choose one of block, bucket"),
        ({"t_p": 0.1}, "codec.t_p=0.1: choose a number from 0.5 to 4096"),
        ({"quantization_bits": 0}, "codec.quantization_bits=0: choose a whole number from 1 to 8"),
        ({"table": "best"}, "codec.table=best: choose one of uniform, nonuniform"),
        (
            {"table": "nonuniform", "granularity": 14},
            "codec.granularity=14: choose a whole number from 15 to 255",
        ),
        ({"bits": 17}, "codec.bits=17: choose one of auto, 1 to 16"),
        ({"bits": "best"}, "codec.bits=best: choose one of auto"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        THC(**options)
    assert "\n" not in str(refusal.value)


def test_an_overflow_is_refused_with_the_bits_it_needs() -> None:
    assert THC(bits=8).supports("ring", 40, LAYOUT) == (
        "codec.bits=8 overflows with 40 workers: 15·40 needs 10 bits; choose codec.bits=10 or auto"
    )
    assert THC(bits=8, table="nonuniform").supports("ring", 9, LAYOUT) == (
        "codec.bits=8 overflows with 9 workers: 30·9 needs 9 bits; choose codec.bits=9 or auto"
    )
    assert THC().supports("ring", 5000, LAYOUT) == (
        "codec=thc sums in at most 16 bits, but with 5000 workers 15·5000 needs 17; choose a smaller "
        "codec.quantization_bits"
    )
    layout = Layout(LAYOUT.names, LAYOUT.shapes, LAYOUT.offsets, LAYOUT.numel, torch.float64)
    assert "float64" in (THC().supports("ring", 4, layout) or "")


@pytest.mark.parametrize("options", [{}, {"table": "nonuniform"}, {"quantization_bits": 8}])
def test_what_is_supported_never_overflows(options: dict[str, Any]) -> None:
    """Sums fit for every accepted number of workers and bits; the refused ones would overflow."""
    peak = {"table": 30, "quantization_bits": 255}.get(next(iter(options), ""), 15)
    for workers in [*range(1, 300), 1000, 2184, 2185, 4369, 4370]:
        automatic = THC(**options)
        fits = peak * workers < 1 << 16
        assert (automatic.supports("ring", workers, LAYOUT) is None) == fits
        assert not fits or peak * workers < 1 << automatic.sum_bits(workers) <= 1 << 16
    for bits in range(1, 17):
        for workers in range(1, 300, 7):
            supported = THC(bits=bits, **options).supports("ring", workers, LAYOUT) is None
            assert supported == (peak * workers < 1 << bits)


def test_auto_is_8_bits_up_to_8_workers_and_12_beyond() -> None:
    assert THC(bits=10).sum_bits(40) == 10
    assert [THC().sum_bits(n) for n in (2, 8, 9, 64, 273, 274, 547)] == [8, 8, 12, 12, 12, 13, 14]
    assert [THC(table="nonuniform").sum_bits(n) for n in (8, 9, 136, 137)] == [8, 12, 12, 13]


def test_the_largest_sums_fit_exactly() -> None:
    """17 workers alike, many coordinates clamped to 15: 255 in 8 bits. Wider sums are the same."""
    xs = gradients(256, 1) * 17
    narrow, wide, widest = (mean_and_losses(xs, bits=bits, t_p=0.5)[0] for bits in (8, 9, 16))
    assert torch.equal(narrow, wide)
    assert torch.equal(narrow, widest)


@pytest.mark.parametrize("block", [0, 16, 128, 1024, 1 << 18])
@pytest.mark.parametrize("numel", [1, 127, 128, 129, 5000, 70_001, (3 << 17) + 1])
def test_blocks_tile_the_bucket_with_little_padding(numel: int, block: int) -> None:
    """Powers of two, descending, less than 128 coordinates too many; segments follow one another."""
    blocks = cut(numel, block)
    sizes = [segment.block for segment in blocks.segments for _ in range(segment.count)]
    assert sum(sizes) == blocks.total < numel + 128
    assert blocks.total % 128 == 0
    assert sizes == sorted(sizes, reverse=True)
    assert all(size.bit_count() == 1 for size in sizes)
    assert max(sizes) == (min(block, 1 << (blocks.total.bit_length() - 1)) if block else max(sizes))
    assert len(sizes) == blocks.count
    ends = [0, *(segment.coordinates.stop for segment in blocks.segments)]
    assert [segment.start for segment in blocks.segments] == ends[:-1]
    assert ends[-1] == blocks.total and all(end % 128 == 0 for end in ends)


def test_by_default_one_block_is_as_large_as_fits() -> None:
    assert [(s.block, s.count) for s in cut(5000, 0).segments] == [(4096, 1), (1024, 1)]
    assert [(s.block, s.count) for s in cut(5000, 1024).segments] == [(1024, 5)]
    assert [(s.block, s.count) for s in cut(5 << 24, 0).segments] == [(1 << 24, 5)]
    assert [(s.block, s.count) for s in cut(300, 1024).segments] == [(256, 1), (128, 1)]
