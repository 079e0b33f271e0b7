"""Cells of a sweep share a process: what one does to it costs no other cell anything."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from gradwire.harness.launch import cell_process
from gradwire.harness.launch.cell_process import CellOutcome, CellProcess
from gradwire.harness.launch.stop import Terminated, stop_requests
from gradwire.harness.record.directory import failure_in
from gradwire.harness.record.settings import RecordedConfig, TaskConfig

KILLED, FAILED, RAISED, LARGE, THREADED, WAITING, STOPPED = range(7)


def behave(config: RecordedConfig, directory: Path) -> CellOutcome:
    """Runs the cell of each seed: it fails, raises, is killed, or changes its process."""
    directory.mkdir(exist_ok=True)
    (directory / "pid").write_text(str(os.getpid()))
    (directory / "threads").write_text(str(torch.get_num_threads()))
    match config.seed:
        case seed if seed == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        case seed if seed == FAILED:
            return CellOutcome(3)
        case seed if seed == RAISED:
            raise RuntimeError("boom")
        case seed if seed == LARGE:
            kept.append(bytearray(os.urandom(1)) * (16 * MOST))
        case seed if seed == THREADED:
            torch.set_num_threads(3)
        case seed if seed == WAITING:
            time.sleep(60)
        case seed if seed == STOPPED:
            with stop_requests() as stop:
                while not stop():
                    time.sleep(0.01)
            raise Terminated(stop.number or 0, "saved at step 3")
    return CellOutcome()


kept: list[bytearray] = []
MOST = 1 << 24


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[CellProcess]:
    monkeypatch.setattr(cell_process, "new_processes", lambda: get_context("fork"))
    monkeypatch.setattr(cell_process, "MOST_LEFT_BEHIND", MOST)
    gc.collect()  # what a fork frees of this process's garbage would make it smaller than it began
    with CellProcess(behave) as found:
        yield found


def cell(seed: int) -> RecordedConfig:
    return RecordedConfig(task=TaskConfig("train"), seed=seed)


def pid(folder: Path) -> int:
    return int((folder / "pid").read_text())


def test_a_crash_costs_its_own_cell_alone(cells: CellProcess, tmp_path: Path) -> None:
    assert cells.run(cell(99), tmp_path / "a").code == 0
    ended = cells.run(cell(KILLED), tmp_path / "killed")
    assert (ended.code, ended.error) == (1, "its process was killed by SIGKILL")
    assert failure_in(tmp_path / "killed") == ended.error
    assert cells.run(cell(99), tmp_path / "b").code == 0
    assert cells.run(cell(99), tmp_path / "c").code == 0
    assert pid(tmp_path / "a") == pid(tmp_path / "killed") != pid(tmp_path / "b") == pid(tmp_path / "c")


def test_failures_are_told_and_the_process_goes_on(cells: CellProcess, tmp_path: Path) -> None:
    assert cells.run(cell(FAILED), tmp_path / "failed").code == 3
    raised = cells.run(cell(RAISED), tmp_path / "raised")
    assert raised.error == "RuntimeError: boom" and "in behave" in raised.traceback
    assert pid(tmp_path / "failed") == pid(tmp_path / "raised") != os.getpid()


def test_memory_and_threads_of_one_cell_do_not_reach_the_next(cells: CellProcess, tmp_path: Path) -> None:
    cells.run(cell(THREADED), tmp_path / "threaded")
    assert cells.run(cell(LARGE), tmp_path / "large").left_behind > MOST
    cells.run(cell(99), tmp_path / "after")
    assert pid(tmp_path / "threaded") == pid(tmp_path / "large") != pid(tmp_path / "after")
    assert (tmp_path / "large" / "threads").read_text() == (tmp_path / "threaded" / "threads").read_text()


def when_begun(folder: Path, number: int) -> threading.Thread:
    """Sends this process a signal once the cell in `folder` has begun."""

    def send() -> None:
        while not (folder / "threads").is_file():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_ctrl_c_interrupts_the_cell_and_then_the_sweep(cells: CellProcess, tmp_path: Path) -> None:
    sending = when_begun(tmp_path / "waiting", signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        cells.run(cell(WAITING), tmp_path / "waiting")
    sending.join()
    with pytest.raises(ProcessLookupError):
        os.kill(pid(tmp_path / "waiting"), 0)
    assert cells.run(cell(99), tmp_path / "again").code == 0


def test_a_request_to_stop_is_passed_on_and_awaited(cells: CellProcess, tmp_path: Path) -> None:
    sending = when_begun(tmp_path / "stopped", signal.SIGTERM)
    with pytest.raises(Terminated, match="saved at step 3") as ended:
        cells.run(cell(STOPPED), tmp_path / "stopped")
    sending.join()
    assert ended.value.number == signal.SIGTERM
