"""JSON-lines files: rows appended as whole lines, read back, and cut where a run is resumed.

Who appends knows at any time what the file must hold, and so does every checkpoint: a file that has been
damaged, replaced or lost since is noticed, wherever the damage lies, and costs what was written after it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.reading.files import UnusableFileError, open_file
from gradwire.harness.reading.structured import read_json_lines
from gradwire.harness.record.files import write_atomically
from gradwire.harness.record.finite_json import dumps, restored

Row = Mapping[str, Any]

REMEDY = "what is before it is whole"
"""What to do about a damaged line, where the caller knows nothing better."""


@dataclass(frozen=True)
class Extent:
    """How far a file of rows goes, and what it holds up to there."""

    num_bytes: int
    sha256: str


NOTHING = Extent(0, hashlib.sha256().hexdigest())
"""No rows."""


class RowFile:
    """A file that this process alone appends rows to, beginning with those that are there."""

    def __init__(self, path: Path) -> None:
        self.path, self._digest, self._size = path, hashlib.sha256(), 0
        if path.is_symlink() or path.exists():
            with open_file(path, remedy="resume=never starts over", inside=path.parent) as file:
                while block := file.read(2**20):
                    self._count(block)

    def append(self, rows: Iterable[Row]) -> None:
        """Add `rows`, one line each."""
        self._count(append_rows(self.path, rows))

    def extent(self) -> Extent:
        """What the file holds, waiting until all of it is on the disk.

        Raises UnusableFileError when it is not what was written: a checkpoint or a summary must not count on
        it.
        """
        flush_rows(self.path)
        extent = Extent(self._size, self._digest.hexdigest())
        there = self.path.stat().st_size if self.path.is_file() else 0
        if there != extent.num_bytes:
            raise UnusableFileError(
                self.path,
                f"has {there} bytes and not the {extent.num_bytes} written: changed while the run went on",
                "the same command goes on from the newest checkpoint whose rows are whole",
            )
        return extent

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the file; raises UnusableFileError when they are not those that were written."""
        check_extent(self.path, self.extent())
        return read_rows(self.path)

    def _count(self, block: bytes) -> None:
        self._digest.update(block)
        self._size += len(block)


def append_rows(path: Path, rows: Iterable[Row]) -> bytes:
    """Add `rows`, one line each; returns what was added."""
    text = "".join(dumps(dict(row)) + "\n" for row in rows).encode()
    with path.open("ab") as handle:
        handle.write(text)
    return text


def check_extent(path: Path, extent: Extent) -> None:
    """Raise UnusableFileError unless the file begins with what `extent` says; more may follow."""
    remedy, left, digest = "resume=never starts over", extent.num_bytes, hashlib.sha256()
    if left:
        with open_file(path, remedy=remedy, inside=path.parent) as file:
            while block := file.read(min(left, 2**20)):
                digest.update(block)
                left -= len(block)
    if left:
        raise UnusableFileError(path, "lacks rows", remedy)
    if digest.hexdigest() != extent.sha256:
        raise UnusableFileError(path, "holds other rows than were written", remedy)


def cut_to(path: Path, extent: Extent) -> None:
    """Leave of a file what `extent` says, which it begins with."""
    if path.is_file():
        os.truncate(path, extent.num_bytes)


def read_rows(path: Path, *, remedy: str = REMEDY) -> list[dict[str, Any]]:
    """The rows of a file, none if it is missing; a last line cut off by a crash is left out.

    Raises UnusableFileError naming the line that is damaged.
    """
    rows, damage = whole_rows(path, remedy=remedy)
    if damage is not None:
        raise damage
    return rows


def whole_rows(
    path: Path, fits: Callable[[int, Row], str | None] = lambda index, row: None, *, remedy: str = REMEDY
) -> tuple[list[dict[str, Any]], UnusableFileError | None]:
    """The rows of a file up to the first damaged one, and what is wrong with that.

    `fits` says what is wrong with a row that is JSON, given its index, None if nothing is.
    """
    rows = list[dict[str, Any]]()
    if not (path.is_symlink() or path.exists()):
        return rows, None
    try:
        for number, values in read_json_lines(path, remedy=remedy, inside=path.parent):
            row = restored(values)
            reason = fits(len(rows), row)
            if reason is not None:
                return rows, UnusableFileError(path, f"line {number} {reason}", remedy)
            rows.append(row)
    except UnusableFileError as error:
        return rows, error
    return rows, None


def step_of_run(index: int, row: Row) -> str | None:
    """What is wrong with row `index` of `steps.jsonl`."""
    if row.get("step") != index or isinstance(row["step"], bool):
        return f"is not that of step {index}"
    return _lacking(row, ("loss", "train_time_s", "step_time_s"))


def evaluation_of_run(index: int, row: Row) -> str | None:
    """What is wrong with row `index` of `evals.jsonl`."""
    return _lacking(row, ("step", "train_time_s"))


def _lacking(row: Row, numbers: Iterable[str]) -> str | None:
    """What of `numbers` a row lacks; a row holds single values only."""
    for name in numbers:
        if isinstance(row.get(name), bool) or not isinstance(row.get(name), int | float):
            return f"has no number {name}"
    nested = next((name for name, value in row.items() if isinstance(value, dict | list)), None)
    return None if nested is None else f"has more than one value in {nested[:40]}"


def cut_rows(path: Path, keep: Callable[[Row], bool]) -> None:
    """Leave only the rows for which `keep` holds; the file is replaced in one go."""
    rows = [row for row in read_rows(path) if keep(row)]
    write_atomically(path, "".join(dumps(row) + "\n" for row in rows))


def flush_rows(path: Path) -> None:
    """Wait until what was appended is on the disk."""
    if path.is_file():
        with path.open("ab") as handle:
            os.fsync(handle.fileno())
