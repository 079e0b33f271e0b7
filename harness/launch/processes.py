"""Child processes that cannot outlive their parent; one that dies, raises or hangs ends all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from gradwire.harness.launch.stop import SIGNALS, StopRequest
from gradwire.harness.launch.verdict import verdict, write_report

GRACE_S = 5.0
"""How long the verdict waits for the reports of ranks that fail because another one did."""

_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A rank failed; the text is one line that names it."""


class Surroundings(Protocol):
    """What the ranks depend on and cannot see failing, such as the links between them."""

    @property
    def sentinels(self) -> Sequence[int]:
        """Descriptors that are readable when something may have gone wrong, until `diagnose` has looked."""

    def diagnose(self) -> Mapping[int, str]:
        """What has gone wrong, by rank: half a sentence."""


def run_processes(
    target: Callable[..., None],
    arguments: Sequence[Any],
    size: int,
    folder: Path,
    stop: StopRequest | None = None,
    surroundings: Surroundings | None = None,
) -> None:
    """Run `target(*arguments, rank)` in `size` new processes until all have ended.

    `folder` holds the reports of failed ranks with their tracebacks. A signal noted by `stop` is passed
    on to the ranks, which note it too. What goes wrong in their `surroundings` ends them as well, and is
    looked for when ranks fail. Raises WorkerError; whatever happens, Ctrl-C included, no child is left
    running.

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
        with _signals_held_back():
            for worker in workers:
                worker.start()
            if stop is not None:
                stop.pass_on = lambda number: _signal(workers, number)
                if stop.number is not None:  # it came before there was anybody to tell
                    stop.pass_on(stop.number)
        _watch(workers, folder, surroundings)
    finally:
        if stop is not None:
            stop.pass_on = None
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
        for number in SIGNALS:  # nothing is left to stop, and an ending interpreter has no handlers
            signal.signal(number, signal.SIG_IGN)
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
def _signals_held_back() -> Iterator[None]:
    """Block SIGINT and the requests to stop in this thread and in the processes started here.

    A terminal sends Ctrl-C to all of them. It is the parent's to handle; a child would print a
    traceback of whatever it was importing. Requests to stop wait until the child has a handler.
    """
    resource_tracker.ensure_running()  # starting it unblocks SIGINT
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _signal(workers: Sequence[BaseProcess], number: int) -> None:
    for worker in workers:
        if worker.exitcode is None and worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)


def _watch(workers: Sequence[BaseProcess], folder: Path, surroundings: Surroundings | None = None) -> None:
    running = list(workers)
    while running:
        around = [] if surroundings is None else surroundings.sentinels
        ended = set(wait([*(worker.sentinel for worker in running), *around]))
        for worker in running:
            if worker.sentinel in ended:
                worker.join()  # the sentinel goes a moment before the exit code comes
        codes = [worker.exitcode for worker in running]
        if any(codes):
            _give_time_to_report(workers)
        troubles: Mapping[int, str] = {}
        if surroundings is not None and (any(codes) or not ended.isdisjoint(around)):
            troubles = surroundings.diagnose()
        if any(codes) or troubles:
            raise WorkerError(verdict({rank: w.exitcode for rank, w in enumerate(workers)}, folder, troubles))
        running = [worker for worker, code in zip(running, codes, strict=True) if code is None]


def _give_time_to_report(workers: Sequence[BaseProcess]) -> None:
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(worker.exitcode is None for worker in workers):
        time.sleep(0.05)
