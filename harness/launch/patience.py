"""Time without progress after which processes count as hung. A watchdog ends the process of a virtual
cluster, or of a rank under torchrun, because no other process supervises it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gradwire.harness.launch import stacks
from gradwire.harness.launch.stacks import disk_bytes, is_traced
from gradwire.harness.launch.verdict import Name, hang_verdict, rank_name
from gradwire.harness.record.directory import TRACEBACKS, mark_failed
from gradwire.harness.runtime.heartbeat import COMPLETE, START_UP, Heartbeat, own_beats

POLL_S = 1.0
"""Seconds between two checks."""

START_S = 300.0
"""Seconds without progress that the start-up may take, and seconds from the launch until all ranks must be
up. `cluster.timeout_s` applies afterwards."""

LEAVE_S = 30.0
"""Seconds that processes may take to end once the record is complete."""


class Bound(NamedTuple):
    """A number of seconds without progress that counts as a hang; `text` says why."""

    seconds: float
    text: str


class Patience:
    """Checks the heartbeats of ranks every `POLL_S` and adds up the time in which none of them made progress.

    Disk reads and writes count as progress, because writing one file of weights to a slow disk may take
    longer than any bound. Time in which this process itself was stopped does not count, nor does time under a
    debugger. With `hang_s` None nothing counts as a hang.
    """

    def __init__(self, beats: Callable[[], Sequence[Heartbeat]], hang_s: float | None) -> None:
        self._beats, self.hang_s = beats, hang_s
        self._seen: object = None
        self._looked = time.monotonic()
        self.quiet_s, self._complete_s = 0.0, 0.0

    def look(self, pids: Mapping[int, int]) -> None:
        """Checks whether any of the running ranks has made progress since the last check."""
        beats, now = self._beats(), time.monotonic()
        # A long time between two checks is not the ranks' fault: this process was stopped, perhaps with them.
        elapsed, self._looked = min(now - self._looked, 2 * POLL_S), now
        seen = [(beats[rank].beats, disk_bytes(pid)) for rank, pid in pids.items()]
        self.quiet_s = self.quiet_s + elapsed if seen == self._seen else 0.0
        self._seen = seen
        self._complete_s = self._complete_s + elapsed if self.complete else 0.0

    @property
    def complete(self) -> bool:
        """True once rank 0 has reported that everything is done and on disk."""
        return self._beats()[0].phase == COMPLETE

    @property
    def first_phase(self) -> str:
        """The phase of rank 0."""
        return self._beats()[0].phase

    @property
    def lingering(self) -> bool:
        """True if processes still run long after they should have ended."""
        return self._complete_s > LEAVE_S

    def beats(self, ranks: Mapping[int, object]) -> dict[int, Heartbeat]:
        """The last heartbeats of some ranks."""
        beats = self._beats()
        return {rank: beats[rank] for rank in ranks}

    def exhausted(self, pids: Mapping[int, int]) -> bool:
        """True if the running ranks have made no progress for too long; never while one is being debugged."""
        if self.hang_s is None or self.complete:
            return False
        if self.quiet_s <= self.bound(pids).seconds:
            return False
        if any(is_traced(pid) for pid in (*pids.values(), os.getpid())):
            self.restart()
            return False
        return True

    def bound(self, ranks: Mapping[int, object]) -> Bound:
        """The limit on the time that these ranks may show no progress. Must not be called without a
        `hang_s`.
        """
        assert self.hang_s is not None
        starting = any(beat.phase == START_UP for beat in self.beats(ranks).values())
        if starting and self.hang_s < START_S:
            return Bound(START_S, f"a start-up may take {START_S:g} s")
        return Bound(self.hang_s, f"cluster.hang_s={self.hang_s:g}")

    def restart(self) -> None:
        """Restarts the count, because a debugger explains the lack of progress."""
        self.quiet_s = 0.0


RECORD_S = 10.0
"""Seconds that writing the final message may take, because the disk may be what hangs."""


@contextmanager
def watchdog(hang_s: float | None, rank: int, directory: Path, name: Name = rank_name) -> Iterator[None]:
    """Ends this process with code 1 if it shows no progress for `hang_s` seconds during the block.

    It prints one line on standard error; `directory` gets FAILED and the stacks of all threads. The main
    thread is neither waited for nor cleaned up, since it may never return. The watchdog does not run while
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
    while not done.wait(POLL_S):
        waiting.look(pids)
        if not waiting.exhausted(pids):
            continue
        text = stacks.own_stacks()
        if stacks.shows_debugger(text):
            waiting.restart()
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
    """Appends this rank's stacks to those of other ranks."""
    mark_failed(directory, line)
    with contextlib.suppress(OSError), (directory / TRACEBACKS).open("a") as file:
        file.write(f"{line}\n{text}\n")
