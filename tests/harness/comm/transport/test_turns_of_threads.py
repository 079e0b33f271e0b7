"""Threads of one process take turns, and their streams on a GPU follow each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from gradwire.harness.comm.transport import thread
from gradwire.harness.comm.transport.thread import Turn
from gradwire.harness.comm.world.process import communicators


class Stream:
    """A stream that appends each call to a list that all of them share."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self._said = name, said

    def wait_event(self, event: str) -> None:
        self._said.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return f"{self.name}'s stretch"


def test_a_stretch_on_one_stream_follows_the_last_one_on_any() -> None:
    said = list[str]()
    first, second, turn = Stream("first", said), Stream("second", said), Turn()
    followed = list[bool]()
    for stream in (first, second, second, first):
        with turn.taken(stream) as follows:  # type: ignore[arg-type]
            followed.append(follows)
            said.append(f"{stream.name} works")
    assert followed == [False, False, True, False]
    assert said == [
        "first works",
        "second waits for first's stretch",
        "second works",
        "second works",
        "first waits for second's stretch",
        "first works",
    ]


def test_one_thread_works_at_a_time() -> None:
    turn, inside, most = Turn(), list[int](), list[int]()

    def work() -> None:
        for _ in range(50):
            with turn.taken(None):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert len(most) == 200 and set(most) == {1}


def test_a_communication_stream_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, Any]()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, **given: asked.update(given))
    thread._new_stream(torch.device("cuda"))
    assert asked == {"priority": -1}
    assert thread._new_stream(torch.device("cpu")) is None


@pytest.mark.parametrize(("connections", "expected"), [(None, [1, 2, 2]), ("1", [1, 1, 1]), ("8", [1, 2, 2])])
def test_a_gpu_has_a_communicator_for_each_of_two_buckets(
    connections: str | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if connections is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    assert [communicators(buckets) for buckets in (1, 2, 64)] == expected
