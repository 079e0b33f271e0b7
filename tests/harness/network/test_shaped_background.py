"""Background jobs on the same links: they take their share, and end when they should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait

import pytest
from namespaces_seen import assert_gone, held_by

from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.star import LinkLimits, ShapingError

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"links cannot be shaped here: {REASON}")

RATE = 100.0


@pytest.fixture
def network() -> Iterator[ShapedNetwork]:
    """Three ranks."""
    with ShapedNetwork(3, LinkLimits(RATE, 256)) as made:
        held = held_by(os.getpid())
        yield made
    assert_gone(held)


def background_of(network: ShapedNetwork) -> list[int]:
    assert network._background is not None
    return [process.pid for process in network._background._processes]


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_background_jobs_take_their_share(network: ShapedNetwork) -> None:
    alone = network.measure_goodput()
    network.start_background(1, 3.0)
    time.sleep(0.5)
    shared, (goodput,) = network.measure_goodput(), network.stop_background()
    assert alone is not None
    assert shared is not None
    assert shared < 0.8 * alone
    assert 0.2 * RATE < goodput < RATE


def test_jobs_share_what_a_link_carries(network: ShapedNetwork) -> None:
    network.start_background(3, 1.0)
    pids = background_of(network)
    time.sleep(1.5)
    goodputs = network.stop_background()
    assert len(goodputs) == 3
    assert min(goodputs) > 0
    assert 0.5 * RATE < sum(goodputs) < RATE
    assert not any(map(is_running, pids))
    assert network.stop_background() == []


def test_two_ranks_are_neighbours_on_both_sides() -> None:
    with ShapedNetwork(2, LinkLimits(RATE, None)) as network:
        network.start_background(2, 1.0)
        time.sleep(0.3)
        assert min(network.stop_background()) > 0


def test_one_rank_has_no_links_to_share() -> None:
    with (
        ShapedNetwork(1, LinkLimits(RATE, None)) as network,
        pytest.raises(
            ShapingError, match=r"network.background_jobs=2 needs links to share; use cluster.workers=2"
        ),
    ):
        network.start_background(2, 1.0)


def test_background_jobs_that_die_are_named(network: ShapedNetwork) -> None:
    """The others lose their neighbour, which is not their fault."""
    network.start_background(1, 1.0)
    assert network.diagnose() == {}
    os.kill(background_of(network)[2], signal.SIGKILL)
    assert wait(network.sentinels, 10)
    assert network.diagnose() == {2: "its background jobs were killed by signal 9"}
    time.sleep(1.5)
    assert network.diagnose() == {2: "its background jobs were killed by signal 9"}
    assert network.stop_background() == []


def test_background_jobs_outlive_the_signals_that_a_run_handles(network: ShapedNetwork) -> None:
    network.start_background(1, 1.0)
    for pid in background_of(network):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            os.kill(pid, number)
    time.sleep(0.5)
    assert network.diagnose() == {}
    assert network.stop_background()[0] > 0


PARENT = """
from gradwire.harness.network.shaped.star import LinkLimits
from gradwire.harness.network.shaped.network import ShapedNetwork
import time
with ShapedNetwork(2, LinkLimits(100, 256)) as network:
    network.start_background(1, 1.0)
    print(*[process.pid for process in network._background._processes], flush=True)
    time.sleep(600)
"""


def test_background_jobs_end_with_their_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        held = held_by(parent.pid)
        assert len(pids) == 2
        assert len(held) == 3
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_gone(held)
