"""One process for all cells of a sweep that start no processes themselves: virtual clusters, replays, retimed
runs.

Imports, which take seconds, happen once. A cell that crashes the process fails alone: the next cell gets a
new process. So does the cell after one that has not released too much memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from gradwire.harness.launch.processes import die_with_parent, new_processes, signals_held_back
from gradwire.harness.launch.stop import (
    INTERRUPT,
    SIGNALS,
    StopRequest,
    Terminated,
    how_stopped,
    stop_requests,
)
from gradwire.harness.launch.verdict import describe
from gradwire.harness.record.directory import mark_failed
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.output import guard_output

MOST_LEFT_BEHIND = 1 << 30
"""Bytes by which the process may have grown since before its first cell."""


@dataclass(frozen=True)
class CellOutcome:
    """A cell's outcome: its exit code, or the error in one line and, if it was unexpected, a traceback."""

    code: int = 0
    error: str = ""
    traceback: str = ""
    interrupted: bool = False
    left_behind: int = 0
    """Bytes by which the process has grown since before its first cell."""


Run = Callable[[RecordedConfig, Path], CellOutcome]
"""Runs a cell in its directory."""


class CellProcess:
    """Runs cells one after another in a process, which is started when needed; a context manager.

    `target` must be importable by name.
    """

    def __init__(self, target: Run) -> None:
        self._target = target
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> CellProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, config: RecordedConfig, directory: Path) -> CellOutcome:
        """Runs a cell to its end. Raises Terminated if a signal or Ctrl-C has asked to stop, whatever the
        cell's outcome, once its process has cleaned up; a second Ctrl-C does not wait for the clean-up."""
        with stop_requests() as stop:
            connection = self._started(stop)
            with contextlib.suppress(BrokenPipeError):
                connection.send((config, directory))
            ended = self._outcome(connection, directory, stop)
        if stop.number is not None or ended.interrupted:
            self._end()
            number = stop.number or signal.SIGINT
            raise Terminated(number, ended.error or how_stopped(number))
        if ended.left_behind > MOST_LEFT_BEHIND:
            self._end()
        return ended

    def _started(self, stop: StopRequest) -> Connection:
        if self._process is not None and not self._process.is_alive():
            self._end()
        if self._process is None:
            context = new_processes()
            self._connection, other = context.Pipe()
            arguments = (self._target, other, os.getpid())
            self._process = context.Process(target=_serve, args=arguments, name="cells of a sweep")
            with signals_held_back():
                self._process.start()
            other.close()
        assert self._connection is not None
        stop.pass_on = self._signal
        return self._connection

    def _outcome(self, connection: Connection, directory: Path, stop: StopRequest) -> CellOutcome:
        assert self._process is not None
        wait([connection, self._process.sentinel])
        with contextlib.suppress(EOFError, ConnectionResetError):
            if connection.poll():
                found: CellOutcome = connection.recv()
                return found
        self._process.join()
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._end()
        if stop.number is not None and code < 0:  # before it could begin, and had a handler
            return CellOutcome(1, interrupted=True)
        reason = f"its process {how}"
        mark_failed(directory, reason)
        return CellOutcome(1, reason)

    def _signal(self, number: int) -> None:
        pid = None if self._process is None else self._process.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, INTERRUPT if number == signal.SIGINT else number)

    def _end(self) -> None:
        """Ends the process, which is idle."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.join()


def _serve(target: Run, connection: Connection, parent: int) -> None:
    """Runs cells in this process until the sweep sends no more."""
    die_with_parent(parent)
    guard_output(warns=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(INTERRUPT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, INTERRUPT, *SIGNALS})
    before, threads = _size(), _threads()
    with contextlib.suppress(EOFError):  # the sweep has ended
        while True:
            config, directory = connection.recv()
            ended = _ended(target, config, directory)
            _use_threads(threads)
            connection.send(replace(ended, left_behind=_size() - before))


def _ended(target: Run, config: RecordedConfig, directory: Path) -> CellOutcome:
    try:
        return target(config, directory)
    except KeyboardInterrupt as interrupt:
        return CellOutcome(1, str(interrupt) or "interrupted", interrupted=True)
    except Exception as error:
        return CellOutcome(1, describe(error), "".join(traceback.format_exception(error)))


def _size() -> int:
    import psutil

    found = psutil.Process().memory_info()
    # Memory mapped from files depends on the whole machine's memory, so it must not count; only Linux reports
    # it separately.
    return int(found.rss - getattr(found, "shared", 0))


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _use_threads(number: int) -> None:
    """Resets the number of threads: a cell may have changed it, and the last bits of the next cell's figures
    depend on it."""
    import torch

    torch.set_num_threads(number)
