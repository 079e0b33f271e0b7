"""Networks of shaped links: configured as requested, isolated, watched for changes, and gone afterwards."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from namespaces_seen import assert_gone, command_inside, held_by, inside, nothing_left

from gradwire.harness.network.shaped import network as shaped
from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.namespace import path_of
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.star import LinkLimits, ShapingError

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"links cannot be shaped here: {REASON}")

SPEED = LinkLimits(100, 256)


@pytest.fixture
def network() -> Iterator[ShapedNetwork]:
    """Three ranks; whatever a test does, nothing is left behind and the root namespace is as before."""
    with nothing_left():
        with ShapedNetwork(3, SPEED) as made:
            held = held_by(os.getpid())
            assert len(held) == 4
            yield made
        assert_gone(held)


def switch(network: ShapedNetwork) -> str:
    return path_of(network._switch)


def test_both_ends_of_every_link_are_shaped(network: ShapedNetwork) -> None:
    ends = [(network.entrance(rank).path, "uplink") for rank in range(3)]
    ends += [(switch(network), f"rank{rank}") for rank in range(3)]
    for path, interface in ends:
        assert "rate 100Mbit ceil 100Mbit" in command_inside(path, f"tc class show dev {interface}")
        assert "bfifo" in (queues := command_inside(path, f"tc qdisc show dev {interface}"))
        assert "limit 256Kb" in queues
    assert network.diagnose() == {}


@pytest.mark.parametrize(("queue_kb", "queue"), [(512, "limit 512Kb"), (None, "limit 1000p")])
def test_the_queue_is_as_deep_as_asked(queue_kb: int | None, queue: str) -> None:
    with ShapedNetwork(2, LinkLimits(2.5, queue_kb)) as network:
        for path, interface in (switch(network), "rank1"), (network.entrance(0).path, "uplink"):
            assert queue in command_inside(path, f"tc qdisc show dev {interface}")
            assert "rate 2500Kbit" in command_inside(path, f"tc class show dev {interface}")


def test_tcp_inside_is_set_and_outside_is_not(network: ShapedNetwork) -> None:
    def settings() -> list[str]:
        names = ("tcp_congestion_control", "tcp_slow_start_after_idle")
        return [Path(f"/proc/sys/net/ipv4/{name}").read_text().strip() for name in names]

    outside = settings()
    assert inside(network.entrance(2).path, settings) == ["reno", "0"]
    assert settings() == outside


def test_a_link_carries_little_less_than_its_rate(network: ShapedNetwork) -> None:
    goodput = network.measure_goodput()
    assert goodput is not None
    assert 70 < goodput < 100


def test_more_than_the_rate_is_an_error(network: ShapedNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaped, "measure_goodput", lambda *_: 140.0)
    with pytest.raises(ShapingError, match=r"network.rate_mbit=100: a link carries 140 Mbit/s all the same"):
        network.measure_goodput()


def test_one_rank_sends_nothing() -> None:
    with ShapedNetwork(1, SPEED) as network:
        assert network.measure_goodput() is None
        assert network.diagnose() == {}


def test_entrances_can_be_sent_to_the_workers(network: ShapedNetwork) -> None:
    ours, workers = multiprocessing.Pipe()  # packs objects as it does for processes that it starts
    ours.send(network.entrance(1))
    entrance = workers.recv()
    assert "10.77.0.2/16" in command_inside(entrance.path, f"ip address show dev {entrance.interface}")


def test_two_networks_at_once_do_not_meet(network: ShapedNetwork) -> None:
    """Both networks have the same names and addresses; a connection stays in its own."""

    def listener() -> socket.socket:
        return socket.create_server(("10.77.0.2", 7777))

    def call() -> socket.socket:
        return socket.create_connection(("10.77.0.2", 7777), timeout=5)

    with ShapedNetwork(3, SPEED) as other, inside(network.entrance(1).path, listener) as mine:
        with pytest.raises(ConnectionRefusedError):
            inside(other.entrance(0).path, call)
        with inside(other.entrance(1).path, listener) as theirs, inside(network.entrance(0).path, call):
            theirs.setblocking(False)
            with pytest.raises(BlockingIOError):
                theirs.accept()
            mine.accept()[0].close()
        command_inside(other.entrance(0).path, "ip link delete uplink")
        assert (network.diagnose(), other.diagnose()) == ({}, {0: "its link is gone"})


def until_quiet(network: ShapedNetwork) -> None:
    """Waits for the kernel's late messages about new links, none of which is a fault."""
    for _ in range(100):
        assert network.diagnose() == {}
        if not wait(network.sentinels, 0.3):
            return
    raise AssertionError("changes without end")


UNSHAPED = "its link is not shaped as it was made"
DAMAGES = [
    ("rank", "ip link set uplink down", {1: "its link is down"}),
    ("switch", "ip link set rank1 down", {1: "its link is down"}),
    ("rank", "ip link delete uplink", {1: "its link is gone"}),
    ("switch", "ip link delete rank1", {1: "its link is gone"}),
    ("rank", "ip link set uplink name other", {1: "its link is gone"}),
    ("rank", "ip address flush dev uplink", {1: "its link has lost its address"}),
    ("rank", "tc qdisc delete dev uplink root", {1: UNSHAPED}),
    ("switch", "tc qdisc delete dev rank1 root", {1: UNSHAPED}),
    ("rank", "tc class delete dev uplink classid 1:1", {1: UNSHAPED}),
    ("switch", "tc class change dev rank1 classid 1:1 htb rate 200mbit", {1: UNSHAPED}),
    ("switch", "ip link set rank1 nomaster", {1: "its link has left the switch"}),
    ("switch", "ip link set switch down", dict.fromkeys(range(3), "its link has left the switch")),
]


@pytest.mark.parametrize(("where", "command", "expected"), DAMAGES, ids=[case[1] for case in DAMAGES])
def test_a_changed_link_is_detected_and_named(
    where: str, command: str, expected: dict[int, str], network: ShapedNetwork
) -> None:
    until_quiet(network)
    command_inside(switch(network) if where == "switch" else network.entrance(1).path, command)
    assert wait(network.sentinels, 10)
    assert network.diagnose() == expected


def test_a_harmless_change_is_detected_once(network: ShapedNetwork) -> None:
    until_quiet(network)
    command_inside(network.entrance(0).path, "ip link set uplink txqueuelen 900")
    assert wait(network.sentinels, 10)
    until_quiet(network)


REFUSED = [
    (0, SPEED, r"network=shaped takes 1 to 250 workers, not 0"),
    (251, SPEED, r"network=shaped takes 1 to 250 workers, not 251"),
    (2, LinkLimits(100, -1), r"tc qdisc add dev rank0 parent 1:1 bfifo limit -1024: "),
]


@pytest.mark.parametrize(("ranks", "limits", "message"), REFUSED)
def test_what_cannot_be_made_is_one_line_and_leaves_nothing(
    ranks: int, limits: LinkLimits, message: str
) -> None:
    with nothing_left():
        with pytest.raises(ShapingError, match=message) as refused, ShapedNetwork(ranks, limits):
            pass
        assert "\n" not in str(refused.value)
    assert_gone(held_by(os.getpid()))


def test_a_system_that_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ShapingError, match=r"ip: No such file or directory"), ShapedNetwork(2, SPEED):
        pass
    assert_gone(held_by(os.getpid()))
