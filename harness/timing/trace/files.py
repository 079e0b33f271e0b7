"""Traces on disk: `trace/rank<r>.arrows.zst` in a run's directory, written by each rank for itself.

A file is a stream of Arrow record batches, compressed block by block (`blocks`); its rows are those of
`rows`, and its schema metadata identifies the run. On a simulated clock times are those of the measured work,
before the clock was applied.

Traces are by-products, and may come from elsewhere: files that are damaged, belong to another run or are
links are reported in one line and not used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gradwire.harness.files.reading import MissingFileError, UnusableFileError, open_file
from gradwire.harness.timing.trace.blocks import (
    DamagedBlockError,
    StepRows,
    StoredBlock,
    about,
    blocks,
    header_block,
    steps_of,
)
from gradwire.harness.timing.trace.rows import BadRowError, trace_of
from gradwire.harness.timing.trace.step import RankTrace, StepTrace

FOLDER = "trace"
VERSION = "1"

NAME = re.compile(r"rank(\d{1,9})\.arrows\.zst")

REMEDY = "remove it: the run and all that is not in its trace stay"
WAY_OUT = "timeline.step= shows a step before it; a run that is resumed cuts its trace there"
NO_STEPS = "train with measure.trace=true, and measure.trace_every= at most the number of steps"


def trace_file(directory: Path, rank: int) -> Path:
    """The file of a rank's trace in a run's directory."""
    return directory / FOLDER / f"rank{rank}.arrows.zst"


def header(run: str, rank: int) -> bytes:
    """The beginning of a file, which identifies the run and the rank."""
    return header_block({"trace": VERSION, "run": run, "rank": str(rank)})


@dataclass(frozen=True)
class RankFile:
    """A rank's trace in a run's `directory`; `run` is the run that it must belong to, if known."""

    directory: Path
    rank: int
    run: str | None = None

    @property
    def path(self) -> Path:
        return trace_file(self.directory, self.rank)

    def steps(self) -> Iterator[StepRows]:
        """Yields each step's number and rows, or nothing if there is no file; ignores a last block that a
        crash has cut off.

        Raises UnusableFileError if the file belongs to another run, is a link, or is damaged (after yielding
        the steps before the damage).
        """
        last = None
        try:
            for step, rows in self._steps():
                if step < 0 or (last is not None and step <= last):
                    raise BadRowError(f"step {step} follows step {last}")
                yield step, rows
                last = step
        except (DamagedBlockError, BadRowError) as error:
            where = "at its beginning" if last is None else f"after step {last}"
            remedy = REMEDY if last is None else WAY_OUT
            raise UnusableFileError(self.path, f"is damaged {where} ({error})", remedy) from None
        except MissingFileError:
            return
        except OSError as error:
            raise UnusableFileError(self.path, f"cannot be read ({error.strerror})", REMEDY) from None

    def traces(self, size: int, wanted: Collection[int] | None = None) -> Iterator[tuple[int, RankTrace]]:
        """Steps in order, or only those in `wanted`, of a run of `size` ranks; raises the errors of
        `steps`.
        """
        last = None
        for step, rows in self.steps():
            if wanted is None or step in wanted:
                try:
                    trace = trace_of(rows, self.rank, size)
                except BadRowError as error:
                    where = "at its beginning" if last is None else f"after step {last}"
                    raise UnusableFileError(self.path, f"is damaged {where} ({error})", REMEDY) from None
                yield step, trace
            last = step

    def _steps(self) -> Iterator[StepRows]:
        with open_file(self.path, inside=self.directory, remedy=REMEDY) as file:
            stored = blocks(file)
            first = next(stored, None)
            if first is None:
                raise DamagedBlockError("it is empty, or cut off in its first block")
            self._check_owner(first)
            for block in stored:
                yield from steps_of(block)

    def _check_owner(self, first: StoredBlock) -> None:
        found = about(first)
        owner = None
        if found.get("trace") != VERSION:
            raise BadRowError("it does not begin as a trace does")
        if found.get("rank") != str(self.rank):
            owner = f"rank {found.get('rank', '')[:9]}'s"
        elif self.run is not None and found.get("run") != self.run:
            owner = f"run {found.get('run', '')[:12]}'s"
        if owner is not None:
            raise UnusableFileError(self.path, f"is {owner} trace, not this run's", REMEDY)


def read_traces(
    directory: Path, size: int, steps: Collection[int] | None = None, *, run: str | None = None
) -> Iterator[tuple[int, StepTrace]]:
    """The steps of a run in order, with all `size` ranks, one at a time; only `steps`, if given.

    Raises UnusableFileError if there is no trace, if it is damaged or does not belong to `run`, and if ranks
    have different steps than rank 0.
    """
    files = [RankFile(directory, rank, run) for rank in range(size)]
    first, *others = (file.traces(size, steps) for file in files)
    found = dict[int, RankTrace]()
    for step, trace in first:
        found = {0: trace}
        for rank, other in enumerate(others, start=1):
            number, own = next(other, (None, None))
            if own is None or number != step:
                raise UnusableFileError(files[rank].path, f"lacks step {step}, which rank 0 has", WAY_OUT)
            found[rank] = own
        yield step, found
    if not found and steps is None:
        raise UnusableFileError(directory / FOLDER, "holds no steps", NO_STEPS)


class RecordedSteps(NamedTuple):
    """The steps recorded by all ranks, and one line describing what is wrong with later data, if anything
    is.
    """

    steps: list[int]
    damage: str | None


def recorded_steps(directory: Path, size: int, *, run: str | None = None) -> RecordedSteps:
    """The steps of a run that have a trace; their rows are not checked.

    Raises UnusableFileError if there are none.
    """
    found, damage = None, None
    for rank in range(size):
        own = set[int]()
        try:
            for step, _ in RankFile(directory, rank, run).steps():
                own.add(step)
        except UnusableFileError as error:
            if not own:
                raise
            damage = damage or str(error)
        found = own if found is None else found & own
    if not found:
        raise UnusableFileError(directory / FOLDER, "holds no steps", NO_STEPS)
    return RecordedSteps(sorted(found), damage)
