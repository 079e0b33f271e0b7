"""The rows that a sweep's record keeps: figures and decisions of its training runs, step by step.

A verdict about a mechanism rests on what it did in each step, which no figure of a whole run has: the ranks
of a window, the bits of a block, when a step was. `rows.jsonl.gz` has a line for each figure of a cell,
`{"cell": …, "figure": "codec/rank", "steps": [0, 100], "values": [16.0, 12.5], "last": 299}`: the steps at
which it changed, its values from then on, and the last step that has one. A value that stays takes no place,
so that whole runs can be kept. Decisions are `decision/<name>`, of lists `decision/<name>/<index>`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.codecs.decision_file import FILE as DECISIONS
from gradwire.codecs.decision_file import read_decisions
from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.record.runs import Run
from gradwire.harness.report.configs import flatten
from gradwire.harness.report.evaluation import CLOCK
from gradwire.harness.timing.measure.metrics import METRICS

ROWS = "rows.jsonl.gz"

MOST_ROWS = 64 * 2**20
"""The largest size in bytes of the text that is read."""

MOST_STEPS = 2**24
"""The number of steps of a cell at most: a row of a few bytes stands for a value in each of them."""

DECISION = "decision/"

LEFT_OUT = ("step", "measured", "lr")
"""Keys of rows that are numbers and no figures, or follow from the settings."""

DIGITS = 9
"""Significant digits of a figure: those of float32."""


@dataclass(frozen=True)
class KeptRow:
    """One figure of a cell over its steps; `values[i]` holds from `steps[i]` on, None: it is not known."""

    cell: str
    figure: str
    steps: tuple[int, ...]  # those at which it changes, ascending
    values: tuple[float | None, ...]
    last: int

    @classmethod
    def of(cls, cell: str, figure: str, found: Mapping[int, float | None]) -> KeptRow:
        """The series of the values by step; a step in between without one has None."""
        steps, values, last = list[int](), list[float | None](), max(found)
        for step in range(min(found), last + 1):
            value = _rounded(found.get(step))
            if not steps or value != values[-1]:
                steps.append(step)
                values.append(value)
        return cls(cell, figure, tuple(steps), tuple(values), last)

    def at(self, step: int) -> float | None:
        """Its value in a step; None where it has none."""
        place = bisect_right(self.steps, step) - 1
        return self.values[place] if place >= 0 and step <= self.last else None

    def by_step(self) -> dict[int, float]:
        """All its values."""
        found = {step: self.at(step) for step in range(self.steps[0], self.last + 1)}
        return {step: value for step, value in found.items() if value is not None}


def series_of(cell: str, run: Run) -> Iterator[KeptRow]:
    """The figures and decisions of a finished run, as rows of the cell `cell`.

    Raises UnusableFileError for decisions that cannot be read.
    """
    found: dict[str, dict[int, float | None]] = {}
    for row in run.steps:
        for key, value in flatten(row).items():
            if _is_kept(key) and isinstance(value, int | float):
                found.setdefault(key, {})[int(row["step"])] = float(value)
    for step, decided in _decisions(run.folder):
        for key, value in _numbers(decided):
            found.setdefault(f"{DECISION}{key}", {})[step] = value
    for figure, values in found.items():
        yield KeptRow.of(cell, figure, values)


def _is_kept(key: str) -> bool:
    """True if a key of a row is kept: of the times the clock alone, since means of the others are in the
    record, and what else ran on the machine is no evidence."""
    metric = METRICS.get(key)
    return key == CLOCK or (key not in LEFT_OUT and (metric is None or not (metric.timed or metric.observed)))


def _decisions(folder: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    path = folder / DECISIONS
    if not path.exists():
        return
    try:
        kept = read_decisions(str(path), DECISIONS)
    except ValueError as error:
        raise UnusableFileError(path, str(error), "run the cell again") from None
    for step in range(1, kept.num_steps + 1):
        yield step, kept.decision(step)


def _numbers(decided: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in decided.items():
        if isinstance(value, int | float):
            yield name, float(value)
        else:
            yield from ((f"{name}/{index}", float(each)) for index, each in enumerate(value))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def rows_text(rows: Iterable[KeptRow]) -> str:
    """The text of `ROWS`; equal rows give equal text."""
    return "".join(f"{dumps(asdict(each))}\n" for each in rows)


def read_rows(text: str, cells: Sequence[str], path: Path, remedy: str) -> tuple[KeptRow, ...]:
    """The rows in `text`, which is that of the file `path`; raises UnusableFileError for anything else than
    rows of the cells named `cells`."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found.append(_series(restored(json.loads(line)), cells))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise UnusableFileError(path, f"line {number} is not a row ({error})", remedy) from None
    return tuple(found)


def _series(line: Mapping[str, Any], cells: Sequence[str]) -> KeptRow:
    cell, figure, last = line["cell"], line["figure"], line["last"]
    steps, values = tuple(line["steps"]), tuple(line["values"])
    if cell not in cells or not isinstance(figure, str):
        raise ValueError("no such cell or figure")
    if not all(type(step) is int for step in (*steps, last)) or list(steps) != sorted(set(steps)):
        raise ValueError("steps are not whole and ascending")
    if not steps or len(steps) != len(values) or not 0 <= steps[0] <= steps[-1] <= last < MOST_STEPS:
        raise ValueError("steps and values do not fit together")
    if not all(value is None or type(value) in (int, float) for value in values):
        raise ValueError("a value is not a number")
    return KeptRow(
        cell, figure, steps, tuple(None if value is None else float(value) for value in values), last
    )
