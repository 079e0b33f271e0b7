"""A whole step on the simulated clock: computation, synchronization, update."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_steps import Tasks, all_reduce

from gradwire.harness.network.links import star
from gradwire.harness.timing.measure.breakdown import breakdown
from gradwire.harness.timing.simulate.blocks import Variation
from gradwire.harness.timing.simulate.clock import BackgroundLoad, SimulatedClock
from gradwire.harness.timing.simulate.codec_times import MeasuredTimes, NoTimes
from gradwire.harness.timing.simulate.compute import ComputeTimes
from gradwire.harness.timing.trace.step import Part, Post, RankTrace, TaskTrace, Wait, Work, spans

SIZE, CHUNK, RATE, LATENCY_S = 4, 1024, 65536.0, 1 / 1024
HOPS = 2 * (SIZE - 1)
RING_S = HOPS * (CHUNK / RATE + LATENCY_S)
"""One bucket on links of its own; with these numbers nothing is rounded."""
UPDATE_S = 0.5


def measured(ready: list[float], tasks: Tasks | None = None) -> dict[int, RankTrace]:
    """A step of ring all-reduces whose gradients are there at `ready`."""
    tasks = all_reduce("ring", SIZE, CHUNK, buckets=len(ready)) if tasks is None else tasks
    return {rank: RankTrace.synchronous(tuple(ready), own, UPDATE_S, 99.0) for rank, own in tasks.items()}


def clock(**options: Any) -> SimulatedClock:
    return SimulatedClock(star(SIZE, RATE, LATENCY_S), **options)


def with_work(seconds: float) -> Tasks:
    def replaced(task: TaskTrace) -> TaskTrace:
        parts = (Part("encode", 1.0, 0.75 * seconds), Part("statistics", 1.0, 0.25 * seconds))
        found = [
            Work(7.0, 7.0 + seconds, parts) if isinstance(operation, Work) else operation
            for operation in task.operations
        ]
        return task._replace(operations=tuple(found))

    tasks = all_reduce("ring", SIZE, CHUNK, work=True)
    return {rank: tuple(map(replaced, own)) for rank, own in tasks.items()}


def ends(step: Any) -> set[float]:
    return {trace.end for trace in step.values()}


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_last_bucket_alone_is_not_hidden(in_flight: int) -> None:
    step = clock(in_flight=in_flight).step(0, measured([1.0, 2.0, 3.0]))
    assert ends(step) == {3.0 + RING_S + UPDATE_S}
    for trace in step.values():
        assert [task.end for task in trace.tasks] == [at + RING_S for at in (1.0, 2.0, 3.0)]
        assert trace.ready == (1.0, 2.0, 3.0) and trace.update_s == UPDATE_S


def test_communication_that_is_hidden_takes_no_time() -> None:
    """The last bucket's gradients are there long after those of the first, and nothing is sent for them."""
    rings, nothing = all_reduce("ring", SIZE, CHUNK), TaskTrace(1, 0, 0.0, (Work(0.0, 0.0),))
    tasks = {rank: (*own, nothing) for rank, own in rings.items()}
    assert ends(clock().step(0, measured([1.0, 3.0], tasks))) == {3.0 + UPDATE_S}


def test_without_overlap_nothing_begins_before_the_backward_pass_has_ended() -> None:
    step = clock(overlap=False, in_flight=1).step(0, measured([1.0, 2.0, 3.0]))
    assert ends(step) == {3.0 + 3 * RING_S + UPDATE_S}
    assert step[0].ready == (1.0, 2.0, 3.0)


def test_the_slowest_rank_holds_up_all() -> None:
    step = measured([1.0, 2.0])
    step[2] = RankTrace.synchronous((1.0, 5.0), step[2].tasks, 2.0, 99.0)
    found = clock().step(0, step)
    assert [found[rank].end for rank in range(SIZE)] == [
        5.0 + RING_S + update for update in (0.5, 0.5, 2, 0.5)
    ]


def test_the_parts_of_a_breakdown_sum_to_the_step() -> None:
    for overlap in (True, False):
        step = clock(overlap=overlap).step(0, measured([1.0], with_work(0.125)))
        for trace in step.values():
            parts = breakdown(spans(trace), 0.0, trace.end)
            assert parts.step_s == pytest.approx(trace.end)
            assert parts.compute_s == pytest.approx(1.0 + UPDATE_S)
            assert parts.compression_s == pytest.approx((HOPS + 1) * 0.125)
            assert parts.exposed_comm_s == pytest.approx(RING_S)


def test_codec_times_are_as_measured_or_none() -> None:
    traces = measured([1.0], with_work(0.125))
    slow = clock(codec_times=MeasuredTimes()).step(0, traces)
    assert ends(slow) == {1.0 + (HOPS + 1) * 0.125 + RING_S + UPDATE_S}
    assert ends(clock(codec_times=NoTimes()).step(0, traces)) == {1.0 + RING_S + UPDATE_S}


def test_work_keeps_its_parts_in_proportion() -> None:
    class Twice:
        def seconds(self, work: Work, coordinates: int, place: int = 0) -> float:
            return 2 * (work.end - work.start)

    step = clock(codec_times=Twice()).step(0, measured([1.0], with_work(0.125)))
    first = step[0].tasks[0].operations[0]
    assert isinstance(first, Work) and (first.start, first.end) == (1.0, 1.25)
    assert [(part.label, part.seconds) for part in first.parts] == [
        ("encode", 0.1875),
        ("statistics", 0.0625),
    ]


def test_the_messages_are_those_that_were_sent() -> None:
    traces = measured([1.0, 2.0])
    step = clock().step(0, traces)
    for rank, trace in step.items():
        for before, after in zip(traces[rank].tasks, trace.tasks, strict=True):
            for old, new in zip(before.operations, after.operations, strict=True):
                if isinstance(old, Post):
                    assert isinstance(new, Post) and new[1:] == old[1:]
                elif isinstance(old, Wait):
                    assert isinstance(new, Wait) and new.number == old.number and new.end >= new.start


def test_a_step_depends_on_its_arguments_alone() -> None:
    options: dict[str, Any] = {
        "compute": ComputeTimes(
            variation=Variation(jitter=0.2, straggler_share=0.3, straggler_factor=2.0, seed=4)
        ),
        "background": BackgroundLoad(2, 5000.0),
        "seed": 4,
    }
    traces, used = measured([1.0, 2.0], None), clock(**options)
    found = [used.step(number, traces) for number in (7, 8, 7)]
    assert found[0] == found[2] != found[1]
    assert clock(**options).step(8, dict(reversed(traces.items()))) == found[1]
    assert clock(**{**options, "seed": 5}).step(7, traces) != found[0]


def test_background_jobs_slow_the_step_down() -> None:
    contended = max(ends(clock(background=BackgroundLoad(3, SIZE * 64.0 * CHUNK)).step(0, measured([1.0]))))
    expected = HOPS * (4 * CHUNK / RATE + LATENCY_S)
    assert contended - 1.0 - UPDATE_S == pytest.approx(expected, rel=0.1)


def test_one_rank_alone() -> None:
    step = SimulatedClock(star(1, RATE, LATENCY_S), background=BackgroundLoad(3, 100.0)).step(
        0, {0: RankTrace.synchronous((1.0,), (TaskTrace(0, 10, 0.0, (Work(0.0, 0.25),)),), UPDATE_S, 9.0)}
    )
    assert step[0].end == 1.25 + UPDATE_S


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_without_buckets(overlap: bool) -> None:
    step = clock(overlap=overlap).step(
        0, {rank: RankTrace.synchronous((), (), UPDATE_S, 9.0) for rank in range(SIZE)}
    )
    assert ends(step) == {UPDATE_S}
