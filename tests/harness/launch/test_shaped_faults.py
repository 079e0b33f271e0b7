"""Ranks whose link is cut, lost or no longer shaped, or whose background jobs die: the run names the rank."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import launch_jobs
import pytest
import shaped_jobs as jobs

sys.path.append(str(Path(__file__).resolve().parents[1] / "network"))

from namespaces_seen import assert_gone, command_inside, held_by, root_network

from gradwire.harness.launch import processes
from gradwire.harness.launch.processes import Supervision, WorkerError, run_processes
from gradwire.harness.launch.verdict import verdict, write_report
from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.namespace import path_of
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.star import LinkLimits

REASON = why_not()
needs_links = pytest.mark.skipif(REASON is not None, reason=f"links cannot be shaped here: {REASON}")

RANKS = 3


def failure(
    folder: Path, network: ShapedNetwork, harm: Callable[[], object], target: Callable[..., None]
) -> str:
    """The line that a run on `network` ends with when `harm` comes to it as soon as its ranks have met."""

    def when_all_sum() -> None:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("sums?"))) < RANKS and time.monotonic() < deadline:
            time.sleep(0.02)
        harm()

    entrances = [network.entrance(rank) for rank in range(RANKS)]
    harming = threading.Thread(target=when_all_sum, daemon=True)
    harming.start()
    with pytest.raises(WorkerError) as failed:
        run_processes(target, (folder, entrances), RANKS, folder, Supervision(surroundings=network))
    return str(failed.value)


FAULTS: list[tuple[str, str]] = [
    ("ip link set rank2 down", "its link is down"),
    ("ip link delete rank2", "its link is gone"),
    ("tc qdisc delete dev rank2 root", "its link is not shaped as it was made"),
]


@needs_links
@pytest.mark.parametrize(("command", "reason"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_damaged_link_ends_the_run(command: str, reason: str, tmp_path: Path) -> None:
    before = root_network()
    with ShapedNetwork(RANKS, LinkLimits(100, 256)) as network:
        held = held_by(os.getpid())
        assert len(held) >= 3, "the switch's and the ranks'"
        line = failure(
            tmp_path,
            network,
            lambda: command_inside(path_of(network._switch), command),
            jobs.sum_for_ever,
        )
    assert line.startswith(f"rank 2 failed: {reason}")
    assert "\n" not in line
    assert_gone(held)
    assert root_network() == before


@needs_links
def test_background_jobs_that_die_end_the_run(tmp_path: Path) -> None:
    with ShapedNetwork(RANKS, LinkLimits(100, 256)) as network:
        network.start_background(1, 1.0)
        assert network._background is not None
        victim = network._background._processes[1].pid
        line = failure(tmp_path, network, lambda: os.kill(victim, signal.SIGKILL), jobs.sum_for_ever)
    assert line.startswith("rank 1 failed: its background jobs were killed by signal 9")


@needs_links
def test_a_namespace_whose_processes_are_killed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 1.0)
    with ShapedNetwork(RANKS, LinkLimits(100, 256)) as network:
        held = held_by(os.getpid())
        assert len(held) >= 3, "the switch's and the ranks'"
        line = failure(tmp_path, network, lambda: None, jobs.die_on_rank_2)
    assert line == "rank 2 was killed by SIGKILL (out of memory?)"
    assert_gone(held)


class Told:
    """A network in which something may be wrong; every look at it is counted."""

    def __init__(self, troubles: Mapping[int, str]) -> None:
        self._troubles, self.looks = troubles, 0
        self._read, write = os.pipe()
        os.write(write, b"x")
        os.close(write)

    @property
    def sentinels(self) -> list[int]:
        return [] if self.looks else [self._read]

    def diagnose(self) -> Mapping[int, str]:
        self.looks += 1
        return self._troubles


def test_trouble_ends_ranks_that_notice_nothing(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"^rank 1 failed: its link is down$"):
        run_processes(
            launch_jobs.wait_for_ever,
            (tmp_path, 2),
            2,
            tmp_path,
            Supervision(surroundings=Told({1: "its link is down"})),
        )


def test_a_change_without_trouble_ends_nothing(tmp_path: Path) -> None:
    told = Told({})
    run_processes(launch_jobs.end_well, (tmp_path, 2), 2, tmp_path, Supervision(surroundings=told))
    assert told.looks == 1


DOWN = {2: "its link is down"}
LOST = launch_jobs.LostPeerError


@pytest.mark.parametrize(
    ("codes", "errors", "troubles", "expected"),
    [
        ({0: 1, 1: 3}, {0: LOST(1)}, DOWN, "rank 1 ended with exit code 3"),
        ({0: 1, 1: None}, {0: LOST(1)}, DOWN, "rank 2 failed: its link is down (LostPeerError: lost rank 1)"),
        ({0: 1}, {0: OSError("no route")}, DOWN, "rank 2 failed: its link is down (OSError: no route)"),
        ({0: -9}, {}, DOWN, "rank 0 was killed by SIGKILL (out of memory?)"),
        ({}, {}, {0: "its link is gone", **DOWN}, "rank 0 failed: its link is gone; rank 2 failed: its link"),
        ({0: 1}, {0: OSError("a full disk")}, {}, "rank 0 failed: OSError: a full disk"),
    ],
)  # fmt: skip
def test_what_is_wrong_around_a_rank_is_the_cause(
    codes: dict[int, int | None],
    errors: dict[int, Exception],
    troubles: dict[int, str],
    expected: str,
    tmp_path: Path,
) -> None:
    for rank, error in errors.items():
        write_report(tmp_path, rank, error)
    assert verdict(codes, tmp_path, troubles).text.startswith(expected)
