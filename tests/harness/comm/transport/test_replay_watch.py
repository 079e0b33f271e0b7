"""Replays that do not end are noticed, once, and those that do are forgotten."""

from __future__ import annotations

import threading

from gradwire.harness.comm.transport.replay_watch import ReplayWatch

LONG_S = 60.0


class Event:
    """Ends when it is told to; `asked` is set once it was asked."""

    def __init__(self, ended: bool) -> None:
        self.ended, self.asked = ended, threading.Event()

    def query(self) -> bool:
        self.asked.set()
        return self.ended


def test_a_replay_that_does_not_end_is_given_up_once() -> None:
    given_up = list[int]()
    told = threading.Event()

    def give_up() -> None:
        given_up.append(1)
        told.set()

    watch = ReplayWatch(0.01, give_up, poll_s=0.005)
    for line in (0, 1):
        watch.started(line, lambda: Event(ended=False))
    assert told.wait(LONG_S)
    watch.close()
    assert given_up == [1]


def test_a_replay_that_ends_makes_room_for_the_next_one() -> None:
    given_up, events = list[int](), list[Event]()

    def record() -> Event:
        events.append(Event(ended=False))
        return events[-1]

    watch = ReplayWatch(LONG_S, lambda: given_up.append(1), poll_s=0.005)
    watch.started(0, record)
    watch.started(0, record)  # the first one is looked after
    watch.started(1, record)
    assert len(events) == 2 and all(event.asked.wait(LONG_S) for event in events)
    events[0].ended = True
    for _ in range(1000):
        watch.started(0, record)
        if len(events) == 3:
            break
        events[1].asked.clear()
        assert events[1].asked.wait(LONG_S)
    watch.close()
    assert len(events) == 3 and not given_up


def test_a_watch_that_saw_nothing_has_no_thread_to_end() -> None:
    before = threading.active_count()
    watch = ReplayWatch(LONG_S, lambda: None)
    assert threading.active_count() == before
    watch.close()
