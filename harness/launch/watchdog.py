"""Ends a hanging process that no launcher of ours watches: a virtual cluster, or a rank under torchrun."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradwire.harness.launch import patience, stacks
from gradwire.harness.launch.patience import Patience
from gradwire.harness.launch.verdict import Name, hang_verdict, rank_name
from gradwire.harness.record.directory import TRACEBACKS, mark_failed
from gradwire.harness.runtime.heartbeat import own_beats

RECORD_S = 10.0
"""Seconds that writing the final report to disk may take, since the disk may be what hangs."""


@contextmanager
def watchdog(hang_s: float | None, rank: int, directory: Path, name: Name = rank_name) -> Iterator[None]:
    """While the block lasts, ends this process with code 1 if it shows no progress for `hang_s` seconds.

    One line on standard error says so; `directory` gets FAILED and the stacks of all threads. The main thread
    is neither waited for nor cleaned up after, since it may never return. The watchdog sees nothing while
    this process is stopped or while C code holds the interpreter's lock.
    """
    if hang_s is None:
        yield
        return
    done = threading.Event()
    waiting = Patience(own_beats(), hang_s)
    watching = threading.Thread(
        target=_watch, args=(waiting, rank, directory, name, done), name="watchdog", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        done.set()


def _watch(waiting: Patience, rank: int, directory: Path, name: Name, done: threading.Event) -> None:
    pids = {0: os.getpid()}
    while not done.wait(patience.POLL_S):
        waiting.look(pids)
        if not waiting.exhausted(pids):
            continue
        text = stacks.own_stacks()
        if stacks.shows_debugger(text):
            waiting.forgive()
            continue
        beats, bound = {rank: waiting.beats(pids)[0]}, waiting.bound(pids)
        _end(hang_verdict(beats, {}, waiting.quiet_s, bound.text, name).text, text, directory)


def _end(line: str, text: str, directory: Path) -> None:
    recording = threading.Thread(target=_record, args=(line, text, directory), daemon=True)
    recording.start()
    recording.join(RECORD_S)
    if recording.is_alive():
        print(f"error: {line}; {directory} does not answer, either\n{text}", file=sys.stderr, flush=True)
    else:
        print(f"error: {line} (tracebacks: {directory / TRACEBACKS})", file=sys.stderr, flush=True)
    os._exit(1)


def _record(line: str, text: str, directory: Path) -> None:
    """Appends this rank's stacks to those that other ranks have written."""
    mark_failed(directory, line)
    with contextlib.suppress(OSError), (directory / TRACEBACKS).open("a") as file:
        file.write(f"{line}\n{text}\n")
