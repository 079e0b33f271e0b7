"""Child processes that cannot outlive their parent; one that dies, raises or hangs ends all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from gradwire.harness.files.writing import is_of_the_disk
from gradwire.harness.launch import patience, stacks
from gradwire.harness.launch.patience import Patience
from gradwire.harness.launch.stop import SIGNALS, StopRequest
from gradwire.harness.launch.verdict import (
    FailureVerdict,
    Name,
    hang_verdict,
    lingering_text,
    rank_name,
    verdict,
    write_report,
    write_stacks,
)
from gradwire.harness.record.directory import DivergedError
from gradwire.harness.runtime.heartbeat import ENDING, START_UP, WARM_UP, beat_in, in_steps, share_beats
from gradwire.harness.runtime.output import guard_output
from gradwire.harness.runtime.progress import PhaseLines

GRACE_S = 5.0
"""Seconds that the verdict waits for reports of ranks that fail because of another one; stopped ranks are not
waited for."""

BEATS = "beats"
"""The file in which ranks record their progress."""

SILENT = (START_UP, WARM_UP, ENDING)
"""Phases in which ranks report no progress of their own."""

_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A rank failed; the text is one line that names it. `step` steps were done, -1 before the first."""

    def __init__(self, found: FailureVerdict, step: int = -1, text: str | None = None) -> None:
        super().__init__(text or found.text)
        self.found, self.step = found, step

    def with_text(self, text: str) -> WorkerError:
        """Returns this error with a different text."""
        return WorkerError(self.found, self.step, text)


def is_expected(error: object) -> bool:
    """True if an error's text is sufficient: the user can fix it, a worker has recorded it, or it comes from
    the disk. Other errors are shown with their tracebacks."""
    return isinstance(error, ValueError | WorkerError | DivergedError) or is_of_the_disk(error)


class Surroundings(Protocol):
    """External things that ranks depend on, such as the links between them, and whose failure ranks cannot
    detect."""

    @property
    def sentinels(self) -> Sequence[int]:
        """Descriptors that become readable when something may have failed, until `diagnose` has been
        called.
        """

    def diagnose(self) -> Mapping[int, str]:
        """The failures by rank, each a clause that completes a message."""


@dataclass(frozen=True)
class Supervision:
    """The events that end ranks, apart from their own.

    A signal noted by `stop` is passed on to the ranks, which also note it; a signal that another process has
    sent them is noted as theirs. Ranks are ended when something fails in their `surroundings`, which are also
    examined whenever a rank fails, and after `hang_s` seconds without a heartbeat from any running rank.
    `name` is the name of a rank in messages.
    """

    stop: StopRequest | None = None
    surroundings: Surroundings | None = None
    hang_s: float | None = None
    name: Name = rank_name


def run_processes(
    target: Callable[..., None],
    arguments: Sequence[Any],
    size: int,
    folder: Path,
    supervision: Supervision | None = None,
) -> str:
    """Runs `target(*arguments, rank)` in `size` new processes until all have ended.

    `folder` takes the reports of failed ranks with their tracebacks, and the stacks of ranks that hung.
    Raises WorkerError. Whatever happens, Ctrl-C included, no child keeps running.

    Once rank 0 has reported that everything is complete, later errors are not failures: processes that do not
    end are killed. Returns a description of such errors by rank, empty if there are none.
    """
    context, supervision = new_processes(), supervision or Supervision()
    stop, name = supervision.stop, supervision.name
    beats, launched = share_beats(folder / BEATS, size), time.monotonic()
    workers: list[BaseProcess] = [
        context.Process(
            target=_child, args=(target, arguments, rank, str(folder), os.getpid(), launched), name=name(rank)
        )
        for rank in range(size)
    ]
    try:
        with signals_held_back():
            for worker in workers:
                worker.start()
            if stop is not None:
                stop.saves = lambda: in_steps(beats())
                stop.pass_on = lambda number: _signal(workers, number)
                if stop.number is not None:  # it came before the ranks had started
                    stop.pass_on(stop.number)
        return _ProcessWatch(
            workers, folder, supervision.surroundings, Patience(beats, supervision.hang_s), name
        ).until_all_have_ended()
    finally:
        if stop is not None:
            stop.number_of_ranks = next((beat.asked for beat in beats() if beat.asked), None)
            stop.pass_on, stop.saves = None, lambda: True
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            worker.kill()  # SIGKILL: a stopped process would not receive SIGTERM
        for worker in started:
            worker.join()


def new_processes() -> SpawnContext:
    """The multiprocessing context that spawns processes, because threads and CUDA do not survive a fork."""
    return get_context("spawn")


def _child(
    target: Callable[..., None],
    arguments: Sequence[Any],
    rank: int,
    folder: str,
    parent: int,
    launched: float,
) -> None:
    die_with_parent(parent)
    guard_output(warns=False)
    beat_in(Path(folder) / BEATS, rank, launched)
    stacks.answer_requests(Path(folder), rank)
    try:
        target(*arguments, rank)
        # Nothing is left to stop, and an exiting interpreter has no handlers.
        for number in (signal.SIGINT, *SIGNALS):
            signal.signal(number, signal.SIG_IGN)
    except BaseException as error:
        write_report(Path(folder), rank, error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # threads may be stuck in a lost connection


def die_with_parent(parent: int) -> None:
    """Makes Linux kill this process when its parent ends for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Blocks SIGINT and all stop requests in this thread and in the processes that it starts.

    A terminal sends Ctrl-C to all of them, and a child would print a traceback of its current import. Ctrl-C,
    stop requests and requests for stacks wait until the child has a handler. A child without a handler for
    Ctrl-C never gets it; only the parent handles it.
    """
    resource_tracker.ensure_running()  # starting it unblocks SIGINT
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, stacks.SIGNAL, *SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _signal(workers: Sequence[BaseProcess], number: int) -> None:
    for worker in workers:
        if worker.exitcode is None and worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)


class _ProcessWatch:
    """Waits for processes, and for failures in them or around them."""

    def __init__(
        self,
        workers: Sequence[BaseProcess],
        folder: Path,
        surroundings: Surroundings | None,
        waiting: Patience,
        name: Name = rank_name,
    ) -> None:
        self._workers, self._folder, self._surroundings = workers, folder, surroundings
        self._patience, self._name = waiting, name
        self._phases = PhaseLines(name(0) if len(workers) == 1 else f"{len(workers)} workers")

    def until_all_have_ended(self) -> str:
        """Waits until all processes have ended; returns the result of `run_processes`."""
        running = list(self._workers)
        while running:
            around = [] if self._surroundings is None else self._surroundings.sentinels
            ended = set(wait([*(worker.sentinel for worker in running), *around], patience.POLL_S))
            for worker in running:
                if worker.sentinel in ended:
                    worker.join()  # the sentinel goes a moment before the exit code comes
            codes = [worker.exitcode for worker in running]
            running = [worker for worker, code in zip(running, codes, strict=True) if code is None]
            changed = not ended.isdisjoint(around)
            self._patience.look(self._pids())
            phase = self._patience.first_phase
            self._phases.look(phase if phase in SILENT else "")
            if self._patience.complete:
                if self._patience.lingering and running:
                    return self._left_over()
            else:
                self._check(any(codes), changed)
        return lingering_text(self._codes(), {}, patience.LEAVE_S, self._name)

    def _check(self, failed: bool, changed: bool) -> None:
        """Raises WorkerError if a rank has failed, if its surroundings have, or if no rank makes progress."""
        if failed:
            self._give_time_to_report()
            if self._patience.complete:  # in the meantime
                return
        troubles: Mapping[int, str] = {}
        if self._surroundings is not None and (failed or changed):
            troubles = self._surroundings.diagnose()
        if failed or troubles:
            codes, states = self._codes(), self._states()
            self._keep_stacks()
            raise self._error(verdict(codes, self._folder, troubles, states, self._name))
        if self._patience.exhausted(self._pids()):
            self._judge_hang()

    def _judge_hang(self) -> None:
        beats, states = self._patience.beats(self._pids()), self._states()
        quiet_s, bound = self._patience.quiet_s, self._patience.bound(self._pids())
        if stacks.shows_debugger(self._keep_stacks()):
            self._patience.restart()
            return
        raise self._error(hang_verdict(beats, states, quiet_s, bound.text, self._name))

    def _left_over(self) -> str:
        states = self._states()
        self._keep_stacks()
        return lingering_text(self._codes(), states, patience.LEAVE_S, self._name)

    def _error(self, found: FailureVerdict) -> WorkerError:
        steps = [beat.step for beat in self._patience.beats(self._codes()).values()]
        return WorkerError(found, max(steps, default=-1))

    def _keep_stacks(self) -> str:
        """Saves the stacks of all ranks that are still running."""
        found = stacks.dumped_stacks(self._pids(), self._folder)
        write_stacks(self._folder, found)
        return "\n".join(found.values())

    def _codes(self) -> dict[int, int | None]:
        return {rank: worker.exitcode for rank, worker in enumerate(self._workers)}

    def _pids(self) -> dict[int, int]:
        """The process ids of ranks that are still running."""
        return {
            rank: worker.pid
            for rank, worker in enumerate(self._workers)
            if worker.pid is not None and worker.exitcode is None
        }

    def _states(self) -> dict[int, str]:
        return {rank: stacks.state(pid) for rank, pid in self._pids().items()}

    def _give_time_to_report(self) -> None:
        """Waits for the reports of ranks, except stopped ones, which cannot write any."""
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and not all(map(stacks.is_stopped, self._pids().values())):
            time.sleep(0.05)
