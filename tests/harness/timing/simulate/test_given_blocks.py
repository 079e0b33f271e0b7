"""Blocks in time: their given seconds, the factors they vary by, what they make of lanes and buckets."""

from __future__ import annotations

from statistics import mean

import pytest

from gradwire.codecs.interface import Observation
from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.measure.step_figures import overlap
from gradwire.harness.timing.simulate.blocks import BACKWARD, FORWARD, ComputeBlock, Variation, blocks_in_time
from gradwire.harness.timing.simulate.compute import ComputeTimes, as_settings, measured_blocks
from gradwire.harness.timing.trace.observations import STEP, WHOLE_STEP, observations
from gradwire.harness.timing.trace.step import (
    UPDATE,
    Await,
    Compute,
    RankTrace,
    Start,
    TaskTrace,
    backward_of,
    block_pass_of,
    forward_of,
    passes_until,
    spans,
    stage_pass,
    stage_pass_of,
    wait_spans,
)

TABLE_1 = [[3e6, 0.419, 0.505], [5.6e6, 0.155, 0.142], [6e6, 0.165, 0.129], [11e6, 0.261, 0.224]]
"""ResNet50's blocks in AQGB."""


def test_labels_name_a_blocks_passes() -> None:
    assert [block_pass_of(label) for label in (forward_of(3), backward_of(0))] == [
        (FORWARD, 3),
        (BACKWARD, 0),
    ]
    others = (passes_until(0), passes_until(2), stage_pass("forward", 1), UPDATE, "forward of block x")
    assert [block_pass_of(label) for label in others] == [None] * 5
    assert stage_pass_of(forward_of(3)) is None


def test_blocks_share_the_time_by_columns() -> None:
    blocks = blocks_in_time(TABLE_1, 1.5, 0.365)
    assert [block.parameters for block in blocks] == [3_000_000, 5_600_000, 6_000_000, 11_000_000]
    assert sum(block.forward_s for block in blocks) == pytest.approx(1.5 * 0.365)
    assert sum(block.backward_s for block in blocks) == pytest.approx(1.5 * 0.635)
    assert blocks[0].backward_s == pytest.approx(1.5 * 0.635 * 0.505)
    percent = [[size, 100 * forward, 7 * backward] for size, forward, backward in TABLE_1]
    for found, block in zip(blocks_in_time(percent, 1.5, 0.365), blocks, strict=True):
        assert found == pytest.approx(block)


def test_each_pass_of_each_block_has_a_factor_of_its_own() -> None:
    vary = Variation(jitter=0.1, seed=3, jitter_per="block")
    keys = [
        (0, rank, block, direction)
        for rank in range(500)
        for block in range(4)
        for direction in (FORWARD, BACKWARD)
    ]
    found = [vary.block_factor(*key) for key in keys]
    assert [vary.block_factor(*key) for key in reversed(keys)] == found[::-1]
    assert len({*found}) == len(found) and 0.9 <= min(found) < 0.901 and 1.099 < max(found) <= 1.1
    assert {vary.factor(0, rank) for rank in range(9)} == {1.0}
    steady = Variation(jitter=0.1, seed=3)
    assert {steady.block_factor(0, 5, block, FORWARD) for block in range(4)} == {steady.factor(0, 5)}


def test_stragglers_are_drawn_from_a_range_in_place_of_jitter() -> None:
    """AQGB's Figure 8: most steps take 1.33 to 1.45 s, stragglers' 1.45 to 2.67 s, 1.5 s on average."""
    middle = (1.33 + 1.45) / 2
    vary = Variation(
        jitter=0.06 / middle,
        straggler_share=0.165,
        seed=1,
        jitter_per="step",
        straggler_range=(1.45 / middle, 2.67 / middle),
    )
    seconds = [middle * vary.factor(step, rank) for step in range(500) for rank in range(16)]
    slow = [each for each in seconds if each > 1.4501]
    assert min(seconds) >= 1.33 and max(seconds) <= 2.67 + 1e-9
    assert len(slow) / len(seconds) == pytest.approx(0.165, abs=0.015)
    assert mean(slow) == pytest.approx((1.45 + 2.67) / 2, abs=0.03)
    assert mean(seconds) == pytest.approx(1.5, abs=0.01)
    by_block = Variation(0.1, 1.0, seed=1, jitter_per="block", straggler_range=(2.0, 3.0))
    assert len({by_block.block_factor(7, 2, block, FORWARD) for block in range(4)}) == 1


def test_buckets_get_ready_as_the_blocks_do() -> None:
    """Backward goes through 6 parameters in 1 s, then 2 in 3 s, and the buckets hold a quarter, a half and a
    quarter of as many."""
    compute = ComputeTimes(6.0, 1 / 3, (ComputeBlock(2, 0.5, 3.0), ComputeBlock(6, 1.5, 1.0)))
    ready, update_s = compute.times([0, 0, 0], 9.0, [10, 20, 10], 0, 0)
    assert (ready, update_s) == (pytest.approx([2 + 1 / 3, 3.0, 6.0]), 0.0)
    slower = ComputeTimes(6.0, 1 / 3, compute.blocks, Variation(jitter=0.2, jitter_per="block", seed=2))
    (last,) = slower.times([0], 0, [10], 4, 1)[0]
    factors = [
        slower.variation.block_factor(4, 1, block, way) for block in (0, 1) for way in (FORWARD, BACKWARD)
    ]
    assert last == pytest.approx(sum(map(float.__mul__, factors, (0.5, 3.0, 1.5, 1.0))))


def by_blocks() -> RankTrace:
    """Two blocks, as measured: each forward pass waits for the update of its block, and the step for both
    gradients."""
    lane = (
        *(Await(1, 0.0, 1.0, 1), Compute(1.0, 1.5, UPDATE), Compute(1.5, 2.0, forward_of(0))),
        *(Compute(2.0, 2.0, forward_of(1)), Await(0, 2.0, 3.0, 1)),
        *(Compute(3.0, 3.5, UPDATE), Compute(3.5, 4.5, forward_of(1))),
        *(Compute(4.5, 6.5, backward_of(1)), Start(6.5, 0), Compute(6.5, 7.0, backward_of(0)), Start(7.0, 1)),
        *(
            Compute(7.0, 7.0, backward_of(0)),
            Await(0, 7.0, 7.5),
            Await(1, 7.5, 9.0),
            Compute(9.0, 9.5, "norm"),
        ),
    )
    return RankTrace(lane, (TaskTrace(0, 30, 6.5, ()), TaskTrace(1, 10, 7.0, ())), 9.5)


def seconds(compute: ComputeTimes) -> list[float | None]:
    return [one.seconds for one in compute.lane(by_blocks(), 4, 1) if isinstance(one, Compute)]


def test_passes_by_blocks_take_what_is_given() -> None:
    given = ComputeTimes(6.0, 1 / 3, (ComputeBlock(2, 0.5, 3.0), ComputeBlock(6, 1.5, 1.0)))
    assert seconds(given) == pytest.approx([0.0, 0.5, 0.5, 0.0, 1.5, 2.5, 5.5, 5.5, 0.0])
    by_size = [0.0, 0.375, 0.375, 0.0, 1.125, 4.5, 5.625, 5.625, 0.0]
    assert seconds(ComputeTimes(6.0, 0.25)) == pytest.approx(by_size)
    with pytest.raises(ValueError, match="3 blocks and the model is trained in 2"):
        seconds(ComputeTimes(6.0, blocks=(ComputeBlock(2, 0.5, 3.0),) * 3))


def test_measured_passes_are_scaled_one_by_one() -> None:
    assert seconds(ComputeTimes()) == pytest.approx([0.5, 1.0, 1.0, 0.5, 1.5, 3.5, 4.0, 4.0, 0.5])
    vary = Variation(jitter=0.3, seed=2, jitter_per="block")
    first, second, back, front = (
        vary.block_factor(4, 1, *of) for of in ((0, FORWARD), (1, FORWARD), (1, BACKWARD), (0, BACKWARD))
    )
    after = 0.5 + second + 2 * back
    before, done = 0.5 + 0.5 * first, after + 0.5 * front
    expected = [0.5, before, before, 0.5, 0.5 + second, after, done, done, 0.5]
    assert seconds(ComputeTimes(variation=vary)) == pytest.approx(expected)


def test_steps_without_passes_cannot_be_spread_over_blocks() -> None:
    own = RankTrace((Compute(0, 1, UPDATE), Start(1, 0), Await(0, 1, 2)), (TaskTrace(0, 9, 1, ()),), 2)
    with pytest.raises(ValueError, match=r"network\.blocks.* begin with forward"):
        ComputeTimes(6.0, blocks=(ComputeBlock(2, 0.5, 3.0),)).lane(own, 0, 0)


def test_observations_cover_each_blocks_passes_and_the_step() -> None:
    found = observations(by_blocks())
    passes = [each for each in found if each.end > each.start]
    assert [each for each in passes if each.phase == FORWARD] == [
        Observation(0, FORWARD, 0, 1.5, 2.0),
        Observation(1, FORWARD, 0, 3.5, 4.5),
    ]
    assert [each for each in passes if each.phase == BACKWARD] == [
        Observation(0, BACKWARD, 0, 6.5, 7.0),
        Observation(1, BACKWARD, 0, 4.5, 6.5),
    ]
    assert [each for each in found if each.phase == STEP] == [Observation(WHOLE_STEP, STEP, 0, 0.0, 9.5)]


def test_waits_of_the_forward_pass_are_waits_and_what_it_hides_is_hidden() -> None:
    """Messages of the step before are in flight until second 3, its own from 6.5 to 9."""
    trace = by_blocks()
    carried, messages = (Span("comm", 0.0, 3.0, 8),), (Span("comm", 6.5, 9.0, 8),)
    found = overlap([*spans(trace._replace(carried=carried)), *messages], 0.0, trace.end)
    assert (found.wait_s, found.overlap_s) == (1.0 + 1.0 + 2.0, 1.0 + 0.5)
    assert found.osf == 5.5 / (5.5 + 9.0 - 5.0)
    *lane, norm = trace.computation
    instant = trace._replace(computation=(*lane, norm._replace(end=norm.start)), end=9.0)
    assert overlap(spans(instant), 0.0, 9.0).wait_s == 4.0
    assert list(wait_spans(RankTrace.synchronous([1.0], trace.tasks[:1], 1.0, 9.0))) == []


def test_measured_blocks_can_be_given() -> None:
    blocks = measured_blocks([{0: by_blocks(), 1: by_blocks()}])
    assert blocks == (ComputeBlock(10, 0.5, 0.5), ComputeBlock(30, 1.0, 2.0))
    given = "network.compute_s=4 network.forward_share=0.3750"
    assert as_settings(blocks) == f"{given} 'network.blocks=[[10,0.3333,0.2000],[30,0.6667,0.8000]]'"
    forward = [1 / 3, 2 / 3]
    rows = [[10, forward[0], 0.2], [30, forward[1], 0.8]]
    for found, block in zip(blocks_in_time(rows, 4.0, 0.375), blocks, strict=True):
        assert found == pytest.approx(block)
    assert measured_blocks([{0: RankTrace.synchronous([1.0], by_blocks().tasks[:1], 0.5, 3.0)}]) == ()
