"""Launches that do not end are noticed, once, and those that do are forgotten."""

from __future__ import annotations

import threading

from gradwire.harness.comm.transport.launch_watch import LaunchWatch

LONG_S = 60.0


class Event:
    """An event that ends when the test says so; `asked` is set at each query."""

    def __init__(self, ended: bool = False) -> None:
        self.ended, self.asked = ended, threading.Event()

    def query(self) -> bool:
        self.asked.set()
        return self.ended


class Told:
    """A function for a watch to call: counts the calls, and has an event for the first."""

    def __init__(self) -> None:
        self.count, self.called = 0, threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.called.set()


def test_a_launch_that_does_not_end_is_given_up_once() -> None:
    told = Told()
    watch = LaunchWatch(0.01, told, poll_s=0.005)
    for communicator in (0, 1):
        watch.started(communicator, Event())
    assert told.called.wait(LONG_S)
    watch.close()
    assert told.count == 1


def test_one_that_follows_before_anybody_looks_is_given_up_too() -> None:
    """Steps are shorter than the watch's pauses, and nothing starts after a launch that hangs."""
    told, first = Told(), Event()
    watch = LaunchWatch(0.5, told, poll_s=0.005)
    for event in (first, Event(ended=True), Event(ended=True), Event()):
        watch.started(0, event)
    first.ended = True
    assert told.called.wait(LONG_S)
    watch.close()
    assert told.count == 1


def test_launches_that_end_are_forgotten() -> None:
    told, events = Told(), [Event() for _ in range(3)]
    watch = LaunchWatch(LONG_S, told, poll_s=0.005)
    for event in events:
        watch.started(0, event)
    assert events[0].asked.wait(LONG_S) and not events[2].asked.is_set()
    for event in events:
        event.ended = True
    assert events[2].asked.wait(LONG_S) and not events[1].asked.is_set()
    last = Event()
    for _ in range(1000):
        if not watch._oldest:
            break
        events[2].asked.clear()
        threading.Event().wait(0.005)
    watch.started(0, last)
    assert last.asked.wait(LONG_S)
    watch.close()
    assert told.count == 0


def test_a_watch_that_saw_nothing_has_no_thread_to_end() -> None:
    before = threading.active_count()
    watch = LaunchWatch(LONG_S, lambda: None)
    assert threading.active_count() == before
    watch.close()
