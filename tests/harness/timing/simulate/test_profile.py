"""Profiles of what work takes: made from measured steps, and put in the place of what others measured."""

from __future__ import annotations

import pytest

from gradwire.harness.timing.simulate.compute import ComputeTimes
from gradwire.harness.timing.simulate.profile import (
    LaneTimes,
    Quantiles,
    WorkTimes,
    observed_lanes,
    observed_work,
    quantile,
)
from gradwire.harness.timing.trace.step import (
    Await,
    Barrier,
    Compute,
    Part,
    RankTrace,
    Start,
    TaskTrace,
    Work,
    passes_until,
    stage_pass,
)


def data_parallel(sizes: list[int], ready: list[float], update_s: float) -> RankTrace:
    """A rank's measured step with buckets of these sizes."""
    pairs = enumerate(zip(sizes, ready, strict=True))
    tasks = tuple(TaskTrace(number, size, at, ()) for number, (size, at) in pairs)
    return RankTrace.synchronous(ready, tasks, update_s, ready[-1] + update_s)


def seconds(times: LaneTimes, own: RankTrace) -> list[float]:
    found = [one.seconds for one in times.lane(own, 0) if isinstance(one, Compute)]
    return [each for each in found if each is not None]


def test_quantiles_lie_between_values() -> None:
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    assert Quantiles.of([3.0, 1.0, 2.0]) == Quantiles(1.2, 2.0, pytest.approx(2.8), 3)


def test_the_same_buckets_get_ready_as_observed_and_others_in_between() -> None:
    observed = data_parallel([10, 30], [4.0, 10.0], 1.0)
    times = LaneTimes(observed_lanes([{0: observed, 1: observed}], of_codec=False))
    assert seconds(times, data_parallel([10, 30], [7.0, 7.5], 9.0)) == [4.0, 10.0, 1.0]
    others = data_parallel([5, 15, 20], [0.0, 0.0, 0.0], 0.0)
    found = seconds(times, others)
    forward = 10 / 3
    assert found[:3] == pytest.approx([forward + (4 - forward) / 2, 4 + 6 * (0.5 - 0.25) / 0.75, 10.0])
    assert times.unknown == 0


def test_jitter_scales_a_profile_too() -> None:
    own = data_parallel([10], [4.0], 1.0)
    profile = LaneTimes(observed_lanes([{0: own}], of_codec=False))
    slow = data_parallel([10], [9.0], 2.0)
    lane = ComputeTimes(profile=profile).lane(slow, 0, 0)
    assert [one.seconds for one in lane if isinstance(one, Compute)] == [4.0, 1.0]
    lane = ComputeTimes(given_s=6.0, profile=profile).lane(slow, 0, 0)  # what is given counts
    assert [one.seconds for one in lane if isinstance(one, Compute)][0] == 6.0


def test_stages_have_times_of_their_own_and_a_codecs_part_is_apart() -> None:
    def stage(forward_s: float) -> RankTrace:
        lane = (
            Compute(0.0, forward_s, stage_pass("forward", 0)),
            Await(0, forward_s, forward_s),
            Compute(forward_s, forward_s + 1.0, "decode 0"),
            Compute(forward_s + 1.0, forward_s + 3.0, stage_pass("backward", 0)),
        )
        return RankTrace(lane, (), forward_s + 3.0)

    step = {0: stage(1.0), 1: stage(5.0)}
    model, codec = (observed_lanes([step], of_codec=of_codec) for of_codec in (False, True))
    assert [one.label for one in codec] == ["decode 0", "decode 0"]
    times = LaneTimes([*model, *codec])
    lanes = [times.lane(stage(9.0), rank) for rank in (0, 1)]
    found = [[one.seconds for one in lane if isinstance(one, Compute)] for lane in lanes]
    assert found == [[1.0, 1.0, 3.0], [5.0, 1.0, 3.0]]  # since the lane woke
    without = LaneTimes(model)
    without.lane(stage(9.0), 0)
    assert without.unknown == 1


def test_codec_work_is_known_by_its_operations_and_size() -> None:
    def work(took_s: float, label: str = "encode", share: float = 0.5) -> Work:
        return Work(0.0, took_s, (Part(label, share, took_s),))

    def step(*tasks: TaskTrace) -> dict[int, RankTrace]:
        return {0: RankTrace((Start(0.0, 0), Barrier(0.0, 0.0)), tasks, 0.0)}

    task = TaskTrace(0, 100, 0.0, (work(2.0), work(4.0), Work(0.0, 0.5)))
    again = task._replace(operations=(work(2.0), work(6.0), Work(0.0, 0.5)))
    times = WorkTimes(observed_work([step(task), step(again)]))
    assert times.seconds(work(9.0), 100, 0) == 2.0
    assert times.seconds(work(9.0), 100, 1) == pytest.approx(4.2)  # the tenth percentile of 4 and 6
    assert times.seconds(Work(0.0, 9.0), 100, 2) == 0.5
    assert times.seconds(work(9.0, share=1.0), 50, 0) == 2.0  # as many coordinates
    assert times.seconds(work(9.0, share=0.25), 100, 0) == 1.0  # half as many
    assert times.unknown == 0
    assert times.seconds(work(9.0, "decode"), 100, 0) == 9.0
    assert times.unknown == 1


@pytest.mark.parametrize(("observed", "asked"), [(0, 100), (100, 0), (0, 0), (1, 1)])
def test_codec_work_on_no_coordinates_takes_as_long_as_on_some(observed: int, asked: int) -> None:
    work = Work(0.0, 3.0, (Part("encode", 1.0, 3.0),))
    own = RankTrace((Start(0.0, 0), Barrier(0.0, 0.0)), (TaskTrace(0, observed, 0.0, (work,)),), 0.0)
    times = WorkTimes(observed_work([{0: own}]))
    assert times.seconds(work._replace(end=9.0), asked, 0) == 3.0


def test_labels_of_passes_are_those_of_buckets() -> None:
    own = data_parallel([1, 1], [1.0, 2.0], 0.5)
    stretches = observed_lanes([{0: own}], of_codec=False)
    assert [(one.label, one.share) for one in stretches][:2] == [
        (passes_until(0), 0.5),
        (passes_until(1), 1.0),
    ]
