"""Heartbeats: the phase of this process and a count of its progress, for the detection of hangs.

Long-running code calls `beat` whenever it makes progress. A call takes a microsecond, no lock and no system
call. The watcher checks whether the count has changed, and reports the phase if it has not for too long. If a
rank has a process of its own, its beats are in a file shared with the watching process.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

START_UP, WARM_UP, ENDING, COMPLETE = "start-up", "warm-up", "ending", "complete"
"""The first phases of every process, and the last ones of the rank that writes the record."""

_SLOT = struct.Struct("=Qqi48s")
"""The layout of a slot: count, steps done (-1: none yet), signal (0: none), phase."""


class Heartbeat(NamedTuple):
    """One reading. `beats` differs from the last reading's if there was progress; `step` steps are done;
    `asked` is the signal by which the process was asked to stop, or 0."""

    beats: int
    step: int
    phase: str
    asked: int = 0

    def __str__(self) -> str:
        return self.phase if self.step < 0 else f"{self.phase} after step {self.step}"


class _Heart:
    """One process's slot in a shared memory; only that process writes it."""

    def __init__(self, memory: mmap.mmap | bytearray, offset: int = 0) -> None:
        self._memory, self._offset = memory, offset
        self._count, self._step, self._asked, self._phase = 0, -1, 0, START_UP.encode()

    def beat(self, phase: str | None, step: int | None) -> None:
        self._count += 1
        if phase is not None:
            self._phase = phase.encode()
        if step is not None:
            self._step = step
        self._write()

    def ask(self, number: int) -> None:
        self._asked = self._asked or number
        self._write()

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, self._offset, self._count, self._step, self._asked, self._phase)


_memory = bytearray(_SLOT.size)
_heart = _Heart(_memory)
_launched: float | None = None


def beat(phase: str | None = None, step: int | None = None) -> None:
    """Records progress of this process, in `phase` and after `step` steps; None leaves either unchanged."""
    _heart.beat(phase, step)


def note_asked(number: int) -> None:
    """Records the signal by which this process was asked to stop; the first one counts."""
    _heart.ask(number)


def own_beats() -> Callable[[], list[Heartbeat]]:
    """Starts counting in the start-up phase; returns a function that reads this process's own beats."""
    global _heart
    _heart = _Heart(_memory)
    beat()
    return lambda: [_read(_memory, 0)]


def in_steps(beats: Iterable[Heartbeat]) -> bool:
    """True if any of the processes has begun its first step."""
    return any(beat.step >= 0 for beat in beats)


def share_beats(file: Path, size: int) -> Callable[[], list[Heartbeat]]:
    """Makes the file for the beats of `size` ranks; returns a function that reads all of them."""
    file.write_bytes(_SLOT.pack(0, -1, 0, START_UP.encode()) * size)
    memory = _mapped(file)
    return lambda: [_read(memory, rank * _SLOT.size) for rank in range(size)]


def beat_in(file: Path, rank: int, launched: float | None = None) -> None:
    """Stores this process's beats as those of `rank` in `file` from now on. `launched` is the time of its
    launch on the monotonic clock, which all processes of a machine share."""
    global _heart, _launched
    _heart, _launched = _Heart(_mapped(file), rank * _SLOT.size), launched
    beat()


def since_launch() -> float:
    """Seconds since this process was launched, including its own start and imports; 0 if unknown."""
    return 0.0 if _launched is None else time.monotonic() - _launched


def _mapped(file: Path) -> mmap.mmap:
    with file.open("r+b") as handle:
        return mmap.mmap(handle.fileno(), 0)


def _read(memory: mmap.mmap | bytearray, offset: int) -> Heartbeat:
    beats, step, asked, phase = _SLOT.unpack_from(memory, offset)
    return Heartbeat(beats, step, phase.rstrip(b"\0").decode(errors="replace"), asked)
