"""Ranks' compute times on the simulated clock: measured or given, with jitter and stragglers."""

from __future__ import annotations

import pytest

from gradwire.harness.timing.simulate.blocks import Variation
from gradwire.harness.timing.simulate.compute import FORWARD_SHARE, ComputeTimes
from gradwire.harness.timing.trace.step import (
    TRANSFERS,
    UPDATE,
    Await,
    Compute,
    RankTrace,
    Start,
    TaskTrace,
    passes_until,
    stage_pass,
)

MANY = [(step, rank) for step in range(200) for rank in range(16)]


def factors(compute: Variation) -> list[float]:
    return [compute.factor(step, rank) for step, rank in MANY]


def test_without_jitter_it_is_as_measured() -> None:
    assert set(factors(Variation())) == {1.0}
    assert ComputeTimes().times([1.0, 2.5], 0.5, [10, 20], 3, 1) == ([1.0, 2.5], 0.5)


def test_jitter_is_even_over_its_range() -> None:
    found = sorted(factors(Variation(jitter=0.2)))
    assert 0.8 <= found[0] < 0.801 and 1.199 < found[-1] <= 1.2
    for share in (0.25, 0.5, 0.75):
        assert found[int(share * len(found))] == pytest.approx(0.8 + 0.4 * share, abs=0.02)


def test_stragglers_are_as_many_and_as_slow_as_configured() -> None:
    found = factors(Variation(straggler_share=0.1, straggler_factor=3.0))
    assert set(found) == {1.0, 3.0}
    assert found.count(3.0) / len(found) == pytest.approx(0.1, abs=0.02)
    assert set(factors(Variation(straggler_share=1.0, straggler_factor=3.0))) == {3.0}


def test_a_straggler_has_jitter_too() -> None:
    found = factors(Variation(jitter=0.1, straggler_share=0.5, straggler_factor=4.0))
    assert all(0.9 <= factor <= 1.1 or 3.6 <= factor <= 4.4 for factor in found)
    assert len({*found}) > 1000


def test_a_factor_is_of_a_seed_a_step_and_a_rank() -> None:
    compute = Variation(jitter=0.2, straggler_share=0.3, straggler_factor=2.0, seed=5)
    found = factors(compute)
    assert factors(Variation(jitter=0.2, straggler_share=0.3, straggler_factor=2.0, seed=5)) == found
    assert factors(Variation(jitter=0.2, straggler_share=0.3, straggler_factor=2.0, seed=6)) != found
    assert len({*found}) == len(found)
    assert [compute.factor(step, rank) for step, rank in reversed(MANY)] == found[::-1]


def test_who_straggles_is_the_same_whatever_the_jitter() -> None:
    slow = [factor > 2 for factor in factors(Variation(straggler_share=0.2, straggler_factor=4.0))]
    both = factors(Variation(jitter=0.1, straggler_share=0.2, straggler_factor=4.0))
    assert [factor > 2 for factor in both] == slow


def test_a_factor_scales_what_is_measured() -> None:
    compute = ComputeTimes(variation=Variation(straggler_share=1.0, straggler_factor=3.0))
    assert compute.times([1.0, 2.5], 0.5, [10, 20], 0, 0) == ([3.0, 7.5], 1.5)


def test_given_computation_is_spread_over_the_buckets() -> None:
    ready, update_s = ComputeTimes(given_s=9.0).times([77.0, 99.0, 100.0], 5.0, [10, 30, 60], 0, 0)
    backward = 9.0 * (1 - FORWARD_SHARE)
    assert ready == pytest.approx([9.0 * FORWARD_SHARE + backward * share for share in (0.1, 0.4, 1.0)])
    assert ready[-1] + update_s == pytest.approx(9.0)


def test_given_computation_has_stragglers() -> None:
    ready, _ = ComputeTimes(9.0, variation=Variation(straggler_share=1.0, straggler_factor=2.0)).times(
        [1.0], 1.0, [10], 0, 0
    )
    assert ready == pytest.approx([18.0])


def test_given_computation_is_that_of_the_passes_whatever_follows() -> None:
    """A sharded step: two buckets, and a third collective after the update."""
    lane = (
        *(
            Compute(0.0, 7.0, passes_until(0)),
            Start(7.0, 0),
            Compute(7.0, 8.0, passes_until(1)),
            Start(8.0, 1),
        ),
        *(Await(0, 8.0, 8.0), Await(1, 8.0, 8.0), Compute(8.0, 99.0, UPDATE), Start(99.0, 2)),
        *(Await(2, 99.0, 99.0), Compute(99.0, 100.0, "weights")),
    )
    tasks = tuple(TaskTrace(number, 10 + 20 * number, 0.0, ()) for number in range(3))
    own = RankTrace(lane, tasks, 100.0)
    assert own.passes == tasks[:2]
    found = ComputeTimes(9.0, variation=Variation(straggler_share=1.0, straggler_factor=2.0)).lane(own, 0, 0)
    seconds = [one.seconds for one in found if isinstance(one, Compute)]
    assert seconds == pytest.approx([18 * (1 / 3 + 2 / 3 * 0.25), 18.0, 0.0, 0.0])
    assert [one for one in found if not isinstance(one, Compute)] == [
        one for one in lane if not isinstance(one, Compute)
    ]
    assert RankTrace(lane[2:], tasks, 100.0).passes == ()


def test_a_stage_computes_its_passes_in_the_given_time() -> None:
    """Buckets get ready within the backward pass by their coordinates; activations that are sent after it
    are no bucket, and what is computed later takes no time."""
    tasks = [
        TaskTrace(TRANSFERS, 900, 0.0, ()),
        TaskTrace(0, 100, 0.0, ()),
        TaskTrace(1, 300, 0.0, ()),
        TaskTrace(TRANSFERS, 900, 0.0, ()),
    ]
    lane = (
        *(Compute(0.0, 1.0, stage_pass("forward", 0)), Start(1.0, 0)),
        Await(0, 1.0, 2.0),
        *(Compute(2.0, 3.0, stage_pass("backward", 0)), Start(3.0, 1)),
        *(Compute(3.0, 4.0, stage_pass("backward", 0)), Start(4.0, 2)),
        *(Compute(4.0, 5.0, stage_pass("backward", 0)), Start(5.0, 3)),
        *(Await(1, 5.0, 6.0), Compute(6.0, 7.0, UPDATE)),
    )
    own = RankTrace(lane, tuple(tasks), 7.0)
    found = ComputeTimes(given_s=6.0).lane(own, 0, 0)
    seconds = [one.seconds for one in found if isinstance(one, Compute)]
    assert seconds == pytest.approx([2.0, 1.0, 4.0, 4.0, 0.0])
