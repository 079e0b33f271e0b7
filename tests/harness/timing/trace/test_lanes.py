"""The computation of a rank as a lane: the synchronous form, what it says, and how it is written down."""

from __future__ import annotations

from chrome_checks import check_chrome

from gradwire.harness.timing.trace.chrome import chrome_text
from gradwire.harness.timing.trace.log import LaneLog, LaneNotes, TaskLog
from gradwire.harness.timing.trace.rows import rows_of, trace_of
from gradwire.harness.timing.trace.step import (
    ORDINARY,
    Await,
    Barrier,
    Compute,
    Post,
    RankTrace,
    Start,
    TaskTrace,
    Urgency,
    Work,
    compute_spans,
)


def task(bucket: int, ready: float, end: float) -> TaskTrace:
    return TaskTrace(bucket, 8, ready, (Work(ready, end),))


def synchronous() -> RankTrace:
    return RankTrace.synchronous([1.0, 2.0], [task(0, 1.0, 1.5), task(1, 2.0, 3.0)], 0.25, 4.0)


def test_a_synchronous_step_is_a_lane() -> None:
    assert synchronous().computation == (
        Compute(0.0, 1.0, "forward, backward until bucket 0"),
        Start(1.0, 0),
        Compute(1.0, 2.0, "backward until bucket 1"),
        Start(2.0, 1),
        Await(0, 2.0, 2.0),
        Await(1, 2.0, 3.0),
        Barrier(3.0, 3.75),
        Compute(3.75, 4.0, "update", 0.25),
    )
    assert synchronous().ready == (1.0, 2.0) and synchronous().update_s == 0.25


def test_the_seconds_of_an_update_keep_their_last_digit() -> None:
    for update_s, end in ((0.1, 0.7), (1e-9, 3.3), (0.3, 0.0)):
        assert RankTrace.synchronous([], [], update_s, end).update_s == update_s
    assert 0.7 - (0.7 - 0.1) != 0.1, "as the difference of two times it would lose it"


def test_a_step_without_an_update_ends_with_the_barrier() -> None:
    trace = RankTrace.synchronous([1.0], [task(0, 1.0, 1.5)], 0.0, 2.0)
    assert trace.computation[-1] == Barrier(1.5, 2.0) and trace.update_s == 0.0
    assert [span.end for span in compute_spans(trace)] == [1.0]


def test_other_lanes_are_distinguished() -> None:
    trace = synchronous()
    assert trace.is_synchronous and RankTrace.synchronous([], [], 0.0, 1.0).is_synchronous
    *before, barrier, update = trace.computation
    for lane in (
        (*before, update),
        (*before, barrier),
        (*before, barrier, update._replace(label="clip, update")),
        (*before, barrier, update, Compute(4.0, 5.0, "average")),
    ):
        assert trace._replace(computation=lane).is_synchronous == (lane == (*before, barrier))


def test_a_lane_is_logged_with_timestamps_and_resolved_to_seconds_of_the_step() -> None:
    lane, log = LaneLog(), TaskLog(lambda: 1040, 0, 8, 1020)
    lane.computed("forward", 1000, 1010)
    lane.started(0, 1010)
    lane.awaited(0, 1010, 1050)
    lane.awaited(1, 1050, 1060, steps_back=2)
    lane.barrier(1060, 1070)
    log.resume(1020)
    log.suspend(1040)
    trace = LaneNotes(lane, [log]).resolve(100.0, 108.0, lambda timestamp: timestamp / 10)
    assert trace == RankTrace(
        (
            Compute(0.0, 1.0, "forward"),
            Start(1.0, 0),
            Await(0, 1.0, 5.0),
            Await(1, 5.0, 6.0, 2),
            Barrier(6.0, 7.0),
        ),
        (TaskTrace(0, 8, 2.0, (Work(2.0, 4.0),)),),
        8.0,
    )
    assert not trace.is_synchronous


LANE = RankTrace(
    (
        Await(0, 0.0, 0.5, 1),
        Compute(0.5, 1.0, "forward of block 0"),
        Start(1.0, 0),
        Compute(1.25, 2.0, "backward"),
        Barrier(2.0, 2.5),
    ),
    (TaskTrace(0, 8, 1.0, (Work(1.0, 3.0),)),),
    2.5,
)


def read_back(trace: RankTrace) -> RankTrace:
    return trace_of(rows_of(trace), 0, 2)


def test_a_lane_of_any_form_is_written_and_read_back() -> None:
    assert read_back(LANE) == LANE
    assert read_back(synchronous()) == synchronous()
    assert {row.kind for row in rows_of(synchronous())} == {"step", "start", "update", "task", "work"}


def test_messages_keep_their_urgency() -> None:
    urgent = Post(0.0, "refinement", ((1, 8),), (), False, Urgency(1, True, 4096))
    copies = urgent._replace(copies=True)
    for operations in ((urgent,), (copies,), (copies._replace(urgency=ORDINARY),)):
        trace = LANE._replace(tasks=(LANE.tasks[0]._replace(operations=operations),))
        assert read_back(trace) == trace


def test_a_timeline_shows_what_computation_waits_for() -> None:
    events = check_chrome(chrome_text({0: LANE, 1: LANE}))
    bars = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    waits = [(bar["name"], bar["ts"], bar["dur"]) for bar in bars if bar["cat"] == "wait"]
    assert waits == [("result of task 0 of 1 steps before", 0.0, 5e5), ("all ranks", 2e6, 5e5)]
    computed = [(bar["name"], bar["ts"], bar["dur"]) for bar in bars if bar["cat"] == "compute"]
    assert computed == [("forward of block 0", 5e5, 5e5), ("backward", 1.25e6, 7.5e5)]
