"""Widths and thresholds are those that codec=dynamiq itself arrives at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.dynamiq.arrangement import Arrangement
from gradwire.codecs.dynamiq.hops import DynamiQHops
from gradwire.codecs.interface import Layout, Round
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.studies.statistics.measures import super_group_energies
from gradwire.harness.studies.statistics.widths import check_budgets, widths


def gradients(rows: int, numel: int) -> Tensor:
    """Super-groups of different energy: (rows, numel) float32."""
    generator = torch.Generator().manual_seed(0)
    energy = torch.exp(2 * torch.randn(-(-numel // 256), generator=generator)).repeat_interleave(256)
    return 1e-3 * energy[:numel] * torch.randn(rows, numel, generator=generator)


def arrangements_of_the_codec(
    values: Tensor, bits: float, monkeypatch: pytest.MonkeyPatch
) -> list[Arrangement]:
    """The arrangements that all workers of the codec make of one bucket along a ring."""
    arrangements: list[Arrangement] = []
    made = DynamiQ.plan

    def spy(*arguments: Any) -> DynamiQHops:
        hops = made(*arguments)
        arrangements.append(hops.arrangement)
        return hops

    monkeypatch.setattr(DynamiQ, "plan", spy)
    size, layout = len(values), Layout.flat(values.shape[1])
    world = VirtualWorld(size, Fabric(partial(make_schedule, "ring")), torch.device("cpu"))
    world.run(
        {
            rank: synchronization(DynamiQ(bits=bits), row, Round(0, layout, rank, size, 0), True)
            for rank, row in enumerate(values)
        }
    )
    monkeypatch.undo()
    return arrangements


def widths_in_order(arrangement: Arrangement) -> dict[int, list[tuple[int, int]]]:
    """Chunk -> (super-group, width) as its message holds them: the largest width first."""
    found: dict[int, list[tuple[int, int]]] = {}
    for chunk, (rows, counts) in enumerate(zip(arrangement.rows, arrangement.counts, strict=True)):
        runs = [width for width in sorted(counts, reverse=True) for _ in range(counts[width])]
        found[chunk] = list(zip(arrangement.order[rows].tolist(), runs, strict=True))
    return found


def least(chunk: Sequence[tuple[int, int]], squares: Tensor, width: int) -> float | None:
    above = [float(squares[index]) for index, bits in chunk if bits >= width]
    return min(above) if 0 < len(above) < len(chunk) else None


@pytest.mark.parametrize("bits", [3.0, 4.0, 5.0, 6.0])
@pytest.mark.parametrize(("workers", "numel"), [(2, 256 * 64), (3, 256 * 50 + 100), (4, 700)])
def test_widths_are_the_codecs(
    workers: int, numel: int, bits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = gradients(workers, numel)
    arrangements = arrangements_of_the_codec(values, bits, monkeypatch)
    assert len(arrangements) == workers
    chunks = widths_in_order(arrangements[0])
    total = sum(map(len, chunks.values()))

    found = widths(values, [numel], [bits])
    (allocation,) = found.allocations
    assert found.super_groups == total
    for width in (2, 4, 8):
        given = sum(bits_given == width for chunk in chunks.values() for _, bits_given in chunk)
        assert allocation.shares[width] == pytest.approx(given / total)
    assert sum(allocation.shares.values()) == pytest.approx(1)
    assert allocation.code_bits == pytest.approx(sum(w * part for w, part in allocation.shares.items()))

    # F_j in float64 and in the codec's bf16, rounded at every hop, differ by less than 1 % a rounding.
    squares = super_group_energies(values, [numel])
    by_width = {threshold.width: threshold for threshold in allocation.thresholds}
    for width in (4, 8):
        leasts = [least(chunk, squares, width) for chunk in chunks.values()]
        expected = sorted(value for value in leasts if value is not None)
        assert (width in by_width) == bool(expected)
        if expected:
            threshold = by_width[width]
            assert threshold.low == pytest.approx(expected[0], rel=0.04)
            assert threshold.median == pytest.approx(expected[len(expected) // 2], rel=0.04)
            assert threshold.high == pytest.approx(expected[-1], rel=0.04)


def test_thresholds_separate_and_fall_with_the_budget() -> None:
    """Shares above a threshold are the wider ones; with more bits thresholds fall and code bits rise; 4 and 8
    bits are 512/17 apart in F."""
    found = widths(gradients(2, 256 * 2000), [256 * 2000], [3, 4, 5, 6])
    firsts = []
    for allocation in found.allocations:
        four, eight = allocation.thresholds
        assert (four.width, eight.width) == (4, 8) and four.low <= four.median <= four.high < eight.low
        beyond = sum(value > four.high for value in found.quantiles) / 101
        assert beyond == pytest.approx(allocation.shares[4] + allocation.shares[8], abs=0.03)
        firsts.append(four.median)
        assert eight.median / four.median == pytest.approx(512 / 17, rel=0.3)
    assert firsts == sorted(firsts, reverse=True)
    code_bits = [allocation.code_bits for allocation in found.allocations]
    assert code_bits == pytest.approx([bits - 0.6875 for bits in (3, 4, 5, 6)], abs=0.1)


def test_buckets_have_budgets_of_their_own() -> None:
    """A bucket of small super-groups gets as many bits as one of large ones: thresholds range over both."""
    values = gradients(2, 2 * 256 * 200)
    values[:, 256 * 200 :] *= 100
    (apart,) = widths(values, [256 * 200, 256 * 200], [4]).allocations
    (together,) = widths(values, [2 * 256 * 200], [4]).allocations
    assert apart.thresholds[0].high > 1000 * apart.thresholds[0].low
    assert together.thresholds[0].high < 10 * together.thresholds[0].low


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("numel", [1, 255, 300])
def test_tiny_buckets(workers: int, numel: int) -> None:
    """Fewer super-groups than chunks, and one worker alone."""
    found = widths(gradients(workers, numel), [numel], [3, 6])
    assert found.super_groups == -(-numel // 256)
    for allocation in found.allocations:
        assert sum(allocation.shares.values()) == pytest.approx(1)


def test_zeros_get_the_fewest_bits() -> None:
    found = widths(torch.zeros(2, 5000), [5000], [5])
    assert found.zeros == 1 and found.allocations[0].shares == {2: 1, 4: 0, 8: 0}
    assert found.allocations[0].thresholds == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    values = gradients(2, 256 * 64)
    exact, half = (widths(each, [256 * 64], [4]) for each in (values, values.to(dtype)))
    assert half.allocations[0].code_bits == pytest.approx(exact.allocations[0].code_bits, abs=0.2)


def test_budgets_the_codec_cannot_keep_to() -> None:
    check_budgets("statistics.bits", [2.6875, 5, 8.6875])
    for bits in (2.5, 9.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^statistics\.bits=.*choose bits from 2\.6875 to 8\.6875"):
            check_budgets("statistics.bits", [5, bits])
