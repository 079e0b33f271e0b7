"""Runs one validated configuration to its end, with all ranks started here or in this process."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from gradwire.harness.checkpoint.folder import checkpoints, remove_all, remove_unfinished
from gradwire.harness.checkpoint.resume import Opened, check_directory, is_finished, open_run
from gradwire.harness.launch.processes import WorkerError
from gradwire.harness.launch.ranks import run_ranks
from gradwire.harness.launch.scratch import scratch_folder
from gradwire.harness.launch.stop import StopRequest, Terminated, stop_requests
from gradwire.harness.launch.verdict import describe, tracebacks
from gradwire.harness.launch.worker import train_local_rank, train_virtual
from gradwire.harness.record.directory import TRACEBACKS, DirectoryLock, is_done, mark_failed
from gradwire.harness.record.files import write_atomically
from gradwire.harness.tracking import tracked
from gradwire.harness.trainer.build import prepare


def run_here(config: DictConfig, directory: Path) -> None:
    """Train with all ranks started or hosted by this process, unless another run has just done so.

    Goes on from the newest checkpoint in `directory`. Raises ValueError for what a user can mend, before
    anything is written, Terminated when a signal has ended the run, and WorkerError naming the rank; the
    directory then says FAILED and why.
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
        with (
            stop_requests() as stop,
            stop_not_forgotten(directory, stop),
            tracked(config, directory),
            _failure_recorded(directory),
        ):
            if config.cluster.name == "virtual":
                train_virtual(config, directory, opened.checkpoint, stop)
            else:
                _run_local(config, directory, opened.checkpoint, stop)
            raise_if_stopped(directory, stop, is_done(directory))
    finally:
        clean_up(directory)
        lock.release()


def _run_local(config: DictConfig, directory: Path, checkpoint: Path | None, stop: StopRequest) -> None:
    with scratch_folder() as folder:
        arguments = (config, directory, checkpoint, folder / "rendezvous")
        try:
            run_ranks(train_local_rank, arguments, config, directory, folder, stop)
        except WorkerError as error:
            text = tracebacks(folder)
            if not text:
                raise
            with contextlib.suppress(OSError):  # a full disk may be what ended the run
                write_atomically(directory / TRACEBACKS, text)
                raise WorkerError(f"{error} (tracebacks: {directory / TRACEBACKS})") from None
            raise


def print_notes(opened: Opened) -> None:
    """Tell how an attempt begins, where it is not simply from the start."""
    for note in opened.notes:
        print(note, flush=True)


def raise_if_stopped(directory: Path, stop: StopRequest, finished: bool) -> None:
    """Raise Terminated if there was a request: a sweep ends with it even where this run was just done."""
    if finished and stop.number is None:
        return
    number = stop.number or signal.SIGTERM  # another rank's
    saved = next(iter(checkpoints(directory)), None)
    end = "as it finished" if finished else f"saved in {saved}; the same command continues"
    raise Terminated(number, f"stopped by {signal.Signals(number).name}, {end}")


@contextmanager
def stop_not_forgotten(directory: Path, stop: StopRequest) -> Iterator[None]:
    """A request ends a sweep too, whenever it came: as tracking was ending, or before a rank failed."""
    try:
        yield
    except Exception as error:
        if stop.number is None:
            raise
        reason = f"{error}" if isinstance(error, WorkerError) else describe(error)
        raise Terminated(stop.number, f"{reason}, after {signal.Signals(stop.number).name}") from error
    raise_if_stopped(directory, stop, is_done(directory))


def clean_finished(directory: Path) -> None:
    """Remove the checkpoints of a finished run whose launcher was killed before it could."""
    if checkpoints(directory):
        with contextlib.suppress(ValueError):  # in use: its launcher is about to
            lock = DirectoryLock(directory)
            clean_up(directory)
            lock.release()


def clean_up(directory: Path) -> None:
    """Remove what nobody needs: half-written checkpoints, and all of them once the run is done."""
    remove_unfinished(directory)
    if is_done(directory):
        remove_all(directory)


@contextmanager
def _failure_recorded(directory: Path) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as interrupt:
        mark_failed(directory, str(interrupt) or "interrupted")
        raise
    except BaseException as error:
        mark_failed(directory, f"{error}" if isinstance(error, WorkerError) else describe(error))
        raise
