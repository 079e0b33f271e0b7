"""Shaped links whose rate changes: by the training clock that rank 0 sends, recorded, and no fault; what is
wrong with a link stays one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

import pytest
import torch
from namespaces_seen import assert_gone, command_inside, held_by, nothing_left

from gradwire.harness.network.links import Change
from gradwire.harness.network.shaped import network as shaped
from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.namespace import path_of
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.rate_changes import MadeChange, clock_sender, ignore_clock
from gradwire.harness.network.shaped.star import LinkLimits
from gradwire.harness.timing.measure.clock import TrainingClock

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"links cannot be shaped here: {REASON}")

CHANGES = [Change(0, 0.5), Change(1, 0.25), Change(2, 2)]
UNSHAPED = "its link is not shaped as it was made"


@pytest.fixture
def network() -> Iterator[ShapedNetwork]:
    """Two ranks at 100 Mbit/s; whatever a test does, nothing is left behind."""
    with nothing_left():
        with ShapedNetwork(2, LinkLimits(100, 256)) as made:
            held = held_by(os.getpid())
            yield made
        assert_gone(held)


def rates(network: ShapedNetwork) -> set[str]:
    """The rates that `tc` shows at all four ends."""
    ends = [(network.entrance(rank).path, "uplink") for rank in range(2)]
    ends += [(path_of(network._switch), f"rank{rank}") for rank in range(2)]
    printed = [command_inside(path, f"tc class show dev {interface}") for path, interface in ends]
    return {text.partition(" rate ")[2].split()[0] for text in printed}


class Record:
    """The latest recorded changes; `wait_for` waits until there are enough of them."""

    def __init__(self) -> None:
        self.made: list[MadeChange] = []

    def __call__(self, made: Sequence[MadeChange]) -> None:
        self.made = list(made)

    def wait_for(self, count: int) -> list[tuple[float, float, float]]:
        deadline = time.monotonic() + 30
        while len(self.made) < count:
            assert time.monotonic() < deadline, self.made
            time.sleep(0.01)
        return [(one.planned_s, one.factor, one.rate_mbit) for one in self.made]


def tell_of(network: ShapedNetwork) -> Callable[[float, bool], None]:
    """Returns a sender of a clock; the descriptor is closed with the process, as that of a rank."""
    assert network.entrance(1).clock is None, "rank 0 keeps the record"
    return clock_sender(network.entrance(0))


@pytest.fixture
def told(network: ShapedNetwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Starts the changes; gives the sender of the clock, and the record. Closes descriptors afterwards."""
    opened = list[int]()
    monkeypatch.setattr(os, "open", lambda *given, real=os.open: opened.append(real(*given)) or opened[-1])

    def start() -> Any:
        record = Record()
        network.start_rate_changes(CHANGES, record)
        opened.clear()
        return tell_of(network), record

    yield start
    os.close(opened[0])


def test_rates_follow_the_training_clock_and_are_no_trouble(network: ShapedNetwork, told: Any) -> None:
    tell, record = told()
    assert record.wait_for(1) == [(0, 0.5, 50)]
    assert rates(network) == {"50Mbit"}
    tell(1.25, False)
    assert record.wait_for(2)[1:] == [(1, 0.25, 25)]
    assert rates(network) == {"25Mbit"}
    assert record.made[1].made_s == 1.25, "where the clock stands"
    tell(1.9, True)
    assert record.wait_for(3)[2:] == [(2, 2, 200)]
    assert rates(network) == {"200Mbit"}
    assert 2 <= record.made[2].made_s < 30
    assert wait(network.sentinels, 0), "the kernel told of it"
    while wait(network.sentinels, 0.2):
        assert network.diagnose() == {}


def test_a_clock_that_stands_still_changes_nothing(network: ShapedNetwork, told: Any) -> None:
    clock = TrainingClock("wall", torch.device("cpu"), (begun := told())[0])
    clock.resume(0.5)
    clock.start()
    with clock.paused():
        time.sleep(0.7)
        assert clock.seconds < 1
        assert begun[1].wait_for(1) == [(0, 0.5, 50)]
        assert rates(network) == {"50Mbit"}
    clock.stop()
    time.sleep(0.7)
    assert rates(network) == {"50Mbit"}


def test_a_resumed_clock_gets_the_rate_of_its_moment_at_once(network: ShapedNetwork, told: Any) -> None:
    tell, record = told()
    record.wait_for(1)
    TrainingClock("wall", torch.device("cpu"), tell).resume(7.5)
    assert record.wait_for(2)[1:] == [(2, 2, 200)], "the change at second 1 is superseded"
    assert rates(network) == {"200Mbit"}


def test_no_clock_is_sent_if_rates_stay(network: ShapedNetwork) -> None:
    assert clock_sender(None) is ignore_clock
    assert clock_sender(network.entrance(0)) is ignore_clock


def test_throughput_follows_the_rate(network: ShapedNetwork) -> None:
    before = network.measure_goodput()
    assert network.set_rate(20) == {}
    after = network.measure_goodput()
    assert before is not None
    assert after is not None
    assert 3 < before / after < 8


FAULTS = [
    ("tc qdisc delete dev rank1 root", UNSHAPED, True),
    ("tc class change dev rank1 classid 1:1 htb rate 200mbit", UNSHAPED, False),
    ("ip link delete rank1", "its link is gone", True),
    ("ip link set rank1 down", "its link is down", False),
]


@pytest.mark.parametrize(("command", "reason", "refused"), FAULTS, ids=[case[0] for case in FAULTS])
def test_a_fault_before_a_change_stays_a_fault(
    command: str, reason: str, refused: bool, network: ShapedNetwork
) -> None:
    command_inside(path_of(network._switch), command)
    assert set(network.set_rate(50)) == ({1} if refused else set())
    assert network.diagnose() == {1: reason}


def test_a_fault_after_a_change_is_one(network: ShapedNetwork) -> None:
    assert network.set_rate(50) == {}
    command_inside(network.entrance(0).path, "tc class change dev uplink classid 1:1 htb rate 100mbit")
    assert network.diagnose() == {0: UNSHAPED}, "even back to the first rate"


def test_a_change_that_cannot_be_made_is_trouble(
    network: ShapedNetwork, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, record = told()
    record.wait_for(1)
    while wait(network.sentinels, 0.2):
        assert network.diagnose() == {}

    def refused(program: str, lines: Sequence[str]) -> str:
        raise shaped.ShapingError(f"{program} did not end within 20 s")

    with monkeypatch.context() as patched:
        patched.setattr(shaped, "batch", refused)
        tell(1.0, False)
        assert wait(network.sentinels, 20)
    reason = "the rate of its link cannot be changed: tc did not end within 20 s"
    assert network.diagnose() == {0: reason, 1: reason}
    assert [one.planned_s for one in record.made] == [0]
    assert rates(network) == {"50Mbit"}


def test_an_interrupt_lets_a_change_end_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    changing, go_on, real = threading.Event(), threading.Event(), shaped.batch

    def slow(program: str, lines: Sequence[str]) -> str:
        if any("class change" in line for line in lines):
            changing.set()
            assert go_on.wait(20)
        return real(program, lines)

    monkeypatch.setattr(shaped, "batch", slow)
    record = Record()
    with pytest.raises(KeyboardInterrupt), ShapedNetwork(2, LinkLimits(100, 256)) as network:
        held = held_by(os.getpid())
        network.start_rate_changes(CHANGES, record)
        assert changing.wait(20)
        threading.Timer(0.1, go_on.set).start()
        raise KeyboardInterrupt
    assert [one.planned_s for one in record.made] == [0]
    assert_gone(held)


PARENT = """
from gradwire.harness.network.shaped.star import LinkLimits
from gradwire.harness.network.shaped.network import ShapedNetwork
with ShapedNetwork(2, LinkLimits(100, 256)) as network:
    print("made", flush=True)
    while not network.set_rate(50) and not network.set_rate(100):
        pass
"""


def test_a_launcher_that_is_killed_during_a_change_leaves_nothing() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "made\n"
        held = held_by(parent.pid)
        assert len(held) == 3
        time.sleep(0.1)
    finally:
        parent.kill()
        parent.communicate()
    assert_gone(held)
