"""The streams of ranks on GPUs, followed on a CPU: events put all accesses of the same bytes in an order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ranks_on_device import Rounds, assert_same, on_device, virtually
from stream_channel import Communicator, Delivery
from stream_order import StartedInOrder, watch_streams

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.comm.transport.channel import CollectiveTask
from gradwire.harness.comm.transport.thread import CommunicationThread
from gradwire.harness.comm.world.started import ProcessStarted

CPU = torch.device("cpu")
LENGTHS = (2_000, 300, 900)


@pytest.mark.parametrize(
    ("codec", "topology", "size"),
    [
        ("fp32", "ring", 3),
        ("bf16", "butterfly", 3),
        ("mxfp8", "butterfly", 3),
        ("onebit", "ring", 3),
        ("dynamiq", "ring", 2),
    ],
)
def test_no_stream_uses_what_another_has_not_finished(
    codec: str, topology: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the definitions in PyTorch, whose operations are seen. What all ranks of a process share, and a rank
    of its own does not, was made before."""
    rounds = Rounds(codec, topology, size, LENGTHS, steps=2)
    with using_kernels("default"):
        expected = virtually(rounds)
        order = watch_streams(monkeypatch)
        found = on_device(rounds, CPU, longest_ms=0.1)
    assert not order.races
    assert_same(found, expected)


def without_ready_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = CommunicationThread._drive

    def without(thread: CommunicationThread, task: CollectiveTask) -> None:
        task.ready = None
        drive(thread, task)

    monkeypatch.setattr(CommunicationThread, "_drive", without)


def without_sent_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Communicator._copy

    def without(communicator: Communicator, sent: Delivery, received: Delivery, stream: None) -> None:
        sent.posted = None
        copy(communicator, sent, received, stream)

    monkeypatch.setattr(Communicator, "_copy", without)


def without_received_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Delivery.wait

    def without(delivery: Delivery) -> None:
        assert delivery.matched.wait(60)
        delivery.copied = None
        wait(delivery)

    monkeypatch.setattr(Delivery, "wait", without)


def without_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StartedInOrder, "wait", ProcessStarted.wait)


@pytest.mark.parametrize(
    "forget", [without_ready_inputs, without_sent_messages, without_received_messages, without_results]
)
def test_a_forgotten_event_is_noticed(
    forget: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where, as here, everything happens in the right order by chance."""
    order = watch_streams(monkeypatch)
    forget(monkeypatch)
    on_device(Rounds("fp32", "ring", 2, LENGTHS, steps=2), CPU, longest_ms=0)
    assert order.races
