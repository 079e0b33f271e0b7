"""Bits on the wire: packing, and the bytes of messages."""

from __future__ import annotations

import pytest
import torch
from mxfp_rounds import Cluster, gradients, make_hops
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, unpacked
from gradwire.codecs.mxfp.definition import num_blocks
from gradwire.codecs.mxfp.formats import FORMATS, decode
from gradwire.codecs.mxfp.hops import BLOCKS_PER_UNIT
from gradwire.codecs.slices import chunk_bounds

NAMES = sorted(FORMATS)


def packed_by_hand(codes: Tensor, width: int) -> list[int]:
    """Codes one after another in one long little-endian integer."""
    number = sum(code << (width * place) for place, code in enumerate(codes.tolist()))
    return list(number.to_bytes(codes.numel() * width // 8, "little"))


@pytest.mark.parametrize("name", NAMES)
def test_codes_lie_at_their_bits_and_come_back(name: str) -> None:
    element = FORMATS[name]
    width = element.width
    codes = torch.randint(0, 1 << width, (4096,), generator=torch.Generator().manual_seed(width))
    codes = torch.cat((torch.arange(1 << width), codes)).to(torch.int32)
    stream = packed(codes, width)
    assert stream.tolist() == packed_by_hand(codes, width)
    expected = torch.tensor(element.values)[codes.long()]
    assert torch.equal(decode(stream, element).view(torch.int32), expected.view(torch.int32))


def test_four_codes_of_six_bits_take_three_bytes() -> None:
    codes = [0b000001, 0b100010, 0b111000, 0b010101] * 2
    stream = packed(torch.tensor(codes, dtype=torch.int32), 6)
    assert stream.tolist() == [0b10_000001, 0b1000_1000, 0b010101_11] * 2
    assert unpacked(stream, 6).tolist() == codes


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize("numel", [1, 31, 32, 33, 64, 65, 1000, 6400])
def test_chunks_cover_every_block_once(numel: int, num_chunks: int) -> None:
    bounds = chunk_bounds(num_blocks(numel), num_chunks, BLOCKS_PER_UNIT)
    total = -(-numel // 32)
    assert bounds[0] == 0 and bounds[-1] == total and len(bounds) == num_chunks + 1
    longest = -(-total // (2 * num_chunks)) * 2
    for start, stop in zip(bounds, bounds[1:], strict=False):
        assert 0 <= stop - start <= longest
        assert start % 2 == 0 or start == total


def payload(name: str, numel: int, workers: int) -> int:
    """Bytes that all ranks of a ring send for a bucket besides the maxima."""
    cluster = Cluster(workers, name=name)
    cluster.step(gradients(numel, workers))
    return cluster.bytes_sent("reduce_scatter") + cluster.bytes_sent("all_gather")


@pytest.mark.parametrize(
    ("name", "numel", "workers", "expected"),
    [
        ("mxfp8", 1, 2, 32),  # a block is sent whole
        ("mxfp6", 1, 2, 32),  # 24 bytes and 8 of padding
        ("mxfp4", 1, 2, 16),
        ("mxfp6", 33, 4, 48),
        ("mxfp6", 65, 3, 48 + 32),
        ("mxfp6", 1000, 3, 288 + 288 + 192),  # 12, 12 and 8 of 32 blocks
        ("mxfp8", 6400, 5, 6400),
        ("mxfp6", 6400, 5, 4800),
        ("mxfp4", 6400, 5, 3200),
    ],
)
def test_messages_have_the_bytes_computed_by_hand(name: str, numel: int, workers: int, expected: int) -> None:
    assert payload(name, numel, workers) == 2 * (workers - 1) * expected


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize(("name", "bits"), [("mxfp8", 8.5), ("mxfp6", 6.5), ("mxfp4", 4.5)])
def test_wire_bits_are_the_elements_and_half_a_bit_of_maxima(name: str, bits: float, topology: str) -> None:
    """A 16-bit maximum per block, and two int64 counts with a step's first bucket."""
    workers, numel = 4, 4 * 64 * 100
    cluster = Cluster(workers, topology, name=name)
    cluster.step(*[gradients(numel, workers, seed) for seed in range(3)])
    phases = ("metadata", "reduce_scatter", "all_gather")
    sent = sum(cluster.bytes_sent(phase) for phase in phases) / (2 * (workers - 1))
    assert sent == 3 * numel * bits / 8 + 16


@pytest.mark.parametrize("name", NAMES)
def test_chunk_messages_are_aligned_additive_and_know_no_gradient(name: str) -> None:
    for numel in (1, 31, 33, 1000, 5000):
        sizes = []
        for seed in (0, 1):
            hops = make_hops(name, gradients(numel, 2, seed)[0], 5)
            sizes.append([hops.message_bytes(range(c, c + 1), 1) for c in range(5)])
            assert hops.message_bytes(range(1, 4), 2) == sum(sizes[-1][1:4])
        assert sizes[0] == sizes[1]
        assert all(size % 16 == 0 for size in sizes[0])
        blocks = -(-numel // 32)
        assert 0 <= sum(sizes[0]) - blocks * 4 * FORMATS[name].width < 16


def test_padding_is_zero_and_a_message_of_the_wrong_length_is_refused() -> None:
    hops = make_hops("mxfp6", gradients(33 * 32, 1)[0], 1)
    out = torch.full((hops.message_bytes(range(1), 1),), 0xAB, dtype=torch.uint8)
    hops.encode(range(1), out, 1)
    assert out.numel() == 33 * 24 + 8
    assert not out[-8:].any() and out[:-8].count_nonzero() > 500
    with pytest.raises(AssertionError, match="message length"):
        hops.encode(range(1), out[:-16], 1)
