"""Messages through host memory between ranks that share a device: real gloo rounds with copies that end late,
and the thread that hands them on."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pool import Workers
from staged_jobs import (
    CPU,
    LateCopies,
    captured_of_rank,
    handed_on,
    lost_by_rank,
    means_of_rank,
    required_of_rank,
    reused_at_once,
    sum_by_backend,
)

from gradwire.harness.comm.transport import staging
from gradwire.harness.comm.transport.pacer import PacedLink
from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE, HostCopies, Staging
from gradwire.harness.comm.world.process import Connections, ProcessWorld

SECOND = timedelta(seconds=1)


def assert_equal(found: Any, expected: Any) -> None:
    for (tensors, sent), (others, also_sent) in zip(found, expected, strict=True):
        assert sent == also_sent
        assert all(torch.equal(*pair) for pair in zip(tensors, others, strict=True))
    assert sum(sum(sent.values()) for _, sent in found) > 0


@pytest.mark.parametrize("codec", ["fp32", "dynamiq", "thc", "onebit"])
@pytest.mark.parametrize(
    ("topology", "size", "segments"), [("ring", 2, 1), ("butterfly", 3, 1), ("ring", 2, 3)]
)
def test_buckets_through_host_memory_have_the_bits_of_direct_ones(
    codec: str, topology: str, size: int, segments: int, workers: Workers
) -> None:
    """A message that left before its copy had ended, or was decoded before it came, would be garbage."""
    expected = workers(size)(means_of_rank, topology, codec, "direct", segments)
    assert_equal(workers(size)(means_of_rank, topology, codec, "late", segments), expected)


def test_messages_between_two_ranks_too(workers: Workers) -> None:
    expected = workers(3)(handed_on, "direct")
    for copies in ("immediate", "late"):
        assert_equal(workers(3)(handed_on, copies), expected)


def test_a_message_has_what_the_stream_had_written_when_it_was_posted(workers: Workers) -> None:
    for rank, found in enumerate(workers(2)(reused_at_once, "late")):
        assert torch.equal(found, torch.full((1000,), 2.0 - rank))


def test_the_sum_of_the_backend(workers: Workers) -> None:
    for found, expected in zip(
        workers(2)(sum_by_backend, "late"), workers(2)(sum_by_backend, "direct"), strict=True
    ):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_no_round_is_captured_and_the_record_says_why(workers: Workers) -> None:
    for launches, report in workers(2)(captured_of_rank):
        assert (launches, report.captured, report.refused) == (0, 0, {REFUSES_CAPTURE: 1})
    for said in workers(2)(required_of_rank):
        assert said == f"a round cannot be captured in a CUDA graph: {REFUSES_CAPTURE}"


def test_a_rank_that_leaves_is_named_at_once(workers: Workers) -> None:
    (said, seconds), _ = workers(2)(lost_by_rank)
    assert said.startswith("rank 0 lost rank 1: ") and seconds < 15


def test_its_links_cannot_be_paced() -> None:
    connections = Connections(link=PacedLink(1e6), host_copies=HostCopies(CPU))
    world = SimpleNamespace(_on_gpu=False)
    with pytest.raises(ValueError, match="paced between CPU workers only"):
        ProcessWorld._make_pacer(world, connections, 1.0)  # type: ignore[arg-type]


class Held:
    """A moment that passes when it is told to."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def synchronize(self) -> None:
        assert self.passed.wait(20)


class HeldCopies(HostCopies):
    """Copies whose moments the test decides."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.moments: list[Held] = []

    def moment(self) -> Held:
        self.moments.append(Held())
        return self.moments[-1]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tags of what gloo was given."""
    tags: list[int] = []

    def issue(buffer: torch.Tensor, tag: int, **rest: Any) -> None:
        tags.append(tag)

    monkeypatch.setattr(staging.dist, "isend", issue)
    monkeypatch.setattr(staging.dist, "irecv", issue)
    return tags


def test_nothing_leaves_before_its_copy_has_ended(sent: list[int]) -> None:
    copies = HeldCopies()
    carried = Staging(copies)
    try:
        first = carried.send(None, 1, torch.zeros(3), 7)  # type: ignore[arg-type]
        second = carried.send(None, 1, torch.zeros(3), 8)  # type: ignore[arg-type]
        copies.moments[1].passed.set()
        assert sent == []
        copies.moments[0].passed.set()
        first.wait(SECOND)
        second.wait(SECOND)
        assert sent == [7, 8]
    finally:
        carried.close()


def test_the_time_limit_of_a_message_begins_when_the_device_has_come_to_it(sent: list[int]) -> None:
    copies, waited = HeldCopies(), list[str]()
    carried = Staging(copies)
    try:
        flight = carried.receive(None, 1, torch.zeros(3), 7)  # type: ignore[arg-type]
        assert sent == [7], "it is posted at once"
        thread = threading.Thread(target=lambda: (flight.wait(SECOND), waited.append("it")))
        thread.start()
        thread.join(0.05)
        assert not waited
        copies.moments[0].passed.set()
        thread.join(20)
        assert waited == ["it"]
    finally:
        carried.close()


def test_what_has_not_left_when_it_is_closed_says_so(sent: list[int]) -> None:
    copies = HeldCopies()
    carried = Staging(copies)
    carried.send(None, 1, torch.zeros(3), 7)  # type: ignore[arg-type]
    queued = carried.send(None, 1, torch.zeros(3), 8)  # type: ignore[arg-type]
    carried.drop()
    later = carried.send(None, 1, torch.zeros(3), 9)  # type: ignore[arg-type]
    for moment in copies.moments:
        moment.passed.set()
    for flight in (queued, later):
        with pytest.raises(RuntimeError, match="closed before the message left"):
            flight.wait(SECOND)
    carried.close()
    assert 8 not in sent and 9 not in sent


def test_late_copies_are_late() -> None:
    """The tests above rest on it."""
    host, moment = LateCopies().to_host(torch.arange(4.0))
    assert not torch.equal(host, torch.arange(4.0))
    moment.synchronize()
    assert torch.equal(host, torch.arange(4.0))
