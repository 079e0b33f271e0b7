"""Steps of other forms than synchronous data parallelism, whose lengths can be written down."""

from __future__ import annotations

import pytest
from lanes import BARRIER, Said, rank, starts
from simulated_steps import SOME_WORK, all_reduce, receiving, sending, task

from gradwire.harness.network.links import LinkRoute, Links, star, unlimited
from gradwire.harness.timing.measure.breakdown import breakdown
from gradwire.harness.timing.simulate.blocks import Variation
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.compute import ComputeTimes
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.step import (
    Await,
    Barrier,
    RankTrace,
    StepTrace,
    TaskTrace,
    spans,
    step_end,
)

EXACT = 1e-12
RATE, LATENCY_S, CHUNK = 7e5, 0.013, 4321


def close(seconds: float) -> object:
    return pytest.approx(seconds, abs=EXACT, rel=0)


def stage(number: int, stages: int, batches: int, forward_s: float, backward_s: float) -> RankTrace:
    """All micro-batches forwards, then all backwards; activations and their gradients are messages."""
    said, tasks = list[Said](), list[TaskTrace]()
    for seconds, source, target, bucket in (
        (forward_s, number - 1, number + 1, 0),
        (backward_s, number + 1, number - 1, 1),
    ):
        for _ in range(batches):
            if 0 <= source < stages:
                said += [starts(len(tasks)), (len(tasks), 0)]
                tasks.append(receiving(source, 100, bucket))
            said.append(seconds)
            if 0 <= target < stages:
                said.append(starts(len(tasks)))
                tasks.append(sending(target, 100, bucket))
    said += [(index, 0) for index in range(len(tasks))]
    return rank(said, *tasks)


@pytest.mark.parametrize(("stages", "batches"), [(1, 3), (2, 1), (2, 5), (3, 4), (4, 8), (7, 3)])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_pipeline_on_free_links(stages: int, batches: int, in_flight: int) -> None:
    forward_s, backward_s = 0.1, 0.23
    step = {one: stage(one, stages, batches, forward_s, backward_s) for one in range(stages)}
    timed = SimulatedClock(unlimited(), in_flight=in_flight).step(0, step)
    assert step_end(timed) == close((batches + stages - 1) * (forward_s + backward_s))


def ring_s(size: int) -> float:
    return 2 * (size - 1) * (CHUNK / RATE + LATENCY_S)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_second_collective_after_the_update(size: int) -> None:
    tasks = all_reduce("ring", size, CHUNK, buckets=2)
    said: list[Said] = [0.3, starts(0), (0, 0), BARRIER, 0.07, starts(1), (1, 0)]
    step = {one: rank(said, *tasks[one]) for one in range(size)}
    timed = SimulatedClock(star(size, RATE, LATENCY_S)).step(0, step)
    assert step_end(timed) == close(0.3 + ring_s(size) + 0.07 + ring_s(size))
    waits = [one for one in timed[0].computation if isinstance(one, Await | Barrier)]
    assert [one.end - one.start for one in waits] == [close(ring_s(size)), close(0.0), close(ring_s(size))]


def blocks(count: int, forward_s: float, backward_s: float) -> list[Said]:
    """Each block's forward waits for what the step before made of its gradient."""
    forwards = [one for block in range(count) for one in ((count - 1 - block, 1), forward_s)]
    backwards = [one for block in range(count) for one in (backward_s, starts(block))]
    return [*forwards, *backwards]


@pytest.mark.parametrize("backward_s", [2.0, 0.01])
@pytest.mark.parametrize("count", [1, 3])
def test_a_forward_by_blocks_waits_for_the_step_before(count: int, backward_s: float) -> None:
    """With equal blocks the first block's gradient comes last, so that its forward waits for all of them."""
    size, forward_s, steps = 3, 0.05, 5
    tasks = all_reduce("ring", size, CHUNK, buckets=count)
    step = {one: rank(blocks(count, forward_s, backward_s), *tasks[one]) for one in range(size)}
    window = StepWindow(SimulatedClock(star(size, RATE, LATENCY_S), in_flight=1))
    lengths = [step_end(window.step(number, step)) for number in range(steps)]
    computed, wait = count * (forward_s + backward_s), ring_s(size)
    if backward_s < ring_s(size):
        wait = count * ring_s(size) - (count - 1) * backward_s
    assert lengths == [close(computed), *[close(wait + computed)] * (steps - 1)]


def lines(*rates: float) -> Links:
    """A link of its own from rank 0 to each other rank."""
    return Links(rates, lambda source, destination: LinkRoute((destination - 1,), 0.0))


def two_blocks(steps: int) -> StepTrace:
    """Rank 0 sends rank 1 what its first block waits for, and rank 2 what its second does."""
    said: list[Said] = [(1, 1), 0.25, (0, 1), 0.25, 0.5, starts(0), 0.5, starts(1)]
    return {
        0: rank(said, sending(2, 100, 0), sending(1, 100, 1)),
        1: rank([starts(0)], receiving(0, 100, 1)),
        2: rank([starts(0)], receiving(0, 100, 0)),
    }


def test_a_forward_runs_while_a_later_blocks_gradient_is_under_way() -> None:
    """The first block's takes ½ s, the second's 2 s: 2 − ½ after the step its forward begins."""
    window = StepWindow(SimulatedClock(lines(200.0, 50.0)))
    found = [window.step(number, two_blocks(3)) for number in range(4)]
    assert [step_end(step) for step in found] == [close(1.5), *[close(2.0 + 0.25 + 0.5)] * 3]
    awaited = [one.end - one.start for one in found[2][0].computation if isinstance(one, Await)]
    assert awaited == [close(0.5), close(2.0 - 0.5 - 0.5 - 0.25)]


def test_a_step_counts_what_earlier_ones_left_in_flight() -> None:
    window = StepWindow(SimulatedClock(lines(200.0, 50.0)))
    found = [window.step(number, two_blocks(3))[0] for number in range(3)]
    parts = [breakdown(spans(own), *(own.window or (0, 0))) for own in found]
    assert [one.compute_s for one in parts] == [close(1.5)] * 3
    assert [one.exposed_comm_s for one in parts] == [close(0.0), close(1.25), close(1.25)]
    assert [one.step_s for one in parts] == [close(1.5), close(2.75), close(2.75)]


def test_lengths_add_up_to_the_time_of_all_steps_together() -> None:
    """Each rank begins a step when it is through with the one before, and all share the links."""
    size = 4
    tasks = all_reduce("ring", size, CHUNK, buckets=2)
    step = {
        one: rank([(1, 1), 0.05 + 0.01 * one, (0, 1), 0.02, starts(0), 0.01, starts(1)], *tasks[one])
        for one in range(size)
    }
    clock = SimulatedClock(
        star(size, RATE, LATENCY_S), compute=ComputeTimes(variation=Variation(jitter=0.3, seed=3))
    )
    window = StepWindow(clock)
    lengths = [step_end(window.step(number, step)) for number in range(6)]
    together = clock.run([(number, step) for number in range(6)])
    assert sum(lengths) == close(step_end(together[-1]))
    assert all(length > 0 for length in lengths)


def test_a_window_ends_where_nothing_is_in_flight() -> None:
    tasks = all_reduce("ring", 2, CHUNK)
    whole = {one: rank([0.1, starts(0), (0, 0)], *tasks[one]) for one in range(2)}
    open_end = {one: rank([0.1 + one, starts(0)], *tasks[one]) for one in range(2)}
    clock = SimulatedClock(star(2, RATE, LATENCY_S))
    window = StepWindow(clock)
    assert window.step(0, whole) == clock.step(0, whole)
    left = window.step(1, open_end)
    assert [left[one].window for one in range(2)] == [(0.0, 0.1), (0.0, 1.1)]
    last = window.step(2, whole)
    assert last[0].window == (close(0.1 - 1.1), step_end(last)) and last[0].carried
    assert window.step(3, whole) == clock.step(3, whole)


def test_a_step_that_does_not_follow_forgets_what_was_in_flight() -> None:
    window = StepWindow(SimulatedClock(lines(200.0, 50.0)))
    first = window.step(0, two_blocks(1))
    assert window.step(7, two_blocks(1)) == first


def test_ranks_meet_at_a_barrier() -> None:
    step = {one: rank([1.0 + one, BARRIER, 0.25 * one]) for one in range(3)}
    timed = SimulatedClock(unlimited()).step(0, step)
    assert [timed[one].end for one in range(3)] == [3.0, 3.25, 3.5]


def test_a_task_begins_when_its_lane_starts_it_and_its_thread_is_free() -> None:
    long = task(SOME_WORK._replace(end=2.0))
    timed = SimulatedClock(unlimited(), in_flight=1).step(
        0, {0: rank([0.5, starts(0), 0.25, starts(1), (1, 0)], long, long._replace(bucket=1))}
    )
    assert [(one.ready, one.end) for one in timed[0].tasks] == [(0.5, 2.5), (0.75, 4.5)]
    assert timed[0].end == 4.5


def test_without_overlap_tasks_begin_where_computation_waits() -> None:
    long = task(SOME_WORK._replace(end=2.0))
    said: list[Said] = [0.5, starts(0), 0.25, (0, 0), 1.0, starts(1), 1.0]
    timed = SimulatedClock(unlimited(), overlap=False).step(0, {0: rank(said, long, long)})
    assert [one.ready for one in timed[0].tasks] == [0.75, 4.75] and timed[0].ready == (0.5, 3.75)
    assert timed[0].end == 4.75


def test_given_computation_keeps_its_proportions() -> None:
    timed = SimulatedClock(unlimited(), compute=ComputeTimes(given_s=8.0)).step(
        0, {0: rank([1.0, starts(0), 2.0, (0, 0), 1.0], task(SOME_WORK))}
    )
    assert [one.end - one.start for one in timed[0].computation if not isinstance(one, type(starts(0)))] == [
        2.0,
        4.0,
        0.0,
        2.0,
    ]


def test_given_computation_is_the_same_under_any_labels() -> None:
    """Data parallelism computes up to its last gradient, whatever else is measured."""
    said: list[Said] = [1.0, starts(0), 2.0, starts(1), 0.5, (0, 0), (1, 0), BARRIER, 7.0]
    own = rank(said, *(task(SOME_WORK, bucket=bucket) for bucket in range(2)))
    assert own.is_data_parallel and not own.is_synchronous
    timed = SimulatedClock(unlimited(), compute=ComputeTimes(given_s=3.0)).step(0, {0: own})
    assert timed[0].ready == (2.0, 3.0) and timed[0].end == 3.0
    for other in (said[:-2], [*said, starts(2)], [*said[:1], *said[5:], *said[1:5]]):
        assert not rank(other, *own.tasks).is_data_parallel


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([starts(0)], "rank 0 has 2 tasks and starts task 1 0 times"),
        ([starts(0), starts(1), starts(1)], "rank 0 has 2 tasks and starts task 1 2 times"),
        ([starts(0), starts(1), starts(2)], "rank 0 has 2 tasks and starts task 2 1 times"),
        ([starts(0), starts(1), (2, 0)], "rank 0 awaits task 2 of 0 steps back, which it does not have"),
        ([starts(0), starts(1), (0, -1)], "rank 0 awaits task 0 of -1 steps back, which it does not have"),
        ([starts(0), starts(1), BARRIER], "some ranks have 0 barriers, others 1"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(said: list[Said], problem: str) -> None:
    step = {0: rank(said, task(SOME_WORK), task(SOME_WORK)), 1: rank([])}
    with pytest.raises(ValueError, match=f"^{problem}$"):
        SimulatedClock(unlimited()).step(0, step)


def test_a_task_that_is_awaited_before_it_is_started() -> None:
    with pytest.raises(RuntimeError, match="stuck: task 0 is awaited before it is started$"):
        SimulatedClock(unlimited()).step(0, {0: rank([(0, 0), starts(0)], task(SOME_WORK))})
