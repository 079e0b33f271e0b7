"""Runs one validated configuration to its end, with all ranks started here or in this process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gradwire.harness.checkpoint.folder import checkpoints, remove_all, remove_unfinished
from gradwire.harness.checkpoint.resume import Opened, check_directory, is_finished, open_run
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.patience import watchdog
from gradwire.harness.launch.processes import Supervision, WorkerError, run_processes
from gradwire.harness.launch.ranks import LocalRanks, scratch_folder
from gradwire.harness.launch.shaped_network import fetch_weights
from gradwire.harness.launch.stop import StopRequest, Terminated, how_stopped, stop_requests
from gradwire.harness.launch.verdict import Cause, describe, tracebacks
from gradwire.harness.launch.worker import train_local_rank, train_virtual, train_virtual_child
from gradwire.harness.record.attempts import note_end
from gradwire.harness.record.directory import (
    TRACEBACKS,
    DirectoryLock,
    DivergedError,
    is_done,
    mark_failed,
)
from gradwire.harness.record.provenance import code_unchanged
from gradwire.harness.record.writer import remove_temporary_files
from gradwire.harness.runtime.errors import found_late
from gradwire.harness.runtime.heartbeat import in_steps, own_beats
from gradwire.harness.tracking.follow import tracked
from gradwire.harness.trainer.parts import prepare
from gradwire.harness.trainer.settings import RunConfig


def run_here(config: RunConfig, directory: Path, draw: Callable[[], object] | None = None) -> None:
    """Trains with all ranks started or hosted by this process, unless another process has just finished this
    run. `draw` makes the run's plots when it is done, while the run is still open in wandb, which shows them.

    Resumes from the newest checkpoint in `directory`. Raises ValueError for errors that a user can fix,
    before anything is written; Terminated when a signal has ended the run; DivergedError when training cannot
    continue; and WorkerError naming the rank. The directory then holds FAILED with the reason. After a
    WorkerError the run is restarted as often as `Restarts` allows.
    """
    check_directory(config, directory)
    with stop_requests(at_once=True):
        prepare(config)  # once, before the ranks ask the cache for it
    lock = DirectoryLock(directory)
    try:
        if is_finished(config, directory):
            return
        opened = open_run(config, directory)
        print_notes(opened)
        with stop_requests() as stop, stop_not_forgotten(directory, stop):
            stop.saves = lambda: False
            _attempts(config, directory, opened, stop, draw)
    finally:
        clean_up(directory)
        lock.release()


def _attempts(
    config: RunConfig,
    directory: Path,
    opened: Opened,
    stop: StopRequest,
    draw: Callable[[], object] | None,
) -> None:
    """Makes the first attempt and those that `cluster.restarts` allows; each behaves like a new command."""
    restarts = Restarts(config.cluster.restarts)
    while True:
        try:
            with tracked(config.tracking, config.mapping(), directory):
                with _failure_recorded(directory):
                    _attempt(config, directory, opened.checkpoint, stop)
                    raise_if_stopped(directory, stop, is_done(directory))
                if draw is not None:
                    draw()
            return
        except WorkerError as error:
            if stop.number is not None:
                raise
            print(restarts.another_after(error), flush=True)
        config = continued(config)
        opened = open_run(config, directory)
        print_notes(opened)


def _attempt(config: RunConfig, directory: Path, checkpoint: Path | None, stop: StopRequest) -> None:
    """Trains from `checkpoint` with separate ranks, or with a virtual cluster, in this process or in a child
    that can be restarted."""
    if config.cluster.name == "local":
        _watched(lambda folder: _run_local(config, directory, checkpoint, stop, folder), directory)
    elif config.cluster.restarts:
        _watched(lambda folder: _run_virtual_child(config, directory, checkpoint, stop, folder), directory)
    else:
        beats = own_beats()
        stop.saves = lambda: in_steps(beats())
        with watchdog(config.cluster.hang_s, 0, directory, _virtual_name):
            train_virtual(config, directory, checkpoint, stop)


def _run_local(
    config: RunConfig, directory: Path, checkpoint: Path | None, stop: StopRequest, folder: Path
) -> str:
    if config.network.name == "shaped":
        fetch_weights(config.model, config.seed)
    arguments = (config, directory, checkpoint, folder / "rendezvous")
    ranks = LocalRanks(config.cluster, config.network, directory, folder)
    return ranks.run(train_local_rank, arguments, stop)


def _run_virtual_child(
    config: RunConfig, directory: Path, checkpoint: Path | None, stop: StopRequest, folder: Path
) -> str:
    os.environ["OMP_NUM_THREADS"] = "1"  # as for the ranks of a local cluster
    arguments = (config, directory, checkpoint)
    supervision = Supervision(stop, hang_s=config.cluster.hang_s, name=_virtual_name)
    return run_processes(train_virtual_child, arguments, 1, folder, supervision)


def _virtual_name(rank: int) -> str:
    return "the virtual cluster"


def _watched(run: Callable[[Path], str], directory: Path) -> None:
    """Calls `run` with a folder for the reports of its processes; their tracebacks are kept in the run
    directory.

    A rank that fails after the run was complete only causes a warning. Raises WorkerError, or DivergedError
    if the ranks report one.
    """
    with scratch_folder() as folder:
        try:
            trouble = run(folder)
        except WorkerError as error:
            _, diverged, reason = error.found.text.partition(f"{DivergedError.__name__}: ")
            if diverged:  # raised by all ranks alike: none is at fault, and there is nothing to trace back
                raise DivergedError(reason) from None
            raise error.with_text(f"{error}{_keep_tracebacks(folder, directory)}") from None
        if trouble:
            kept = _keep_tracebacks(folder, directory)
            print(f"warning: the run is complete, but {trouble}{kept}", file=sys.stderr, flush=True)


def _keep_tracebacks(folder: Path, directory: Path) -> str:
    """The location of the tracebacks, to end a line with; empty if there are none or they cannot be
    written.
    """
    text = tracebacks(folder)
    if text:
        with contextlib.suppress(OSError):  # a full disk may be what ended the run
            write_atomically(directory / TRACEBACKS, text)
            return f" (tracebacks: {directory / TRACEBACKS})"
    return ""


def print_notes(opened: Opened) -> None:
    """Prints how an attempt begins, unless it begins at the start."""
    for note in opened.notes:
        print(note, flush=True)


def raise_if_stopped(directory: Path, stop: StopRequest, finished: bool) -> None:
    """Raises Terminated if a stop was requested: this also ends a sweep whose current run has just
    finished.
    """
    if finished and stop.number is None:
        return
    number = stop.number or stop.number_of_ranks or signal.SIGTERM
    saved = next(iter(checkpoints(directory)), None)
    end = "as it finished" if finished else f"saved in {saved}; the same command resumes"
    raise Terminated(number, f"{how_stopped(number)}, {end}")


@contextmanager
def stop_not_forgotten(directory: Path, stop: StopRequest) -> Iterator[None]:
    """Makes a stop request in this block end a sweep, even if it came while tracking was ending or before a
    rank failed."""
    try:
        yield
    except Exception as error:
        if stop.number is None:
            raise
        reason = _reason(error)
        raise Terminated(stop.number, f"{reason}, after {signal.Signals(stop.number).name}") from error
    raise_if_stopped(directory, stop, is_done(directory))


def clean_finished(directory: Path) -> None:
    """Removes the checkpoints of a finished run whose launcher was killed before it could remove them."""
    if checkpoints(directory):
        with contextlib.suppress(ValueError):  # in use: its launcher is about to
            lock = DirectoryLock(directory)
            clean_up(directory)
            lock.release()


def clean_up(directory: Path) -> None:
    """Removes half-written files and old checkpoints, and all checkpoints once the run is done."""
    remove_unfinished(directory)
    remove_temporary_files(directory)
    if is_done(directory):
        remove_all(directory)


@contextmanager
def _failure_recorded(directory: Path) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as interrupt:
        reason = str(interrupt) or _after_interrupt(directory)
        _record_failure(directory, interrupt, reason)
        if isinstance(interrupt, KeyboardInterrupt) and not interrupt.args:
            interrupt.args = (reason,)
        raise
    except BaseException as error:
        _record_failure(directory, error, _reason(error))
        raise


def _after_interrupt(directory: Path) -> str:
    """A line that says what Ctrl-C has ended, and from where the run resumes."""
    saved = next(iter(checkpoints(directory)), None)
    if saved is None:
        return "interrupted before the first checkpoint; the same command starts again"
    return f"interrupted; the same command resumes from {saved}"


def _record_failure(directory: Path, error: BaseException, reason: str) -> None:
    """Writes the failure to `FAILED` and to the attempt in `run.json`."""
    found_late(error)
    mark_failed(directory, reason)
    if isinstance(error, WorkerError):
        step = error.step if error.step >= 0 else None
        note_end(directory, error.found.text, step, error.found.ends)
    else:
        note_end(directory, reason, None, ())


def _reason(error: BaseException) -> str:
    return f"{error}" if isinstance(error, WorkerError | DivergedError) else describe(error)


def continued(config: RunConfig) -> RunConfig:
    """The configuration for a run's further attempts: `resume=never` only applies to files from before the
    first."""
    return replace(config, resume="auto") if config.resume == "never" else config


class Restarts:
    """Counts the restarts of one run.

    Another attempt may succeed after a rank was killed, hung or lost its link. It may also succeed after an
    error or a crash of the code itself; but a run is bit-exact, so the same error after the same step, twice
    in a row, will happen again. Errors that a user has to fix end a run immediately, and so does training
    that has diverged.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._used = allowed, 0
        self._last: tuple[str, int] | None = None

    def another_after(self, error: WorkerError) -> str:
        """The line that announces the next attempt. Raises WorkerError with the reason if there is none."""
        if not self._allowed:
            raise error
        reason = self._refusal(error)
        if reason:
            raise error.with_text(f"{error} (not restarted: {reason})") from None
        self._used, self._last = self._used + 1, (error.found.text, error.step)
        return f"restart {self._used} of {self._allowed}: {error.found.text}, {_progress(error.step)}"

    def _refusal(self, error: WorkerError) -> str:
        if error.found.cause is Cause.FINAL:
            return "every attempt would end so"
        if error.found.cause is Cause.OWN and self._last == (error.found.text, error.step):
            return f"the attempt before ended so, too, {_progress(error.step)}"
        if self._used == self._allowed:
            return f"cluster.restarts={self._allowed}"
        if not code_unchanged():
            return "the sources have changed since the run began"
        return ""


def _progress(step: int) -> str:
    return "before the first step" if step < 0 else f"after step {step}"
