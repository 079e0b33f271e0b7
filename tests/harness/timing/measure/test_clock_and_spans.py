"""The training clock stops when it should, and the recorder keeps exactly the spans it is given."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from gradwire.harness.timing.measure.clock import TrainingClock
from gradwire.harness.timing.measure.spans import Recorder, Span, span_cost

CPU = torch.device("cpu")


def test_the_wall_clock_runs_only_between_start_and_pauses() -> None:
    clock = TrainingClock("wall", CPU)
    time.sleep(0.02)
    assert clock.seconds == 0
    clock.start()
    time.sleep(0.02)
    before = clock.seconds
    assert before >= 0.02
    with clock.paused():
        stopped = clock.seconds
        time.sleep(0.05)
        assert clock.seconds == stopped
    time.sleep(0.01)
    total = clock.seconds
    assert total >= stopped + 0.01
    with pytest.raises(AssertionError):
        clock.advance(1.0)


def test_a_pause_ends_also_when_what_it_holds_fails() -> None:
    clock = TrainingClock("wall", CPU)
    clock.start()
    with pytest.raises(KeyError), clock.paused():
        raise KeyError
    before = clock.seconds
    time.sleep(0.01)
    assert clock.seconds > before


def test_the_simulated_clock_counts_given_seconds() -> None:
    clock = TrainingClock("simulated", CPU)
    clock.start()
    clock.advance(1.5)
    time.sleep(0.01)
    with clock.paused():
        pass
    clock.advance(0.5)
    assert clock.seconds == 2.0


def test_draining_returns_each_span_once_and_in_order() -> None:
    recorder = Recorder()
    recorder.add("compute", 0.0, 1.0)
    recorder.add("comm", 0.5, 2.0, num_bytes=128)
    assert recorder.drain() == [Span("compute", 0.0, 1.0), Span("comm", 0.5, 2.0, 128)]
    assert recorder.drain() == []
    assert recorder.total == 2


def test_no_span_is_lost_while_threads_add_and_another_drains() -> None:
    recorder = Recorder()
    count = 5000

    def record(thread: int) -> None:
        for index in range(count):
            recorder.add("codec", thread, index)

    threads = [threading.Thread(target=record, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    drained: list[Span] = []
    while any(thread.is_alive() for thread in threads):
        drained += recorder.drain()
    drained += recorder.drain()
    for thread in range(3):
        assert [span.end for span in drained if span.start == thread] == list(range(count))


def test_the_recorder_resolves_timestamps() -> None:
    recorder = Recorder()
    start, end = recorder.timestamp(), recorder.timestamp()
    recorder.add("comm", start, end, 7)
    (span,) = recorder.drain()
    assert (span.kind, span.bytes) == ("comm", 7)
    assert recorder.seconds(start) == span.start <= span.end == recorder.seconds(end)
    assert recorder.drain() == []


def test_a_disabled_recorder_records_nothing() -> None:
    recorder = Recorder(enabled=False)
    recorder.add("codec", recorder.timestamp(), recorder.timestamp())
    assert recorder.drain() == []


class SteppingStopwatch:
    """Timestamps that have no time until they are read, as CUDA events have none."""

    def timestamp(self) -> object:
        return ["timestamp"]

    def seconds(self, timestamp: object) -> float:
        return 4.0


def test_timestamps_of_any_kind_are_resolved_on_draining() -> None:
    recorder = Recorder(SteppingStopwatch())
    recorder.add("codec", recorder.timestamp(), recorder.timestamp())
    (span,) = recorder.drain()
    assert (span.start, span.end) == (4.0, 4.0)


def test_the_cost_of_a_span_is_a_small_time() -> None:
    # A bound no machine comes near: the figure is in seconds for one span, not for the loop.
    assert 0 < span_cost(spans=200, repeats=2) < 1e-3
