"""JSON-lines files: rows appended as whole lines, read back, and cut where a run is resumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from gradwire.harness.record.files import write_atomically
from gradwire.harness.record.finite_json import dumps, loads

Row = Mapping[str, Any]


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add `rows`, one line each."""
    text = "".join(dumps(dict(row)) + "\n" for row in rows)
    with path.open("a") as handle:
        handle.write(text)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, none if it is missing; a last line cut off by a crash is left out.

    Raises ValueError naming the line that is damaged.
    """
    if not path.is_file():
        return []
    lines = path.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(loads(line))
        except JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from error
    return rows


def cut_rows(path: Path, keep: Callable[[Row], bool]) -> None:
    """Leave only the rows for which `keep` holds; the file is replaced in one go."""
    rows = [row for row in read_rows(path) if keep(row)]
    write_atomically(path, "".join(dumps(row) + "\n" for row in rows))


def flush_rows(path: Path) -> None:
    """Wait until what was appended is on the disk."""
    if path.is_file():
        with path.open("a") as handle:
            os.fsync(handle.fileno())
