"""What a bench has measured so far, kept as it comes: after an interruption the same command goes on with it.

A file of JSON lines in the run directory: first what the figures depend on, then a line for each piece of
work with its rows. A finished bench has all of it in `bench.json` instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.typed import made
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.row_file import append_rows
from gradwire.harness.studies.bench.bus import BusRow
from gradwire.harness.studies.bench.host import HostRow
from gradwire.harness.studies.bench.measure import Row

FILE = "measured.jsonl"

REMEDY = "resume=never measures again"

Measured = TypeVar("Measured", Row, HostRow, BusRow)

Key = tuple[str | int, ...]
"""The kind of a piece of work, and what tells it from others of its kind."""


class Kept:
    """The file in `directory`. `about` is what the figures depend on: sources, machine, packages.

    What was measured elsewhere or by other code is left out, and a line says so; so is a damaged rest, which
    a killed writer leaves.
    """

    def __init__(self, directory: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = directory / FILE
        self._found = dict[Key, list[dict[str, Any]]]()
        header = {"about": about}
        first, *rest = [{}] if fresh else self._lines()
        if first == json.loads(dumps(header)):
            self._found = {tuple(line["key"]): line["rows"] for line in rest}
            print(f"resuming after {len(rest)} pieces of work that have been measured", flush=True)
        elif first:
            print("measuring anew: the machine or the code has changed since the interruption", flush=True)
        lines = [{"key": list(key), "rows": rows} for key, rows in self._found.items()]
        write_atomically(self.path, "".join(f"{dumps(line)}\n" for line in (header, *lines)))

    def rows(
        self, kind: type[Measured], key: Key, measure: Callable[[], Sequence[Measured]]
    ) -> list[Measured]:
        """The rows of a piece of work: those in the file, or what `measure` returns, which is kept."""
        if key in self._found:
            return [made(kind, row, self.path, remedy=REMEDY) for row in self._found[key]]
        rows = list(measure())
        append_rows(self.path, [{"key": list(key), "rows": [asdict(row) for row in rows]}])
        return rows

    def _lines(self) -> list[dict[str, Any]]:
        """The whole lines, up to the first damaged one; an empty object if there are none."""
        found = list[dict[str, Any]]()
        try:
            for line in read_text(self.path, remedy=REMEDY, inside=self.path.parent).splitlines():
                value = restored(json.loads(line))
                if not isinstance(value, dict) or (found and not value.keys() >= {"key", "rows"}):
                    break
                found.append(value)
        except (UnusableFileError, FileNotFoundError, ValueError):
            pass
        return found or [{}]
