"""Writes a run's trace: which steps it has, how large it gets, and how it ends when the disk fails.

A trace is a by-product: nothing that happens to it ends a run. It keeps the last of every `every` steps, in
which the error is rarely measured. When a trace has reached its bound, every second of its steps is dropped
and `every` doubles. So it covers the whole run evenly, however long that is.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.runtime.memory import collector_paused
from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import FOLDER, NAME, STEP, header, rank_file, trace_file
from gradwire.harness.timing.trace.step import RankTrace
from gradwire.harness.timing.trace.step_rows import Program, line_of, program_of, step_row

BATCH = 16
"""Steps of an older file that are copied at once."""

REPORT = 3
"""Numbers in a rank's report."""

PROGRAM = re.compile(rb'\{"program":(\d{1,15}),')
"""The beginning of the line of a program."""


@dataclass
class _Kept:
    """What a rank's file holds."""

    num_bytes: int
    num_steps: int = 0


class TraceWriter:
    """Appends the steps of the ranks hosted here to the trace of `run`, of `most_bytes` for all ranks.

    All ranks keep the same steps: they tell each other how they stand (`report`) and decide alike (`agree`).
    """

    def __init__(
        self, directory: Path, *, run: str = "", every: int = 1, most_bytes: float = math.inf
    ) -> None:
        self._directory, self._run, self._every, self._most_bytes = directory, run, every, most_bytes
        self._sampled = every  # also by the attempts before this one
        self._kept: dict[int, _Kept] = {}
        self._error, self._stopped, self._thinned = 0, False, False
        self._attempt(self._make_folder)

    def takes(self, step: int) -> bool:
        """Whether a step is kept, as far as is known now."""
        return not self._stopped and not self._error and (step + 1) % self._every == 0

    @collector_paused()
    def add(self, rank: int, traces: Mapping[int, RankTrace]) -> None:
        """Write some of a rank's steps, step number → trace, as far as they are kept."""
        self._attempt(lambda: self._add(rank, traces))

    def report(self, rank: int) -> list[float]:
        """A rank's bytes on disk, every how many steps it keeps, and the error that stopped it or 0."""
        kept = self._kept.get(rank)
        return [float(kept.num_bytes if kept else 0), float(self._sampled), float(self._error)]

    def agree(self, reports: Sequence[Sequence[float]]) -> str | None:
        """Carry on, thin out or stop, as all reports demand; returns a line for the user, or None."""
        if self._stopped:
            return None
        for rank, (_, _, error) in enumerate(reports):
            if error:
                self._stopped = True
                path, why = trace_file(self._directory, rank), _reason(int(error))
                return f"note: no trace from here on, {path} cannot be written ({why}); the run goes on"
        every = math.lcm(*(int(own) for _, own, _ in reports))
        if full := sum(num_bytes for num_bytes, _, _ in reports) > self._most_bytes:
            every *= 2
        if every == self._every:
            return None
        if full and any(kept.num_steps <= 1 for kept in self._kept.values()):
            self._stopped = True
            return f"note: no trace from here on, one step's is larger than {self._bound}"
        self._every = self._sampled = every
        self._attempt(self._thin_out)
        if not full or self._thinned:
            return None
        self._thinned = True
        return f"note: the trace has reached {self._bound} and is thinned: of {every} steps it has one"

    @property
    def _bound(self) -> str:
        return f"measure.trace_mb={self._most_bytes / 1e6:g}"

    def _attempt(self, act: Callable[[], None]) -> None:
        """Acts unless something has failed before."""
        if not self._error and not self._stopped:
            try:
                act()
            except OSError as error:
                self._error = error.errno or errno.EIO
            except UnusableFileError:  # damaged since the run was resumed
                self._error = errno.EIO

    def _make_folder(self) -> None:
        folder = self._directory / FOLDER
        if folder.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        folder.mkdir(exist_ok=True)

    def _add(self, rank: int, traces: Mapping[int, RankTrace]) -> None:
        if rank not in self._kept:
            self._kept[rank] = self._begun(rank)
        kept, path = self._kept[rank], trace_file(self._directory, rank)
        taken = {step: trace for step, trace in traces.items() if self.takes(step)}
        for lines in block_lines(taken):
            kept.num_bytes = blocks.append(path, blocks.compressed(lines))
        kept.num_steps += len(taken)

    def _begun(self, rank: int) -> _Kept:
        """A rank's file, which an earlier attempt may have begun; it may have kept fewer steps."""
        path = trace_file(self._directory, rank)
        if not path.exists():
            return _Kept(blocks.append(path, blocks.compressed([header(self._run, rank)])))
        file = rank_file(self._directory, rank, self._run)
        steps = [line.step for line in file.lines() if line.step is not None]
        self._sampled = math.lcm(self._sampled, sampling(steps))
        return _Kept(path.stat().st_size, len(steps))

    def _thin_out(self) -> None:
        for rank, kept in self._kept.items():
            kept.num_bytes, kept.num_steps = cut_file(
                trace_file(self._directory, rank), lambda step: (step + 1) % self._every == 0
            )


def sampling(steps: Sequence[int]) -> int:
    """Every how many steps one was kept, of which these are left."""
    return math.gcd(*(step + 1 for step in steps)) or 1


def block_lines(traces: Mapping[int, RankTrace]) -> Iterator[list[bytes]]:
    """The lines of some steps, block by block: what a block's steps do is in it, too."""
    lines, known, num_bytes = list[bytes](), dict[bytes, int](), 0
    for step, trace in traces.items():
        numbers = []
        for task in trace.tasks:
            program = program_of(task)
            key = _digest(program)
            if key not in known:
                known[key] = len(known)
                lines.append(line_of({"program": known[key], "operations": program}))
                num_bytes += len(lines[-1])
            numbers.append(known[key])
        lines.append(line_of(step_row(step, trace, numbers)))
        num_bytes += len(lines[-1])
        if num_bytes >= blocks.BLOCK_BYTES:
            yield lines
            lines, known, num_bytes = [], {}, 0
    if lines:
        yield lines


def cut_file(path: Path, keep: Callable[[int], bool]) -> tuple[int, int]:
    """Keeps only the steps for which `keep` holds, up to where the file is damaged; returns its size in bytes
    and the number of steps. Raises OSError."""
    num_steps = 0

    def kept(lines: list[bytes]) -> list[bytes]:
        nonlocal num_steps
        wanted, programs = set[int](), set[bytes]()
        for number, line in enumerate(lines):
            if (found := STEP.match(line)) and keep(int(found[1])):
                wanted.add(number)
                programs.update((found[2] or b"").split(b","))
        num_steps += len(wanted)
        for number, line in enumerate(lines):
            if not STEP.match(line) and ((found := PROGRAM.match(line)) is None or found[1] in programs):
                wanted.add(number)  # a program that is left, or the file's header
        return [lines[number] for number in sorted(wanted)]

    return blocks.rewrite(path, kept), num_steps


def cut_traces(directory: Path, step: int, run: str | None = None) -> list[str]:
    """Keeps only the steps before `step` that all ranks have, for a run that resumes there; removes what is
    damaged, foreign or a link. Returns lines for the user."""
    folder = directory / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    notes = list[str]()
    try:
        for leftover in folder.glob(".*"):  # halves of files that a killed attempt was about to rename
            leftover.unlink()
        ranks = {int(found[1]) for path in folder.iterdir() if (found := NAME.fullmatch(path.name))}
        steps = {rank: _steps_left(directory, rank, run, notes) for rank in ranks}
        common = set.intersection(*steps.values()) if steps else set[int]()
        if not notes:
            notes = [
                f"{rank_file(directory, rank).path} lacks steps that other ranks have: all ranks' traces are "
                "cut to those they share; the run goes on"
                for rank, own in sorted(steps.items())
                if any(number < step for other in steps.values() for number in other - own)
            ]
        wanted = {number for number in common if number < step}
        for rank in sorted(ranks):
            _cut_rank(directory, rank, max(ranks) + 1, wanted, run)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        notes = [f"{folder} cannot be cut to the steps before {step} ({error.strerror}): removed"]
    return notes


def _steps_left(directory: Path, rank: int, run: str | None, notes: list[str]) -> set[int]:
    """The steps of a rank that can be read; a file that is not to be read at all goes."""
    file, found = rank_file(directory, rank, run), set[int]()
    try:
        for line in file.lines():
            if line.step is not None:
                found.add(line.step)
    except UnusableFileError as error:
        cut = "all ranks' traces are cut there" if found else "removed, and so are the other ranks'"
        notes.append(f"{file.path} {error.problem}: {cut}; the run goes on")
        if not found:
            file.path.unlink()
    return found


def _cut_rank(directory: Path, rank: int, size: int, wanted: set[int], run: str | None) -> None:
    file, path = rank_file(directory, rank, run), trace_file(directory, rank)
    if file.is_old and file.path.is_file():
        writer = TraceWriter(directory, run=run or "")
        with suppress(UnusableFileError):  # that it is damaged has been noted
            found = file.steps(size, wanted)
            while batch := dict(islice(found, BATCH)):
                writer.add(rank, batch)
        file.path.unlink()
    elif path.is_file():
        cut_file(path, wanted.__contains__)


def _reason(error: int) -> str:
    return "it is a link, which is not followed" if error == errno.ELOOP else os.strerror(error)


def _digest(program: Program) -> bytes:
    """What tells programs apart, which are long where ranks are many, and of some codecs new at each step."""
    return hashlib.blake2b(repr(program).encode(), digest_size=16).digest()
