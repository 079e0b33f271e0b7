"""Child processes: the rank at fault is named, and none is left running, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import launch_jobs as jobs
import pytest

from gradwire.harness.launch import patience, processes, worker
from gradwire.harness.launch.launch import raise_if_stopped
from gradwire.harness.launch.patience import Patience
from gradwire.harness.launch.processes import Supervision, WorkerError, run_processes
from gradwire.harness.launch.stop import ECHO_S, StopRequest, Terminated
from gradwire.harness.launch.verdict import Cause, tracebacks
from gradwire.harness.record.attempts import RankEnd
from gradwire.harness.runtime.heartbeat import share_beats
from gradwire.harness.tasks.main import interrupt_code


def assert_gone(folder: Path, size: int) -> None:
    """All processes that left their id in `folder` end within seconds."""
    pids = [int((folder / f"pid{rank}").read_text()) for rank in range(size)]
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """True if the process runs; false for a zombie, which has ended and waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that have imported all they need: a new interpreter takes seconds to."""
    monkeypatch.setattr(processes, "get_context", lambda _: get_context("fork"))
    monkeypatch.setattr(patience, "POLL_S", 0.2)


def failure(target: Callable[..., None], folder: Path, size: int = 2, **options: float) -> WorkerError:
    """The one-line error of `run_processes`; asserts that no process is left."""
    with pytest.raises(WorkerError) as failed:
        run_processes(target, (folder, size), size, folder, Supervision(**options))  # type: ignore[arg-type]
    assert_gone(folder, size)
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) <= 300
    return failed.value


def test_all_end_well(tmp_path: Path) -> None:
    assert run_processes(jobs.end_well, (tmp_path, 2), 2, tmp_path) == ""
    assert_gone(tmp_path, 2)
    assert not tracebacks(tmp_path)


def test_a_rank_that_raises_is_named(tmp_path: Path) -> None:
    failed = failure(jobs.raise_on_rank_1, tmp_path)
    assert str(failed) == "rank 1 failed: ValueError: the cause"
    assert failed.found.cause is Cause.FINAL
    text = tracebacks(tmp_path)
    for part in ("rank0\n", "rank1\n", "in raise_on_rank_1", "and more of it", "LostPeerError"):
        assert part in text


@pytest.mark.usefixtures("forked")
def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    failed = failure(jobs.kill_rank_1, tmp_path)
    assert str(failed) == "rank 1 was killed by SIGKILL (out of memory?)"
    assert failed.found.cause is Cause.OUTSIDE
    assert failed.found.ends == (RankEnd(1, signal="SIGKILL"),)


@pytest.mark.usefixtures("forked")
def test_a_rank_that_does_not_answer_the_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped process is ended all the same, and its report is not waited for."""
    monkeypatch.setattr(processes, "GRACE_S", 600.0)
    assert str(failure(jobs.stop_rank_1, tmp_path)) == (
        "rank 1 hung: no answer within cluster.timeout_s, rank 1 is stopped (state T) "
        "(LostPeerError: lost rank 1)"
    )
    assert "rank1, which was still running\nno stacks: stopped (state T)" in tracebacks(tmp_path)


@pytest.mark.usefixtures("forked")
def test_a_rank_stopped_in_the_start_up_is_named_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank is stopped, which the other one waits for; then both are, and the launcher waits for them."""
    monkeypatch.setattr(processes, "GRACE_S", 600.0)
    monkeypatch.setattr(worker, "START_S", 1.0)
    monkeypatch.setattr(patience, "START_S", 1.0)
    (tmp_path / "one").mkdir()
    failed = failure(jobs.stop_rank_1_before_it_is_up, tmp_path / "one", hang_s=600.0)
    assert str(failed) == (
        "rank 1 hung: not up in time, rank 1 is stopped (state T) "
        "(AbsentPeerError: rank 1 has not come up within 1 s of the launch)"
    )
    assert failed.found.ends == (RankEnd(1),)
    (tmp_path / "connecting").mkdir()
    failed = failure(jobs.stop_rank_1_as_ranks_connect, tmp_path / "connecting", hang_s=600.0)
    assert str(failed) == (
        "rank 1 hung: not connected within cluster.timeout_s, rank 1 is stopped (state T) "
        "(NotConnectedError: not all ranks have connected within 1 s)"
    )
    assert failed.found.cause is Cause.OUTSIDE
    (tmp_path / "all").mkdir()
    failed = failure(jobs.stop_in_start_up, tmp_path / "all", hang_s=0.5)
    assert re.fullmatch(
        r"rank 0, rank 1 hung: stopped \(state T\) in start-up, no progress for \d+ s "
        r"\(a start-up may take 1 s\)",
        str(failed),
    )
    assert failed.found.ends == (RankEnd(0), RankEnd(1))


QUIET = r"no progress for \d+ s \(cluster.hang_s=1\)"

HANGS: list[tuple[Callable[..., None], str, int, list[str]]] = [
    (
        jobs.hang_together,
        rf"rank 0, rank 1 hung: waiting in training after step 3, {QUIET}",
        3,
        ["rank0, which was still running\nCurrent thread", "rank1, which was still running\nCurrent thread"],
    ),
    (
        jobs.stop_together,
        r"rank 0, rank 1 hung: rank 0 stopped \(state T\) in evaluation after step 3; "
        rf"rank 1 stopped \(state T\) in evaluation after step 4, {QUIET}",
        4,
        [
            "rank0, which was still running\nno stacks: stopped (state T)",
            "rank1, which was still running\nno",
        ],
    ),
    (
        jobs.hang_on_rank_0_and_stop_rank_1,
        rf"rank 1 hung: stopped \(state T\) in evaluation after step 4, {QUIET}",
        4,
        ["in hang_together", "rank1, which was still running\nno stacks: stopped (state T)"],
    ),
    (
        jobs.stop_rank_0_at_the_end,
        rf"rank 0 hung: stopped \(state T\) in ending after step 5, {QUIET}",
        5,
        ["rank0, which was still running\nno stacks: stopped (state T)"],
    ),
]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("job", "line", "step", "stacks"), HANGS, ids=[case[0].__name__ for case in HANGS])
def test_ranks_that_hang_together_are_ended(
    job: Callable[..., None], line: str, step: int, stacks: list[str], tmp_path: Path
) -> None:
    failed = failure(job, tmp_path, hang_s=1.0)
    assert re.fullmatch(line, str(failed)), failed
    assert (failed.step, failed.found.cause) == (step, Cause.OUTSIDE)
    for part in stacks:
        assert part in tracebacks(tmp_path)


@pytest.mark.usefixtures("forked")
def test_nobody_is_ended_under_a_debugger(tmp_path: Path) -> None:
    assert run_processes(jobs.debug_on_rank_1, (tmp_path, 2), 2, tmp_path, Supervision(hang_s=1.0)) == ""
    assert sorted(path.name for path in tmp_path.glob("went-on*")) == ["went-on0", "went-on1"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("job", "trouble"),
    [
        (jobs.stop_rank_1_when_complete, "rank 1 had not ended after 1 s, stopped (state T), and was killed"),
        (jobs.kill_rank_1_when_complete, "rank 1 was killed by SIGKILL (out of memory?)"),
    ],
)
def test_nothing_is_a_failure_once_the_record_is_complete(
    job: Callable[..., None], trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LEAVE_S", 1.0)
    assert run_processes(job, (tmp_path, 2), 2, tmp_path) == trouble
    assert_gone(tmp_path, 2)


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
        if number == signal.SIGTERM:  # a request, which these children ignore; the second one insists
            time.sleep(ECHO_S + 0.5)
            assert parent.poll() is None
            parent.send_signal(number)
    printed = parent.communicate(timeout=60)[1]
    assert_gone(tmp_path, 1)
    assert parent.returncode != 0
    expected = {signal.SIGINT: "KeyboardInterrupt", signal.SIGTERM: "Terminated", signal.SIGKILL: ""}
    assert expected[number] in printed.splitlines()[-1] if printed else not expected[number]
    assert printed.count("Traceback") == bool(expected[number]), "the parent's, not the children's"


@pytest.mark.usefixtures("forked")
def test_a_signal_to_a_rank_decides_the_exit_code(tmp_path: Path) -> None:
    """The first one, as if the launcher had got it."""
    stop = StopRequest()
    assert run_processes(jobs.take_a_signal_of_its_own, (tmp_path, 2), 2, tmp_path, Supervision(stop)) == ""
    assert stop.number is None and stop.number_of_ranks == signal.SIGUSR2
    with pytest.raises(Terminated, match="^stopped by SIGUSR2, ") as ended:
        raise_if_stopped(tmp_path, stop, finished=False)
    assert interrupt_code(ended.value) == 140


class WorkerSeenLate:
    """A process whose sentinel is ready before its exit code can be read; the first look finds none."""

    def __init__(self) -> None:
        self.sentinel, other = os.pipe()
        self.pid = os.getpid()
        os.close(other)
        self._looks = 0

    @property
    def exitcode(self) -> int | None:
        self._looks += 1
        return 1 if self._looks > 1 else None

    def join(self) -> None:
        self._looks = 1


def test_an_exit_code_that_comes_late_is_not_missed(tmp_path: Path) -> None:
    waiting = Patience(share_beats(tmp_path / "beats", 1), None)
    watch = processes._ProcessWatch([WorkerSeenLate()], tmp_path, None, waiting)  # type: ignore[list-item]
    with pytest.raises(WorkerError, match="rank 0 ended with exit code 1"):
        watch.until_all_have_ended()
