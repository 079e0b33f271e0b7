"""Traces on disk: `trace/rank<r>.jsonl.gz` in a run's directory, written by each rank for itself.

A file begins with a block that says whose trace it is; each further block holds steps, and the programs that
they refer to. Older versions wrote `rank<r>.jsonl`, uncompressed, where a program holds for the rest of the
file. On a simulated clock times are those of the work as it was measured, before the clock.

Traces are by-products, and may come from elsewhere: whatever is damaged, foreign or a link is named in one
line, and nothing of it is used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gradwire.harness.files.reading import MissingFileError, UnusableFileError, open_file
from gradwire.harness.timing.trace.blocks import MOST_BYTES, DamagedBlockError, blocks
from gradwire.harness.timing.trace.step import RankTrace, StepTrace
from gradwire.harness.timing.trace.step_rows import BadRowError, Rows, line_of, row_of

FOLDER = "trace"
VERSION = 1

STEP = re.compile(rb'\{"step": ?(\d{1,15}),(?:"programs":\[([\d,]*)\],)?')
"""How the line of a step begins, by which it is found without reading the rest."""
NAME = re.compile(r"rank(\d{1,9})\.jsonl(\.gz)?")

REMEDY = "remove it: the run and all that is not in its trace stay"
WAY_OUT = "timeline.step= shows a step before it; a run that is resumed cuts its trace there"
NO_STEPS = "train with measure.trace=true, and measure.trace_every= at most the number of steps"


class Line(NamedTuple):
    """A line of a file; `first` of a block, `step` None for a program."""

    first: bool
    step: int | None
    text: bytes


def trace_file(directory: Path, rank: int) -> Path:
    """Where a rank's trace lies in a run's directory."""
    return directory / FOLDER / f"rank{rank}.jsonl.gz"


def old_file(directory: Path, rank: int) -> Path:
    """Where older versions put it."""
    return directory / FOLDER / f"rank{rank}.jsonl"


def header(run: str, rank: int) -> bytes:
    """The first line of a file: whose trace it is."""
    return line_of({"trace": VERSION, "run": run, "rank": rank})


@dataclass(frozen=True)
class RankFile:
    """What lies on disk in a run's `directory` of a rank's trace; `run` is whose it must be, if known."""

    directory: Path
    path: Path
    rank: int
    run: str | None = None

    @property
    def is_old(self) -> bool:
        return self.path.suffix != ".gz"

    def lines(self) -> Iterator[Line]:
        """Yields the programs and steps, or nothing if there is no file; omits a last line or block that a
        crash cut off.

        Raises UnusableFileError if the file belongs to another run, is a link, or is damaged (after yielding
        the lines before the damage).
        """
        last = None
        try:
            for line in self._old_lines() if self.is_old else self._lines():
                if line.step is not None:
                    if last is not None and line.step <= last:
                        raise BadRowError(f"step {line.step} follows step {last}")
                    last = line.step
                yield line
        except (DamagedBlockError, BadRowError) as error:
            raise self._damaged(last, error) from None
        except MissingFileError:
            return
        except OSError as error:
            raise UnusableFileError(self.path, f"cannot be read ({error.strerror})", REMEDY) from None

    def steps(self, size: int, wanted: Collection[int] | None = None) -> Iterator[tuple[int, RankTrace]]:
        """Steps in their order, or only those `wanted`; lines of others are skipped unread."""
        rows, last = Rows(self.rank, size, absolute=self.is_old), None
        for line in self.lines():
            if line.first and not self.is_old:
                rows.forget()
            try:
                if line.step is None:
                    rows.add_program(row_of(line.text))
                elif wanted is None or line.step in wanted:
                    yield rows.step(row_of(line.text))
            except BadRowError as error:
                raise self._damaged(last, error) from None
            last = last if line.step is None else line.step

    def _lines(self) -> Iterator[Line]:
        with open_file(self.path, inside=self.directory, remedy=REMEDY) as file:
            stored = blocks(file)
            first = next(stored, None)
            if first is None:
                raise DamagedBlockError("it is empty, or cut off in its first line")
            if (owner := self._owner(first.lines)) is not None:
                raise UnusableFileError(self.path, f"is {owner} trace, not this run's", REMEDY)
            for block in stored:
                for number, text in enumerate(block.lines):
                    yield Line(number == 0, _step_of(text), text)

    def _owner(self, first: Sequence[bytes]) -> str | None:
        """Who the first block says it belongs to, unless that is us."""
        row = row_of(first[0])
        if row.get("trace") != VERSION or len(first) > 1:
            raise BadRowError("it does not begin as a trace does")
        if row.get("rank") != self.rank:
            return f"rank {str(row.get('rank'))[:9]}'s"
        if self.run is not None and row.get("run") != self.run:
            return f"run {str(row.get('run'))[:12]}'s"
        return None

    def _old_lines(self) -> Iterator[Line]:
        with open_file(self.path, inside=self.directory, remedy=REMEDY) as file:
            while text := file.readline(MOST_BYTES + 1):
                if len(text) > MOST_BYTES:
                    raise BadRowError(f"a line is longer than {MOST_BYTES} bytes")
                if text.endswith(b"\n"):
                    yield Line(False, _step_of(text), text)

    def _damaged(self, last: int | None, error: Exception) -> UnusableFileError:
        where = "at its beginning" if last is None else f"after step {last}"
        remedy = REMEDY if last is None else WAY_OUT
        return UnusableFileError(self.path, f"is damaged {where} ({error})", remedy)


def rank_file(directory: Path, rank: int, run: str | None = None) -> RankFile:
    """A rank's file, in today's form or the older one."""
    path, old = trace_file(directory, rank), old_file(directory, rank)
    return RankFile(directory, old if old.is_file() and not path.is_file() else path, rank, run)


def read_traces(
    directory: Path, size: int, steps: Collection[int] | None = None, *, run: str | None = None
) -> Iterator[tuple[int, StepTrace]]:
    """The steps of a run in their order, of all `size` ranks, one at a time; only `steps`, if given.

    UnusableFileError where there is no trace, where it is damaged or not that of `run`, and where ranks have
    other steps than rank 0.
    """
    files = [rank_file(directory, rank, run) for rank in range(size)]
    first, *others = (file.steps(size, steps) for file in files)
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


class Recorded(NamedTuple):
    """The steps that all ranks have kept; and in a line what is wrong with what comes after them, if
    anything is."""

    steps: list[int]
    damage: str | None


def recorded_steps(directory: Path, size: int, *, run: str | None = None) -> Recorded:
    """Which steps of a run have a trace; their rows are not looked into.

    UnusableFileError where there is none.
    """
    found, damage = None, None
    for rank in range(size):
        own = set[int]()
        try:
            for line in rank_file(directory, rank, run).lines():
                if line.step is not None:
                    own.add(line.step)
        except UnusableFileError as error:
            if not own:
                raise
            damage = damage or str(error)
        found = own if found is None else found & own
    if not found:
        raise UnusableFileError(directory / FOLDER, "holds no steps", NO_STEPS)
    return Recorded(sorted(found), damage)


def _step_of(text: bytes) -> int | None:
    """The number of the step that a line holds; None for a program."""
    found = STEP.match(text)
    return int(found[1]) if found else None
