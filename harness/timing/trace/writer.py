"""Writes a run's trace, chooses its steps, limits its size, and handles a failing disk.

A trace is a by-product: its errors never end a run. The last of every `every` steps is kept, because the
error is rarely measured in those. When a trace has reached its size limit, every second of its steps is
dropped and `every` doubles. So it covers the whole run evenly, however long that is.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.runtime.memory import collector_paused
from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import FOLDER, NAME, RankFile, header, trace_file
from gradwire.harness.timing.trace.rows import rows_of
from gradwire.harness.timing.trace.step import RankTrace

MOST_ROWS = 2**14
"""The largest number of rows in a block of several steps, i.e. some MiB."""

REPORT = 3
"""Numbers in a rank's report."""


@dataclass
class _TraceExtent:
    """The amount of data in a rank's file."""

    num_bytes: int
    num_steps: int = 0


class TraceWriter:
    """Appends the steps of the ranks hosted here to the trace of `run`, limited to `most_bytes` for all ranks
    together.

    All ranks keep the same steps: they exchange their state (`report`) and decide alike (`agree`).
    """

    def __init__(
        self, directory: Path, *, run: str = "", every: int = 1, most_bytes: float = math.inf
    ) -> None:
        self._directory, self._run, self._every, self._most_bytes = directory, run, every, most_bytes
        self._sampled = every  # also by the attempts before this one
        self._kept: dict[int, _TraceExtent] = {}
        self._error, self._stopped, self._thinned = 0, False, False
        self._attempt(self._make_folder)

    def takes(self, step: int) -> bool:
        """True if a step is kept, as far as is known so far."""
        return not self._stopped and not self._error and (step + 1) % self._every == 0

    @collector_paused()
    def add(self, rank: int, traces: Mapping[int, RankTrace]) -> None:
        """Writes some of a rank's steps, given by number; skips those that are not kept."""
        self._attempt(lambda: self._add(rank, traces))

    def report(self, rank: int) -> list[float]:
        """A rank's bytes on disk, its current `every`, and the error number that stopped it, or 0."""
        kept = self._kept.get(rank)
        return [float(kept.num_bytes if kept else 0), float(self._sampled), float(self._error)]

    def agree(self, reports: Sequence[Sequence[float]]) -> str | None:
        """Continues, thins out or stops the trace according to all ranks' reports; returns a line for the
        user, or None."""
        if self._stopped:
            return None
        for rank, (_, _, error) in enumerate(reports):
            if error:
                self._stopped = True
                path, why = trace_file(self._directory, rank), _reason(int(error))
                return f"note: no trace from here on, {path} cannot be written ({why}); the run continues"
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
        """Calls `act` unless an error has occurred before; records its error."""
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
        pending = list[blocks.StepRows]()
        for step in filter(self.takes, traces):
            pending.append((step, rows_of(traces[step])))
            kept.num_steps += 1
            if sum(len(rows) for _, rows in pending) >= MOST_ROWS:
                kept.num_bytes = blocks.append(path, blocks.step_block(pending))
                pending = []
        if pending:
            kept.num_bytes = blocks.append(path, blocks.step_block(pending))

    def _begun(self, rank: int) -> _TraceExtent:
        """Opens a rank's file, which an earlier attempt may have begun with a larger `every`."""
        path = trace_file(self._directory, rank)
        if not path.exists():
            return _TraceExtent(blocks.append(path, header(self._run, rank)))
        steps = [step for step, _ in RankFile(self._directory, rank, self._run).steps()]
        self._sampled = math.lcm(self._sampled, sampling(steps))
        return _TraceExtent(path.stat().st_size, len(steps))

    def _thin_out(self) -> None:
        for rank, kept in self._kept.items():
            kept.num_bytes, kept.num_steps = blocks.rewrite(
                trace_file(self._directory, rank), lambda step: (step + 1) % self._every == 0
            )


def sampling(steps: Sequence[int]) -> int:
    """The sampling interval with which these steps were kept."""
    return math.gcd(*(step + 1 for step in steps)) or 1


def cut_traces(directory: Path, step: int, run: str | None = None) -> list[str]:
    """Keeps only the steps before `step` that all ranks have, for a run that resumes there; removes files
    that are damaged, belong to another run or are links. Returns lines for the user."""
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
                f"{trace_file(directory, rank)} lacks steps that other ranks have: all ranks' traces are "
                "cut to those they share; the run continues"
                for rank, own in sorted(steps.items())
                if any(number < step for other in steps.values() for number in other - own)
            ]
        wanted = {number for number in common if number < step}
        for path in (trace_file(directory, rank) for rank in sorted(ranks)):
            if path.is_file():
                blocks.rewrite(path, wanted.__contains__)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        notes = [f"{folder} cannot be cut to the steps before {step} ({error.strerror}): removed"]
    return notes


def _steps_left(directory: Path, rank: int, run: str | None, notes: list[str]) -> set[int]:
    """The readable steps of a rank; a file that cannot be read at all is removed."""
    file, found = RankFile(directory, rank, run), set[int]()
    try:
        for step, _ in file.steps():
            found.add(step)
    except UnusableFileError as error:
        cut = "all ranks' traces are cut there" if found else "removed, and so are the other ranks'"
        notes.append(f"{file.path} {error.problem}: {cut}; the run continues")
        if not found:
            file.path.unlink()
    return found


def _reason(error: int) -> str:
    return "it is a link, which is not followed" if error == errno.ELOOP else os.strerror(error)
