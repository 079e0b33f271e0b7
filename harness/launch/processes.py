"""Child processes that cannot outlive their parent, and a verdict on which of them failed.

A child that dies, raises or hangs ends all of them. When one rank is lost the others fail with it a
moment later, so the verdict waits for their reports: a rank killed by a signal is the cause, else the
one rank that does not answer while others time out on it, else the first exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

GRACE_S = 5.0
"""How long the verdict waits for the reports of ranks that fail because another one did."""

_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A rank failed; the text is one line that names it."""


@dataclass(frozen=True)
class Report:
    """Why a rank ended: the exception's type and first line, and the peer it blames."""

    rank: int
    text: str
    peer: int | None


def run_processes(target: Callable[..., None], arguments: Sequence[Any], size: int, folder: Path) -> None:
    """Run `target(*arguments, rank)` in `size` new processes until all have ended.

    `folder` holds the reports of failed ranks with their tracebacks. Raises WorkerError; whatever
    happens, Ctrl-C and SIGTERM included, no child is left running.
    """
    context = get_context("spawn")
    workers = [
        context.Process(
            target=_child, args=(target, arguments, rank, str(folder), os.getpid()), name=f"rank {rank}"
        )
        for rank in range(size)
    ]
    with _terminated_as_exception():
        try:
            for worker in workers:
                worker.start()
            _watch(workers, folder)
        finally:
            for worker in workers:
                if worker.pid is not None:
                    worker.kill()  # SIGKILL: a stopped process would not hear SIGTERM
            for worker in workers:
                if worker.pid is not None:
                    worker.join()


def _child(
    target: Callable[..., None], arguments: Sequence[Any], rank: int, folder: str, parent: int
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with_parent(parent)
    try:
        target(*arguments, rank)
    except BaseException as error:
        first_line = next(iter(str(error).splitlines()), "")
        report = {
            "text": f"{type(error).__name__}: {first_line}",
            "peer": getattr(error, "peer", None),
            "traceback": traceback.format_exc(),
        }
        (Path(folder) / f"rank{rank}.json").write_text(json.dumps(report))
        sys.stderr.flush()
        os._exit(1)  # threads may be stuck in a lost connection


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def _terminated_as_exception() -> Iterator[None]:
    """SIGTERM raises SystemExit in this block, so that cleaning up happens."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        previous = signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _watch(workers: Sequence[BaseProcess], folder: Path) -> None:
    running = list(workers)
    while running:
        wait([worker.sentinel for worker in running])
        if any(worker.exitcode not in (None, 0) for worker in running):
            raise WorkerError(_verdict(workers, folder))
        running = [worker for worker in running if worker.exitcode is None]


def _verdict(workers: Sequence[BaseProcess], folder: Path) -> str:
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(worker.exitcode is None for worker in workers):
        time.sleep(0.05)
    codes = {rank: worker.exitcode or 0 for rank, worker in enumerate(workers)}
    killed = [(rank, -code) for rank, code in codes.items() if code < 0]
    reports = read_reports(folder)
    if killed:
        return "; ".join(
            f"rank {rank} was killed by {signal.Signals(number).name}" for rank, number in killed
        )
    silent = [rank for rank, worker in enumerate(workers) if worker.exitcode is None]
    blamed = {report.peer for report in reports}
    if silent and reports and (blamed & set(silent) or all(report.peer is not None for report in reports)):
        names = ", ".join(f"rank {rank}" for rank in silent)
        return f"{names} hung: no answer within cluster.timeout_s ({reports[0].text})"
    if not reports:
        failed = {rank: code for rank, code in codes.items() if code}
        return f"ranks ended with exit codes {failed} and no report"
    cause = next((report for report in reports if report.peer is None), reports[0])
    return f"rank {cause.rank} failed: {cause.text}"


def read_reports(folder: Path) -> list[Report]:
    """The reports of failed ranks, by time of failure."""
    paths = sorted(folder.glob("rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    loaded = [(int(path.stem.removeprefix("rank")), json.loads(path.read_text())) for path in paths]
    return [Report(rank, entry["text"], entry["peer"]) for rank, entry in loaded]


def tracebacks(folder: Path) -> str:
    """All failed ranks' tracebacks as one text."""
    paths = sorted(folder.glob("rank*.json"))
    return "\n".join(f"{path.stem}\n{json.loads(path.read_text())['traceback']}" for path in paths)
