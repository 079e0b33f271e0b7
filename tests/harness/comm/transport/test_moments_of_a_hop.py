"""On a GPU each timestamp is an event, so moments between which a stream does nothing share one."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch

from gradwire.harness.comm.transport import thread
from gradwire.harness.comm.transport.channel import CollectiveTask, Handle
from gradwire.harness.comm.transport.process import ProcessHandle
from gradwire.harness.comm.transport.thread import CommunicationThread, Turn
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.measure.stopwatch import WallStopwatch
from gradwire.harness.timing.trace.log import TaskLog

HOPS = 5
CPU = torch.device("cpu")


class Moments(WallStopwatch):
    """Timestamps are numbers in the order in which they are taken."""

    def __init__(self) -> None:
        self.next = count()

    def timestamp(self) -> object:
        return next(self.next)


class Stream:
    device = CPU

    def __init__(self) -> None:
        self.waits = 0

    def record_event(self) -> Stream:
        return self

    def wait_event(self, event: Stream) -> None:
        self.waits += 1


async def hops(log: TaskLog) -> None:
    """As many hops, each with one post."""
    for _ in range(HOPS):
        number = log.post("metadata", (), ())
        handle = ProcessHandle(0, None, log.posted)
        handle.number = number
        await handle


def driven(on_stream: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Stream, Recorder]:
    """Drives the hops on a thread: how many moments it took, its stream and its spans."""
    stream, moments = Stream(), Moments()
    recorder, ended = Recorder(moments), threading.Event()
    monkeypatch.setattr(thread, "_new_stream", lambda device: stream if on_stream else None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    own = CommunicationThread(recorder, CPU, Turn())
    log = TaskLog(recorder.timestamp, 0, 1, 0)
    work: Coroutine[Handle, None, Any] = hops(log)
    own.submit(CollectiveTask(work, lambda result: ended.set(), print, log))
    own.close()
    assert ended.is_set()
    return next(moments.next), stream, recorder


def test_a_hop_on_a_stream_takes_three_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its post, the end of the work, where the wait begins, and the end of the wait, where work goes on."""
    taken, stream, recorder = driven(True, monkeypatch)
    assert taken == 3 * HOPS + 3  # the start, and the end, which the log and the span each take
    assert stream.waits == 1  # for the input, and never for its own stretches
    spans = recorder.drain()
    codec = [span for span in spans if span.kind == "codec"]
    comm = [span for span in spans if span.kind == "comm"]
    assert [span.start for span in codec[1:]] == [span.end for span in comm]


def test_on_a_cpu_work_goes_on_once_the_turn_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, _, recorder = driven(False, monkeypatch)
    assert taken == 4 * HOPS + 3
    spans = recorder.drain()
    codec = [span.start for span in spans if span.kind == "codec"]
    comm = [span.end for span in spans if span.kind == "comm"]
    assert all(work > wait for work, wait in zip(codec[1:], comm, strict=True))
