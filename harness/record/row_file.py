"""JSON-lines files: rows are appended as whole lines, read back, and cut to the length noted in a checkpoint.

A checkpoint notes the length of each file at that time, and a digest. A resumed run cuts later rows; if
earlier ones are missing, the checkpoint cannot be used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError, open_file
from gradwire.harness.files.structured import read_json_lines
from gradwire.harness.files.writing import writing

Row = Mapping[str, Any]

MOST_BYTES = 2**31
"""The largest size of a file of rows in bytes: three million steps at 700 bytes each."""

REMEDY = "the lines before it are intact"
"""The remedy for a damaged line, unless the caller gives a better one."""

START_OVER = "restore its contents, or start over with resume=never"


@dataclass(frozen=True)
class Extent:
    """The length of a file of rows, and the digest of its contents up to there."""

    num_bytes: int
    sha256: str


NOTHING = Extent(0, hashlib.sha256().hexdigest())
"""The extent of an empty file."""


class RowFile:
    """A file that only this process appends rows to, beginning with the existing ones."""

    def __init__(self, path: Path) -> None:
        self.path, self._digest, self._size = path, hashlib.sha256(), 0
        if path.is_symlink() or path.exists():
            with open_file(path, remedy=START_OVER, inside=path.parent, most=MOST_BYTES) as file:
                while block := file.read(2**20):
                    self._count(block)

    def append(self, rows: Iterable[Row]) -> None:
        """Appends `rows`, one line each."""
        self._count(append_rows(self.path, rows))

    @property
    def has_rows(self) -> bool:
        """True once a row was written."""
        return self._size > 0

    def extent(self) -> Extent:
        """Returns the length and digest of the rows written so far, after waiting until all of them are on
        disk.

        Raises UnusableFileError if the file has another length because another process has changed it.
        """
        there = 0
        if self.path.is_file():
            with writing(self.path), self.path.open("ab") as handle:
                os.fsync(handle.fileno())
                there = handle.tell()
        if there != self._size:
            problem = f"has {there} bytes and not the {self._size} written: changed while the run went on"
            raise UnusableFileError(self.path, problem, START_OVER)
        return Extent(self._size, self._digest.hexdigest())

    def rows(self) -> list[dict[str, Any]]:
        """All rows written so far; raises UnusableFileError if the file has other contents."""
        check_extent(self.path, self.extent())
        return read_rows(self.path)

    def _count(self, block: bytes) -> None:
        self._digest.update(block)
        self._size += len(block)


def append_rows(path: Path, rows: Iterable[Row]) -> bytes:
    """Appends `rows`, one line each; returns the appended bytes."""
    text = "".join(dumps(dict(row)) + "\n" for row in rows).encode()
    with writing(path), path.open("ab") as handle:
        handle.write(text)
    return text


def check_extent(path: Path, extent: Extent) -> None:
    """Raises UnusableFileError unless the file begins with the contents that `extent` describes; more may
    follow."""
    left, digest = extent.num_bytes, hashlib.sha256()
    if left > MOST_BYTES:
        raise UnusableFileError(path, "is longer than any file of rows", START_OVER)
    if left:
        with open_file(path, remedy=START_OVER, inside=path.parent) as file:
            while block := file.read(min(left, 2**20)):
                digest.update(block)
                left -= len(block)
    if left:
        raise UnusableFileError(path, "lacks rows", START_OVER)
    if digest.hexdigest() != extent.sha256:
        raise UnusableFileError(path, "holds other rows than were written", START_OVER)


def cut_to(path: Path, extent: Extent) -> None:
    """Cuts a file to the length of `extent`."""
    if path.is_file():
        os.truncate(path, extent.num_bytes)


def read_rows(path: Path, *, remedy: str = REMEDY) -> list[dict[str, Any]]:
    """Returns the rows of a file, without a last line that a crash has cut off; empty if the file is missing.

    Raises UnusableFileError naming the damaged line.
    """
    rows, damage = whole_rows(path, remedy=remedy)
    if damage is not None:
        raise damage
    return rows


def whole_rows(
    path: Path, fits: Callable[[int, Row], str | None] = lambda index, row: None, *, remedy: str = REMEDY
) -> tuple[list[dict[str, Any]], UnusableFileError | None]:
    """The rows of a file before the first damaged one, and the error of that one, or None.

    `fits` describes what is wrong with a valid JSON row, given its index; None if nothing is.
    """
    rows = list[dict[str, Any]]()
    if not (path.is_symlink() or path.exists()):
        return rows, None
    try:
        lines = read_json_lines(path, remedy=remedy, inside=path.parent, most_in_all=MOST_BYTES)
        for number, values in lines:
            row = restored(values)
            reason = fits(len(rows), row)
            if reason is not None:
                return rows, UnusableFileError(path, f"line {number} {reason}", remedy)
            rows.append(row)
    except UnusableFileError as error:
        return rows, error
    return rows, None


def steps_of_run(*, from_zero: bool) -> Callable[[int, Row], str | None]:
    """Returns a check of rows of `steps.jsonl`, for `whole_rows`. The first row is step 0's, unless the run
    began from another run's checkpoint."""
    first = 0

    def fits(index: int, row: Row) -> str | None:
        nonlocal first
        step = row.get("step")
        if index == 0 and not from_zero and isinstance(step, int) and step > 0:
            first = step
        if step != first + index or isinstance(step, bool):
            return f"is not that of step {first + index}"
        return _lacking(row, ("loss", "train_time_s", "step_time_s"))

    return fits


def evaluation_of_run(index: int, row: Row) -> str | None:
    """Describes what is wrong with row `index` of `evals.jsonl`; None if nothing is."""
    return _lacking(row, ("step", "train_time_s"))


def _lacking(row: Row, numbers: Iterable[str]) -> str | None:
    """Describes which of `numbers` a row lacks, or that it holds nested values; None if it is complete."""
    for name in numbers:
        if isinstance(row.get(name), bool) or not isinstance(row.get(name), int | float):
            return f"has no number {name}"
    nested = next((name for name, value in row.items() if isinstance(value, dict | list)), None)
    return None if nested is None else f"has more than one value in {nested[:40]}"
