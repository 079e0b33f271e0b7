"""Child processes that cannot outlive their parent; one that dies, raises or hangs ends all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from gradwire.harness.launch.verdict import verdict, write_report

GRACE_S = 5.0
"""How long the verdict waits for the reports of ranks that fail because another one did."""

_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A rank failed; the text is one line that names it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends what Ctrl-C ends."""


def run_processes(target: Callable[..., None], arguments: Sequence[Any], size: int, folder: Path) -> None:
    """Run `target(*arguments, rank)` in `size` new processes until all have ended.

    `folder` holds the reports of failed ranks with their tracebacks. Raises WorkerError; whatever
    happens, Ctrl-C and (within `sigterm_as_interrupt`) SIGTERM included, no child is left running.

    A rank that hangs is noticed by those that wait for it. Ranks that all hang, waiting for nobody
    (stopped together, or on a dead file system), are waited for: only a clock of this process could
    tell them from ranks that compute for long, and it does not know how long is long.
    """
    context = get_context("spawn")
    workers = [
        context.Process(
            target=_child, args=(target, arguments, rank, str(folder), os.getpid()), name=f"rank {rank}"
        )
        for rank in range(size)
    ]
    try:
        with _interrupt_held_back():
            for worker in workers:
                worker.start()
        _watch(workers, folder)
    finally:
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            worker.kill()  # SIGKILL: a stopped process would not hear SIGTERM
        for worker in started:
            worker.join()


def _child(
    target: Callable[..., None], arguments: Sequence[Any], rank: int, folder: str, parent: int
) -> None:
    _die_with_parent(parent)
    try:
        target(*arguments, rank)
    except BaseException as error:
        write_report(Path(folder), rank, error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # threads may be stuck in a lost connection


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """Block SIGINT in this thread and, for good, in the processes started here.

    A terminal sends Ctrl-C to all of them. It is the parent's to handle; a child would print a
    traceback of whatever it was importing.
    """
    resource_tracker.ensure_running()  # starting it unblocks SIGINT
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises Terminated in this block, so that cleaning up happens."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Terminated

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
        ended = wait([worker.sentinel for worker in running])
        for worker in running:
            if worker.sentinel in ended:
                worker.join()  # the sentinel goes a moment before the exit code comes
        codes = [worker.exitcode for worker in running]
        if any(codes):
            _give_time_to_report(workers)
            raise WorkerError(verdict({rank: w.exitcode for rank, w in enumerate(workers)}, folder))
        running = [worker for worker, code in zip(running, codes, strict=True) if code is None]


def _give_time_to_report(workers: Sequence[BaseProcess]) -> None:
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(worker.exitcode is None for worker in workers):
        time.sleep(0.05)
