"""The folder of a sweep: its name is derived from the cells, so that no sweep replaces another.

A sweep of `sweeps/` as it is named goes to `<name>-<size>`. Where the command line changes its cells, a
digest of them follows: `<name>-<size>-<digest>`. A sweep defined only on the command line has a digest as its
name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.harness.config.cells import SweepCell
from gradwire.harness.config.overrides import parse
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.report.configs import changes_result, covered, flatten
from gradwire.harness.report.sweep_cells import without_folders
from gradwire.harness.report.sweep_record import FILE, SweepRecord
from gradwire.harness.runtime.errors import ConfigError

FOLDER = Path("outputs") / "sweeps"

OF_SWEEP = ("sweeps", "size", "sweep", "hydra")
"""Keys on the command line that choose a sweep and its execution."""

READ = ("run", "checkpoint", "score.data")
"""Keys whose paths are identified by contents in ids, but by their text here, because the record of a needed
cell has no contents yet."""

DIGITS = 12


class SweepPlace(NamedTuple):
    """A sweep's folder, and a note about it if it is not the usual one."""

    folder: Path
    note: str = ""


def overridden(arguments: Sequence[str], data: str | None) -> list[str]:
    """The command line's overrides that can change a sweep's cells, with `sweep.data`."""
    texts = [str(override.input_line) for override in parse(arguments) if _counts(override.get_key_element())]
    return [*texts, *([f"sweep.data={data}"] if data is not None else [])]


def _counts(key: str) -> bool:
    """True if a key of the command line or of a configuration affects the identity of a cell."""
    return covered(key, READ) or (changes_result(key) and not covered(key.partition("/")[0], OF_SWEEP))


def cell_text(cell: SweepCell, config: RecordedConfig) -> str:
    """The description of a cell, independent of earlier runs: its settings as composed, with paths of needed
    cells replaced by their descriptions."""
    settings: dict[str, Any] = flatten(config.mapping())
    if cell.sources:
        settings |= {key: words for key, words in cell.swept.items() if key in settings}
    kept = {key: value for key, value in settings.items() if _counts(key)}
    return json.dumps([kept, sorted(source.label for source in cell.sources)], sort_keys=True, default=str)


def cells_digest(cells: Iterable[str]) -> str:
    """12 hexadecimal digits of a sweep's cells and those that it needs, by `cell_text`."""
    return _digest(sorted(set(cells)))


def runs_digest(directories: Iterable[Path | None], labels: Iterable[str]) -> str:
    """12 hexadecimal digits of a sweep's runs, by the names of their directories, or labels as long as these
    are not known."""
    pairs = zip(directories, labels, strict=True)
    return _digest(sorted(label if folder is None else folder.name for folder, label in pairs))


def place_of(
    name: str, asked: Path | None, directories: Sequence[Path | None], labels: Sequence[str]
) -> SweepPlace:
    """The folder of a sweep called `name` with these cells: the one `asked` for, or that of its name. If that
    folder has a record of other cells or of changed data, another one is used.

    Raises ConfigError if the folder asked for has such a record.
    """
    usual = asked or FOLDER / name
    stranger = _other_cell(usual, directories, labels)
    if stranger is None:
        return SweepPlace(usual)
    if asked is not None:
        raise ConfigError(
            f"hydra.sweep.dir={asked} has the tables of a sweep with other cells ({stranger}), which would "
            "be lost; choose another folder"
        )
    other = FOLDER / f"{name}-{runs_digest(directories, labels)}"
    note = f"note: {usual} has the tables of other cells ({stranger}); those of this sweep go to {other}"
    return SweepPlace(other, note)


def _other_cell(folder: Path, directories: Sequence[Path | None], labels: Sequence[str]) -> str | None:
    """The label of a tried cell in the record in `folder` that is not among these, or None. A damaged record
    may be replaced."""
    if not os.path.lexists(folder / FILE):
        return None
    try:
        record = SweepRecord.read(folder / FILE)
    except UnusableFileError:
        return None
    known = {directory.name for directory in directories if directory is not None}
    pairs = zip(directories, labels, strict=True)
    waiting = {without_folders(label) for directory, label in pairs if directory is None}
    return next(
        (
            cell.label
            for cell in record.cells
            if cell.status in ("done", "failed") and cell.run not in known and cell.label not in waiting
        ),
        None,
    )


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:DIGITS]
