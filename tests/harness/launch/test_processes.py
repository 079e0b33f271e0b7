"""Child processes: the rank at fault is named, and whatever happens none is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import launch_jobs as jobs
import pytest

from gradwire.harness.launch import processes
from gradwire.harness.launch.processes import WorkerError, run_processes
from gradwire.harness.launch.stop import ECHO_S
from gradwire.harness.launch.verdict import tracebacks


def assert_gone(folder: Path, size: int) -> None:
    """All processes that left their id in `folder` end within seconds."""
    pids = [int((folder / f"pid{rank}").read_text()) for rank in range(size)]
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """A zombie, ended and waiting for whoever adopted it, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def failure(target: Callable[..., None], folder: Path, size: int = 2) -> str:
    """The one line that `run_processes` fails with; asserts that nobody is left."""
    with pytest.raises(WorkerError) as failed:
        run_processes(target, (folder, size), size, folder)
    assert_gone(folder, size)
    assert "\n" not in str(failed.value)
    return str(failed.value)


def test_all_end_well(tmp_path: Path) -> None:
    run_processes(jobs.end_well, (tmp_path, 2), 2, tmp_path)
    assert_gone(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid0", "pid1"]


def test_a_rank_that_raises_is_named(tmp_path: Path) -> None:
    assert failure(jobs.raise_on_rank_1, tmp_path) == "rank 1 failed: ValueError: the cause"
    text = tracebacks(tmp_path)
    for part in ("rank0\n", "rank1\n", "in raise_on_rank_1", "and more of it", "LostPeerError"):
        assert part in text


def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    assert failure(jobs.kill_rank_1, tmp_path) == "rank 1 was killed by SIGKILL (out of memory?)"


def test_a_rank_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stopped process is ended all the same."""
    monkeypatch.setattr(processes, "GRACE_S", 1.0)
    expected = "rank 1 hung: no answer within cluster.timeout_s (LostPeerError: lost rank 1)"
    assert failure(jobs.stop_rank_1, tmp_path) == expected


def started_parent(folder: Path) -> subprocess.Popen[str]:
    """A parent in a process group of its own, as under a terminal, whose child waits for ever."""
    parent = subprocess.Popen(
        [sys.executable, jobs.__file__, str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list(folder.glob("pid?"))) < 1:
        assert parent.poll() is None, parent.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return parent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    parent = started_parent(tmp_path)
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # a terminal's Ctrl-C reaches the children too
    else:
        parent.send_signal(number)
        if number == signal.SIGTERM:  # a request, which these children do not hear; the second one insists
            time.sleep(ECHO_S + 0.5)
            assert parent.poll() is None
            parent.send_signal(number)
    printed = parent.communicate(timeout=60)[1]
    assert_gone(tmp_path, 1)
    assert parent.returncode != 0
    expected = {signal.SIGINT: "KeyboardInterrupt", signal.SIGTERM: "Terminated", signal.SIGKILL: ""}
    assert expected[number] in printed.splitlines()[-1] if printed else not expected[number]
    assert printed.count("Traceback") == bool(expected[number]), "the parent's, not the children's"


class WorkerSeenLate:
    """A process whose sentinel is ready before its exit code can be read; the first look finds none."""

    def __init__(self) -> None:
        self.sentinel, other = os.pipe()
        os.close(other)
        self._looks = 0

    @property
    def exitcode(self) -> int | None:
        self._looks += 1
        return 1 if self._looks > 1 else None

    def join(self) -> None:
        self._looks = 1


def test_an_exit_code_that_comes_late_is_not_missed(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="rank 0 ended with exit code 1"):
        processes._watch([WorkerSeenLate()], tmp_path)  # type: ignore[list-item]
