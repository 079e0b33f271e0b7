"""The lattice codec's slots: fields of bits, Rice codes, places of super-groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.codecs.lattice import bits
from gradwire.codecs.lattice.codes import BROKEN, SlotCode, slot_bits
from gradwire.codecs.lattice.measure_tables import TABLES, lengths, variances
from gradwire.codecs.lattice.packed import Packed
from gradwire.codecs.lattice.prediction import PARTS
from gradwire.codecs.lattice.rice import Rice
from gradwire.codecs.lattice.slots import Slots, super_groups_of
from gradwire.codecs.options.dynamiq import SUPER_GROUP

SLOTS, SUPER_GROUPS = 3, 20

CODES: list[SlotCode] = [Rice(), Packed()]
every_code = pytest.mark.parametrize("code", CODES, ids=["rice", "packed"])


def integers(scale: float, seed: int = 0) -> Tensor:
    """Slots of integers whose groups of 32 have different magnitudes, some zeros, a few very large ones."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.exp(torch.randn(SLOTS, SUPER_GROUPS, 8, 1, generator=draw)) * scale
    q = (torch.randn(SLOTS, SUPER_GROUPS, 8, 32, generator=draw) * sizes).long()
    q = q.view(SLOTS, SUPER_GROUPS, SUPER_GROUP)
    q[0, 0] = 0
    q[1, 3, 5], q[1, 4, 7] = 2**29, -(2**29)
    return q


@every_code
@pytest.mark.parametrize("scale", [0.0, 0.2, 1, 5, 100, 1e4, 1e7])
def test_what_is_written_is_read(code: SlotCode, scale: float) -> None:
    q = integers(scale)
    used = slot_bits(code.lengths(q.view(-1, SUPER_GROUP)).view(SLOTS, SUPER_GROUPS))
    size = int(-(-used.max() // 32) * 32)
    number = torch.tensor([3, 1023, 0])
    further = torch.arange(SUPER_GROUPS).expand(SLOTS, SUPER_GROUPS) % 4
    mark = torch.where((q == 0).all(dim=2), BROKEN, 0)
    words = code.write(q, number, further, mark, size)
    assert (words[:, 0] >> 10).tolist() == used.tolist()
    message = torch.empty(words.numel() * 4, dtype=torch.uint8)
    bits.to_bytes(words, message)
    found = code.read(bits.from_bytes(message, SLOTS), SUPER_GROUPS)
    for given, read in zip((q, number, further, mark), found, strict=True):
        assert torch.equal(given, read)


def naturals(row: list[int]) -> list[int]:
    return [2 * value if value >= 0 else -2 * value - 1 for value in row]


def test_lengths_in_rice_codes_are_those_of_the_definition() -> None:
    """A slow count, coordinate by coordinate, of the shortest of the three codes."""
    q = integers(2.0, seed=1)[0]
    for row, length in zip(q.tolist(), Rice().lengths(q).tolist(), strict=True):
        z = naturals(row)
        groups = [z[first : first + 32] for first in range(0, SUPER_GROUP, 32)]
        filled = [group for group in groups if any(group)]
        if not filled:
            assert length == 8
            continue

        def r_of(values: list[int]) -> int:
            return min(max(sum(values) // len(values), 1).bit_length() - 1, 12)

        def coded(values: list[int], r: int) -> int:
            return sum(r + 1 + min(v >> r, 24) + 32 * (v >> r >= 24) for v in values)

        every = [v for group in filled for v in group]
        least = min(map(r_of, filled))
        lengths = (
            coded(z, r_of(z)),
            8 + coded(every, r_of(every)),
            16 + sum(coded(group, min(r_of(group), least + 2)) for group in filled),
        )
        assert length == 8 + min(lengths)


def test_lengths_in_whole_bits_are_those_of_the_definition() -> None:
    q = torch.cat([integers(scale, seed=1)[0] for scale in (0.1, 2.0, 1e5)])
    for row, length in zip(q.tolist(), Packed().lengths(q).tolist(), strict=True):
        z = naturals(row)
        widths = [max(z[first : first + 8]).bit_length() for first in range(0, SUPER_GROUP, 8)]
        if not any(widths):
            assert length == 8
            continue
        base = max(min(width for width in widths if width) - 1, max(widths) - 7, 0)
        coded = sum(8 * (base + max(1, width - base)) for width in widths if width)
        assert length == 8 + 3 * 32 + coded


@pytest.mark.parametrize(("name", "code"), TABLES, ids=[name for name, _ in TABLES])
def test_tables_hold_within_the_error_of_sampling(name: str, code: SlotCode) -> None:
    """Other super-groups, drawn anew, have the mean bits of the table, within five standard errors of either
    mean."""
    assert len(code.table) == len(variances()) and [*code.table] == sorted(code.table)
    for entry in range(14, 109, 9):
        found = lengths(code, variances()[entry], seed=1, super_groups=200).double()
        spread = 5 * float(found.std()) / 200**0.5 * 1.1 + 0.1
        assert abs(float(found.mean()) - code.table[entry] / PARTS) < spread, (name, entry)


@pytest.mark.parametrize("numel", [4096 * 4, 70_001, 256 * 61 * 9 + 1, 1_000_000])
@pytest.mark.parametrize("num_chunks", [3, 4, 8])
def test_every_super_group_has_one_place(numel: int, num_chunks: int) -> None:
    slots = Slots(numel, num_chunks, 64)
    places = slots.order.flatten()
    assert sorted(places[places >= 0].tolist()) == list(range(super_groups_of(numel)))
    assert slots.super_groups <= 64 and slots.order.shape == (num_chunks, slots.per_chunk, slots.super_groups)
    x = torch.arange(numel)
    taken = torch.cat([slots.shard(chunk).take(x) for chunk in range(num_chunks)])
    assert torch.equal(taken.sort().values, x)
    for chunk in range(num_chunks):
        of_shard = slots.shard(chunk).take(x) // SUPER_GROUP
        of_order = slots.order[chunk][slots.order[chunk] >= 0].sort().values
        assert torch.equal(of_shard.unique(), of_order)
        rising = slots.order[chunk].flatten()[slots.ascending[chunk]]
        assert torch.equal(rising[: len(of_order)], of_order)
