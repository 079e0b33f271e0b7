"""User-space pacing: no message is earlier than its link allows, and no sender waits for a closed link."""

from __future__ import annotations

import math
import threading
import time

import pytest
import torch
from pacer_jobs import send_or_receive
from pool import Workers

from gradwire.harness.comm.transport.pacer import PacedLink, Pacer


def test_a_link_is_serial_and_then_late() -> None:
    link = PacedLink(1000.0, latency_s=0.25)
    assert link.transmit(10.0, 500) == 10.75
    assert link.transmit(10.0, 500) == 11.25, "the second waits for the first to have left, not arrived"
    assert link.transmit(20.0, 1000) == 21.25, "an idle link starts at once"
    assert PacedLink(math.inf).transmit(3.0, 10**12) == 3.0


def test_messages_arrive_in_order_and_not_before_their_time(workers: Workers) -> None:
    num_bytes, rate, latency_s = 50_000, 1e6, 0.02
    ((start, _),), arrivals = workers(2)(send_or_receive, num_bytes, rate, latency_s, 4)
    assert [value for _, value in arrivals] == [1, 2, 3, 4]
    for number, (arrival, _) in enumerate(arrivals, 1):
        assert arrival - start >= number * num_bytes / rate + latency_s


def test_closing_gives_up_what_has_not_left() -> None:
    """A slow link would hold the process for hours; closing it wakes the waiting threads."""
    pacer = Pacer(PacedLink(1.0), timeout_s=3600)
    pending = [pacer.send(None, 1, torch.zeros(10_000, dtype=torch.uint8), 0) for _ in range(2)]  # type: ignore[arg-type]
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            pending[0]()
        except RuntimeError as error:
            heard.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    start = time.monotonic()
    pacer.close()
    waiting.join(30)
    assert "closed before the message left" in str(heard[0])
    with pytest.raises(RuntimeError, match="closed"):
        pending[1]()
    assert time.monotonic() - start < 60


def test_a_send_that_fails_is_heard_of() -> None:
    pacer = Pacer(PacedLink(math.inf), timeout_s=10)
    work = pacer.send(None, 1, torch.zeros(1, dtype=torch.uint8), 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="process group"):
        work()
    pacer.close()
