"""The bound of all messages of an all-reduce, against closed forms and a search over bits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from gradwire.harness.comm.topology.check import carried_sums
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.studies import message_bounds
from gradwire.harness.studies.distribution import exact_mean
from gradwire.harness.studies.message_bounds import GROUP, MessageBound

NEAR = {"rel": 1e-4}
"""Points between two water levels are on a straight line."""


def bound_of(values: Tensor, topology: str, buckets: list[int] | None = None) -> MessageBound:
    schedule = make_schedule(topology, values.shape[0])
    return MessageBound.of(values, exact_mean(values), buckets or [values.shape[1]], schedule)


def independent(workers: int, groups: int) -> Tensor:
    """Gradients of (workers, coordinates) of which a sum of k has the variance k in every group: each worker
    has its own coordinate of a group."""
    values = torch.zeros(workers, groups, GROUP)
    for worker in range(workers):
        values[worker, :, worker] = math.sqrt(GROUP)
    return values.view(workers, -1)


def closed_form(sums: list[tuple[int, int]], bits: float) -> float:
    """The error at a high rate where a message holds the sum of k workers and is sent m times, for the (k, m)
    of each coordinate: all lie above the water, at m·θ."""
    total = sum(m for _, m in sums)
    level = 2 ** (sum(m * math.log2(k / m) for k, m in sums) / total - 2 * bits)
    return level * total / max(k for k, _ in sums)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize("bits", [3.0, 5.5])
def test_ring(workers: int, bits: float) -> None:
    """Sums of 1, 2, … n − 1 workers, then the whole one n − 1 times."""
    found = bound_of(independent(workers, 4 * workers), "ring")
    sums = [*((k, 1) for k in range(1, workers)), (workers, workers - 1)]
    assert found.bound(bits) == pytest.approx(closed_form(sums, bits), **NEAR)


def test_butterfly_of_four() -> None:
    """Two messages of one worker, one of two, then the whole sum three times."""
    found = bound_of(independent(4, 16), "butterfly")
    assert found.bound(4.0) == pytest.approx(closed_form([(1, 1), (1, 1), (2, 1), (4, 3)], 4.0), **NEAR)


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("workers", [2, 3, 6])
def test_all_bits_are_counted(topology: str, workers: int) -> None:
    """Messages carry each coordinate 2(n − 1) times, the whole sum n − 1 times of these."""
    schedule = make_schedule(topology, workers)
    sums = carried_sums(schedule)
    assert sum(sums.values()) == 2 * (workers - 1) * schedule.num_chunks
    whole = [sends for (_, ranks), sends in sums.items() if len(ranks) == workers]
    assert whole == [workers - 1] * schedule.num_chunks


def test_groups_that_are_left_out_cost_their_energy_once() -> None:
    """Two workers whose gradients nearly cancel: a message that was left out by itself would cost 100 times
    the energy of the sum. At no bits the error is all there is, and never more."""
    values = independent(2, 8)
    values[1] = -0.9 * values[0]
    found = bound_of(values, "ring")
    assert found.bound(0.0) == 1.0 and float(found.errors.max()) == 1.0
    assert found.bound(0.5) < 1.0


def test_few_bits_go_to_a_part_of_equal_groups() -> None:
    """Equal groups are coded one after another, as more bits come: the error falls along a straight line to
    the point where the Lagrangian of a coded group is the energy of one that is left out."""
    found = bound_of(independent(2, 64), "ring")
    sums = ((1.0, 1.0), (2.0, 1.0))  # variances, and how often each is sent

    def lagrangian(water: float) -> float:
        return sum(m * water * (1 + math.log(v / (m * water))) for v, m in sums)

    low, high = 1e-9, 0.999
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if lagrangian(middle) > 2.0 else (middle, high)
    bits = sum(m * math.log2(v / (m * low)) / 2 for v, m in sums) / 2
    error = sum(m * low for _, m in sums) / 2
    assert found.bound(bits) == pytest.approx(error, rel=0.02)  # within one water level
    assert found.bound(bits / 3) == pytest.approx(1 - (1 - error) / 3, rel=0.01)


def test_no_division_of_the_bits_does_better() -> None:
    """Two workers with two chunks: a search over the bits of the four messages, and over leaving chunks out,
    comes close to the bound from above."""
    variances = ((9.0, 1.0), (0.5, 4.0))  # of a worker's chunks
    values = torch.zeros(2, 2 * GROUP)
    for worker, own in enumerate(variances):
        for chunk, variance in enumerate(own):
            values[worker, chunk * GROUP + worker] = math.sqrt(GROUP * variance)
    chunks = [sum(own) for own in zip(*variances, strict=True)]
    singles = {
        chunk: variances[min(ranks)][chunk]
        for chunk, ranks in carried_sums(make_schedule("ring", 2))
        if len(ranks) == 1
    }
    steps, bits = 32, 2.0
    total = 2 * 2 * bits  # two messages of each coordinate, two chunks of equal length
    tried = []
    for first, second, third in itertools.product(range(steps + 1), repeat=3):
        if (rest := steps - first - second - third) >= 0:
            single, whole = (first, second), (third, rest)
            errors = [
                min(
                    chunks[c],
                    sum(
                        v * 4 ** (-total * s / steps)
                        for v, s in ((singles[c], single[c]), (chunks[c], whole[c]))
                    ),
                )
                for c in (0, 1)
            ]
            tried.append(sum(errors))
    best = min(tried) / sum(chunks)
    found = bound_of(values, "ring").bound(bits)
    assert 0.9999 * found <= best <= 1.02 * found


def test_buckets_are_cut_one_by_one() -> None:
    """Two equal buckets have the bound of one."""
    values = independent(3, 12)
    two = bound_of(values.repeat(1, 2), "ring", [values.shape[1]] * 2)
    assert two.bound(3.0) == pytest.approx(bound_of(values, "ring").bound(3.0), rel=1e-12)


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
def test_units_and_blocks_do_not_matter(topology: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(4, 9999, generator=torch.Generator().manual_seed(0))
    values *= torch.linspace(-20, 5, 9999).exp2()
    whole = bound_of(values, topology)
    rates = (0.0, 0.3, 1.0, 2.5, 6.0, 11.0)
    for unit in (2.0**-40, 3e12):
        scaled = bound_of(values * unit, topology)
        assert [scaled.bound(bits) for bits in rates] == pytest.approx(
            [whole.bound(bits) for bits in rates], rel=1e-5
        )
    monkeypatch.setattr(message_bounds, "BLOCK", 160)
    cut = bound_of(values, topology)
    assert torch.allclose(cut.errors, whole.errors, rtol=1e-9)
    assert torch.allclose(cut.bits, whole.bits, rtol=1e-9, atol=1e-9)


def test_errors_fall_and_zeros_cost_nothing() -> None:
    values = torch.randn(3, 4096, generator=torch.Generator().manual_seed(1))
    found = bound_of(values, "ring")
    assert bool((found.bits.diff() >= 0).all()) and bool((found.errors.diff() <= 1e-12).all())
    padded = torch.cat([values, torch.zeros(3, 4096)], dim=1)
    assert bound_of(padded, "ring", [4096, 4096]).bound(1.5) == pytest.approx(found.bound(3.0), rel=1e-6)


def test_an_all_reduce_needs_more_than_the_mean() -> None:
    """With as many bits a ring errs more than one encoding of the mean, whose closed form in one group is
    2^(−2R)."""
    assert bound_of(independent(8, 64), "ring").bound(4.0) > 2 * 2 ** (-2 * 4.0)


def test_a_topology_without_partial_sums_has_none() -> None:
    with pytest.raises(ValueError, match="topology=broadcast sends no partial sums"):
        bound_of(torch.ones(4, 64), "broadcast")
