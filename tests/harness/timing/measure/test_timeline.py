"""Recording spans."""

from __future__ import annotations

import threading

from gradwire.harness.timing.measure.timeline import Span, Timeline, event_cost


def test_drain_returns_each_span_once_and_in_order() -> None:
    timeline = Timeline()
    timeline.add("compute", 0.0, 1.0)
    timeline.add("comm", 0.5, 2.0, num_bytes=128, label="hop 1")
    assert timeline.drain() == [Span("compute", 0.0, 1.0), Span("comm", 0.5, 2.0, 128, "hop 1")]
    assert timeline.drain() == []


def test_a_disabled_timeline_keeps_nothing() -> None:
    timeline = Timeline(enabled=False)
    timeline.add("codec", 0.0, 1.0)
    assert timeline.drain() == []


def test_no_span_is_lost_while_threads_add_and_another_drains() -> None:
    timeline = Timeline()
    count = 5000

    def record(thread: int) -> None:
        for index in range(count):
            timeline.add("codec", thread, index)

    threads = [threading.Thread(target=record, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    drained: list[Span] = []
    while any(thread.is_alive() for thread in threads):
        drained += timeline.drain()
    drained += timeline.drain()
    for thread in range(3):
        assert [span.end for span in drained if span.start == thread] == list(range(count))


def test_event_cost_is_a_small_time() -> None:
    # A bound no machine comes near: the figure is in seconds for one event, not for the loop.
    assert 0 < event_cost(events=200, repeats=2) < 1e-3
