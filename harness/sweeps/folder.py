"""The folder of a sweep: its name is derived from the cells, so that no sweep replaces another.

A sweep of `sweeps/` as it is named goes to `<name>-<size>`. Where the command line changes its cells, a
digest of them follows: `<name>-<size>-<digest>`. A sweep defined only on the command line has a digest as its
name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.report.sweep_record import FILE, SweepRecord
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.planned_cell import PlannedCell
from gradwire.harness.sweeps.record import without_folders

FOLDER = Path("outputs") / "sweeps"

DIGITS = 12


class SweepPlace(NamedTuple):
    """A sweep's folder, and a note about it if it is not the usual one."""

    folder: Path
    note: str = ""


def digest(texts: Iterable[str]) -> str:
    """12 hexadecimal digits of some texts, whatever their order: of cells by their descriptions, of runs by
    their names."""
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:DIGITS]


def place_of(name: str, asked: Path | None, cells: Sequence[PlannedCell]) -> SweepPlace:
    """The folder of a sweep called `name` with these cells: the one `asked` for, or that of its name. If that
    folder has a record of other cells or of changed data, another one is used.

    Raises ConfigError if the folder asked for has such a record.
    """
    usual = asked or FOLDER / name
    other_cell = _other_cell(usual, cells)
    if other_cell is None:
        return SweepPlace(usual)
    if asked is not None:
        raise ConfigError(
            f"hydra.sweep.dir={asked} has the tables of a sweep with other cells ({other_cell}), which would "
            "be lost; choose another folder"
        )
    other = FOLDER / f"{name}-{digest(cell.run for cell in cells)}"
    note = f"note: {usual} has the tables of other cells ({other_cell}); those of this sweep go to {other}"
    return SweepPlace(other, note)


def records_of(sweep: str, size: str) -> list[Path]:
    """The records of a sweep at a size, whatever overrides its cells had."""
    names = re.compile(rf"{re.escape(f'{sweep}-{size}')}(-[0-9a-f]{{{DIGITS}}})*")
    return [path for path in FOLDER.glob(f"*/{FILE}") if names.fullmatch(path.parent.name)]


def _other_cell(folder: Path, cells: Sequence[PlannedCell]) -> str | None:
    """The label of a tried cell in the record in `folder` that is not among these, or None. A damaged record
    may be replaced."""
    if not os.path.lexists(folder / FILE):
        return None
    try:
        record = SweepRecord.read(folder / FILE)
    except UnusableFileError:
        return None
    runs = {cell.run for cell in cells if cell.directory is not None}
    waiting = {without_folders(cell.label) for cell in cells if cell.directory is None}
    tried = (cell for cell in record.cells if cell.status in ("done", "failed"))
    return next((cell.label for cell in tried if cell.run not in runs and cell.label not in waiting), None)
