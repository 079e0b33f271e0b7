"""Printed figures of the papers: the rows of `results/reference/<paper>/<item>.csv`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from gradwire.harness.files.reading import UnusableFileError, printable, read_text

COLUMNS = ("paper", "item", "model", "dataset", "method", "setting", "metric", "value", "unit", "note")
REMEDY = "take it from the repository again"
UNITS = {
    "x": "×",
    "day": "days",
    "TFLOPS": "TFLOP/s",
    "ms/iteration": "ms per iteration",
    "bits/coordinate": "bits per coordinate",
    "bytes/coordinate": "bytes per coordinate",
    "nats?": "nats (unit not printed)",
    "unit not printed (GB/s is the likely reading)": "GB/s (unit not printed)",
}
"""Units of printed figures in words; others are written as they are."""

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Row = Mapping[str, str]


class Reference:
    """The printed figures below one folder, read on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._items: dict[str, list[Row]] = {}

    def rows(self, item: str) -> list[Row]:
        """The rows of `dynamiq/table4`; raises ValueError in one line if there is no such item."""
        if item not in self._items:
            known = sorted(f"{path.parent.name}/{path.stem}" for path in self.folder.glob("*/*.csv"))
            if item not in known:
                raise ValueError(
                    f"{printable(item, 80)} is not one of the {len(known)} printed tables and figures; "
                    f"{alike(item, known)}"
                )
            self._items[item] = _read(self.folder / f"{item}.csv", self.folder)
        return self._items[item]

    def find(self, item: str, /, **chosen: str) -> list[Row]:
        """The rows of an item whose columns have the chosen values. Raises ValueError if there are none."""
        found = self.rows(item)
        for column, value in chosen.items():
            if column not in COLUMNS:
                raise ValueError(f"{item} has no column {column}; it has {', '.join(COLUMNS)}")
            values = list(dict.fromkeys(row[column] for row in found))
            found = [row for row in found if row[column] == value]
            if not found:
                raise ValueError(f"{item} has no {column}={value}; it has {', '.join(values)}")
        return found

    def one(self, item: str, /, **chosen: str) -> Row:
        """The one row with these columns; raises ValueError if none or several have them."""
        rows = self.find(item, **chosen)
        if len(rows) > 1:
            raise ValueError(f"{item} has {len(rows)} figures with {chosen}; name more columns")
        return rows[0]

    def number(self, item: str, /, **chosen: str) -> float:
        """The one printed figure with these columns; raises ValueError if that is no number."""
        row = self.one(item, **chosen)
        found = value_of(row)
        if found is None:
            raise ValueError(f"{item} prints {row['value']!r} there, which is not a number")
        return found


def alike(name: str, known: Iterable[str]) -> str:
    """The existing names that are most similar to `name`, for messages."""
    found = get_close_matches(name, list(known), 3, 0)
    return f"alike are {printable(', '.join(found), 100)}" if found else "there are none"


def value_of(row: Row) -> float | None:
    """The printed value as a number; None for a range, a bound or text."""
    return float(row["value"]) if NUMBER.fullmatch(row["value"]) else None


def unit_of(row: Row) -> str:
    """The unit of a printed figure in words; empty without one."""
    return UNITS.get(row["unit"], row["unit"])


def _read(path: Path, inside: Path) -> list[Row]:
    try:
        lines = list(csv.reader(io.StringIO(read_text(path, remedy=REMEDY, inside=inside))))
    except csv.Error as error:
        raise UnusableFileError(path, f"is not a table ({error})", REMEDY) from None
    if not lines or tuple(lines[0]) != COLUMNS:
        raise UnusableFileError(path, f"does not begin with the columns {','.join(COLUMNS)}", REMEDY)
    wrong = next((number for number, line in enumerate(lines, 1) if len(line) != len(COLUMNS)), None)
    if wrong is not None:
        raise UnusableFileError(path, f"line {wrong} has not {len(COLUMNS)} columns", REMEDY)
    return [dict(zip(COLUMNS, line, strict=True)) for line in lines[1:]]
