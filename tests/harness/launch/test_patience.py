"""Ranks count as hung by their heartbeats, their disk use, and the time the launcher could look."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore

from gradwire.harness.launch import patience, stacks, worker
from gradwire.harness.launch.patience import LEAVE_S, POLL_S, START_S, Patience, watchdog
from gradwire.harness.launch.verdict import blamed_peer
from gradwire.harness.runtime import heartbeat
from gradwire.harness.runtime.heartbeat import COMPLETE, START_UP, Heartbeat

PIDS = {0: os.getpid(), 1: os.getpid()}


class Watched:
    """Two ranks whose heartbeats and clock a test controls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hang_s: float | None) -> None:
        self.now, self.disk, self.traced = 0.0, "", False
        self.beats = [Heartbeat(1, 4, "training"), Heartbeat(1, 4, "training")]
        monkeypatch.setattr(patience.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(patience, "disk_bytes", lambda pid: self.disk)
        monkeypatch.setattr(patience, "is_traced", lambda pid: self.traced)
        self.patience = Patience(lambda: self.beats, hang_s)

    def after(self, seconds: float, each_time: Callable[[], object] = lambda: None) -> bool:
        """True if they count as hung after so many seconds of looking, each look preceded by `each_time`."""
        end = self.now + seconds
        while self.now < end:
            self.now += POLL_S
            each_time()
            self.patience.look(PIDS)
        return self.patience.exhausted(PIDS)

    def beat(self, rank: int, phase: str = "training") -> None:
        self.beats[rank] = Heartbeat(self.beats[rank].beats + 1, 4, phase)


def test_one_rank_that_gets_on_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 60)
    assert not watched.after(55)
    watched.beat(1)
    assert not watched.after(55)
    assert not watched.after(500, lambda: watched.beat(0))
    assert watched.after(65)


def test_bytes_on_their_way_to_a_disk_are_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 60)

    def write() -> None:
        watched.disk += "+"

    assert not watched.after(500, write)
    assert watched.after(65)


def test_the_start_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 60)
    watched.beat(1, START_UP)
    assert not watched.after(START_S - 5)
    watched.beat(1, "warm-up")
    assert not watched.after(55)
    assert watched.after(10)
    assert watched.patience.bound(PIDS) == (60, "cluster.hang_s=60")


def test_what_a_long_bound_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer one of the two holds in the start-up."""
    for hang_s, bound in (
        (60, (START_S, "a start-up may take 300 s")),
        (1800, (1800, "cluster.hang_s=1800")),
    ):
        watched = Watched(monkeypatch, hang_s)
        watched.beat(1, START_UP)
        assert watched.patience.bound(PIDS) == bound


def test_time_in_which_nobody_could_look_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z stops this process and the ranks."""
    watched = Watched(monkeypatch, 60)
    assert not watched.after(10)
    watched.now += 3600
    assert not watched.after(40)
    assert watched.after(20)


def test_a_debugger_starts_the_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 60)
    watched.traced = True
    assert not watched.after(100)
    watched.traced = False
    assert not watched.after(50)
    assert watched.after(20)


def test_without_a_bound_nobody_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Watched(monkeypatch, None).after(10_000)


def test_a_complete_record_leaves_time_to_end_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 60)
    assert not watched.after(30)
    watched.beat(0, COMPLETE)
    assert not watched.after(LEAVE_S)
    assert not watched.patience.lingering
    assert not watched.after(100), "nobody hangs any more"
    assert watched.patience.lingering


def test_beats_of_another_process_are_seen(tmp_path: Path) -> None:
    look = heartbeat.share_beats(tmp_path / "beats", 2)
    assert look() == [Heartbeat(0, -1, START_UP)] * 2
    process = get_context("fork").Process(target=_beat_twice, args=(tmp_path / "beats",))
    process.start()
    process.join()
    assert look() == [Heartbeat(0, -1, START_UP), Heartbeat(3, 7, "evaluation")]
    assert [str(beat) for beat in look()] == [START_UP, "evaluation after step 7"]


def _beat_twice(file: Path) -> None:
    heartbeat.beat_in(file, 1)
    heartbeat.beat("evaluation", 7)
    heartbeat.beat()


def _be_traced() -> None:
    ctypes.CDLL(None).ptrace(0, 0, None, None)  # PTRACE_TRACEME: the parent is the debugger
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_traced_process_is_known() -> None:
    process = get_context("fork").Process(target=_be_traced)
    process.start()
    assert process.pid is not None
    os.waitpid(process.pid, os.WUNTRACED)
    try:
        assert stacks.is_traced(process.pid)
        assert stacks.state(process.pid) == "held by a debugger (state t)"
        assert not stacks.is_traced(os.getpid())
    finally:
        process.kill()
        process.join()


def _hang_under_a_watchdog(folder: Path, hang_s: float | None, seconds: float) -> None:
    patience.POLL_S = 0.1  # type: ignore[misc]

    with watchdog(hang_s, 3, folder):
        heartbeat.beat("training", 2)
        time.sleep(seconds)
    (folder / "ended").touch()


def test_a_process_that_nobody_watches_ends_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = get_context("fork").Process(target=_hang_under_a_watchdog, args=(tmp_path, 1.0, 600.0))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    assert not (tmp_path / "ended").exists()
    line, *text = (tmp_path / "tracebacks.txt").read_text().splitlines()
    assert (tmp_path / "FAILED").read_text() == f"{line}\n"
    assert line.startswith("rank 3 hung: waiting in training after step 2, no progress for ")
    assert any("in _hang_under_a_watchdog" in entry for entry in text)
    assert capfd.readouterr().err == f"error: {line} (tracebacks: {tmp_path / 'tracebacks.txt'})\n"


def test_a_watchdog_without_a_bound_ends_nothing(tmp_path: Path) -> None:
    _hang_under_a_watchdog(tmp_path, None, 0.0)
    assert (tmp_path / "ended").exists()


def test_a_rank_that_does_not_come_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "START_S", 1.0)
    store = FileStore(str(tmp_path / "store"), 3)
    store.set("up0", "")
    store.set("up1", "")
    said = r"^rank 2 has not come up within 1 s of the launch$"
    with pytest.raises(worker.AbsentPeerError, match=said) as raised:
        worker._await_peers(store, 3)
    assert blamed_peer(raised.value) == 2


class Waiting:
    """A store in which rank 1 never comes up; notes how long it was to wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.seconds.append(timeout.total_seconds())
        if keys == ["up1"]:
            raise RuntimeError("wait timeout")


@pytest.mark.parametrize(("age_s", "left_s"), [(20.0, START_S - 20.0), (2 * START_S, 0.1)])
def test_what_a_rank_took_to_come_up_counts(
    age_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound counts from the launch, because on a busy machine the imports alone take long."""
    monkeypatch.setattr(heartbeat, "_launched", time.monotonic() - age_s)
    store = Waiting()
    with pytest.raises(worker.AbsentPeerError):
        worker._await_peers(store, 2)  # type: ignore[arg-type]
    assert len(store.seconds) == 2
    assert all(0 < seconds <= left_s for seconds in store.seconds)
