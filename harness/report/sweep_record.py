"""The record of a sweep: its cells, their outcomes, and their figures.

Files in the sweep's folder, written from its cells' own records: `sweep.json` describes the sweep,
`values.csv.gz` has the lines of `frame` for the finished cells: figures of whole runs, evaluations, errors by
step. Tables, claims and the report need nothing else, so run directories need not be kept. What training runs
did and decided in each step, on which such figures rest, is in `rows.jsonl.gz`. Equal records give equal
bytes. `sweep.json` has the digests of both texts and its own, so that damage and edits are detected. The
tables of records made before were not compressed, and are read as they are.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from gradwire.harness.files.compressed import ENDING, compressed, read_compressed
from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import MOST_TEXT, UnusableFileError, folders_in, printable, read_text
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import DIVERGED
from gradwire.harness.record.summary import Stored
from gradwire.harness.report.frame import Value, table
from gradwire.harness.report.kept_rows import MOST_ROWS, ROWS, KeptRow, read_rows, rows_text
from gradwire.harness.timing.measure.metric import Kind
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from pandas import DataFrame

FILE, VALUES = "sweep.json", f"values.csv{ENDING}"
COLUMNS = ("cell", "metric", "value", "unit", "case", "kind", "seed", "step")
REMEDY = "run the sweep again, which writes it anew from its cells' records"

OF_TABLES = ("values", "rows")
"""Fields that are not in `sweep.json`."""

OWN_DIGEST = "sha256"
"""The key of `sweep.json` with the digest of all its others."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
"""Names of sweeps and sizes, which are names of folders, too."""

Status = Literal["done", "failed", "unfinished", "damaged"]
"""`damaged`: the cell's own record could not be read."""


@dataclass(frozen=True)
class CellRecord:
    """One cell; `machine` and the fields after it are null unless it is done."""

    label: str  # its swept values in words, no two cells alike
    task: str
    axes: dict[
        str, Any
    ]  # the swept values by dotted key, and those that follow from them; null: has no such key
    seed: int | None
    run: str  # the name of its run directory
    id: str  # the run's id
    status: Status
    reason: str  # why it is not done
    off_axes: dict[str, Any]  # settings in which it differs from cells of its task though they are no axes
    wall_time_s: float | None
    metric: str | None  # what its evaluations are judged by; null without evaluations
    kind: Kind | None  # of its times
    code_hash: str | None
    commit: str | None
    dirty: bool | None
    machine: dict[str, Any] | None
    computation: str | None  # what cells share whose workers compute the same; null without a wall clock
    workers: int | None  # of a machine; null with `computation`
    network: str | None  # its links and what its times are, in words; null for tasks that know no links

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def diverged(self) -> bool:
        """True if training itself ended the run."""
        return self.status == "failed" and self.reason.startswith(f"{DIVERGED} ")


@dataclass(frozen=True)
class SweepRecord(Stored):
    """A sweep, as read from its two files."""

    remedy: ClassVar[str] = REMEDY

    name: str  # as in `sweeps=<name>`
    size: str
    paper: str | None  # the item that it reproduces: "DynamiQ Table 4"
    command: str  # without this machine's folders
    axes: list[str]  # dotted keys; the seed is none of them
    text: str | None  # what models were trained on: "embedded", or the name of the folder with real text
    settings: dict[str, dict[str, Any]]  # task -> what all its cells have in common, by dotted key
    cells: list[CellRecord]
    values_sha256: str  # of the text in values.csv.gz
    values: tuple[Value, ...] = ()  # `run` is the cell's label
    folder: str = field(kw_only=True)  # the name of its folder, and of its group in wandb
    overrides: list[str] = field(kw_only=True)  # in which it differs from the sweep as it is named
    # digests of the claims about it, by id, as they stood when its first cells ran; empty in old records
    claims: dict[str, str] = field(default_factory=dict, kw_only=True)
    rows_sha256: str = field(default="", kw_only=True)  # of the text in rows.jsonl.gz; empty without rows
    rows: tuple[KeptRow, ...] = field(default=(), kw_only=True)

    @property
    def complete(self) -> bool:
        """Returns whether every cell has run or failed."""
        return all(cell.status in ("done", "failed") for cell in self.cells)

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells if cell.seed is not None})

    @property
    def code_hashes(self) -> list[str]:
        """Versions of the sources that finished cells ran, the most frequent one first."""
        found = [cell.code_hash for cell in self.cells if cell.code_hash is not None]
        return sorted(set(found), key=lambda each: (-found.count(each), each))

    @property
    def left_out(self) -> list[str]:
        """A line for each cell without figures."""
        return [f"{cell.label}: {cell.status}: {cell.reason}" for cell in self.cells if not cell.done]

    def setting(self, cell: CellRecord, key: str) -> Any:
        """The value of a dotted key, or of a group's name, in a cell; None if it has no such key."""
        if key in cell.axes:
            return cell.axes[key]
        common = self.settings.get(cell.task, {})
        return common.get(f"{key}.name", common.get(key))

    def networks(self) -> list[str]:
        """The links of its cells and what their times are, in words, each once."""
        return list(dict.fromkeys(cell.network for cell in self.cells if cell.network is not None))

    def frame(self) -> DataFrame:
        """The figures in the form of `harness.report.frame`; `run` is the cell's label."""
        return table(self.values)

    def steps_of(self, cell: str, figure: str) -> dict[int, float]:
        """A figure or decision of a cell, given by its label, by step; empty if no row of it is kept."""
        found = [each for each in self.rows if (each.cell, each.figure) == (cell, figure)]
        return found[0].by_step() if found else {}

    def rows_frame(self) -> DataFrame:
        """The kept rows in the form of `frame`, a line for each step."""
        about = {cell.label: cell for cell in self.cells}
        return table(
            Value(
                each.cell,
                about[each.cell].task,
                each.figure,
                value,
                "",
                "measured",
                about[each.cell].seed,
                step,
            )
            for each in self.rows
            for step, value in each.by_step().items()
        )

    def content(self) -> dict[str, Any]:
        content = {key: value for key, value in super().content().items() if key not in OF_TABLES}
        return {**content, OWN_DIGEST: _digest(content)}

    def impossible(self) -> str | None:
        for key, name in (("name", self.name), ("size", self.size)):
            if not _NAME.fullmatch(name):
                return f"has {key}={printable(name, 80)}, which is not a name"
        return None


def _digest(content: Mapping[str, Any]) -> str:
    """sha256 of the values of `sweep.json`, its digest aside, whatever the order and indentation."""
    plain = restored({key: value for key, value in content.items() if key != OWN_DIGEST})
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def save_sweep_record(output: Path, record: SweepRecord) -> list[Path]:
    """Writes the files of `record` to the folder `output`, which is created if necessary."""
    output.mkdir(parents=True, exist_ok=True)
    values, rows = values_text(record.values), rows_text(record.rows)
    whole = replace(record, values_sha256=_sha256(values), rows_sha256=_sha256(rows) if rows else "")
    tables = {output / VALUES: values} | ({output / ROWS: rows} if rows else {})
    for file, text in tables.items():
        write_atomically(file, compressed(text))
    write_atomically(output / FILE, whole.to_json())
    for file in (output / VALUES.removesuffix(ENDING), *(() if rows else (output / ROWS,))):
        file.unlink(missing_ok=True)  # of an earlier record
    return [*tables, output / FILE]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_sweep_record(folder: str | Path) -> SweepRecord:
    """Reads the record in `folder` back.

    Raises UnusableFileError if it is damaged: not of this form, or with figures other than those that were
    written.
    """
    folder = Path(folder)
    text = read_text(folder / FILE, remedy=REMEDY, inside=folder)
    record = SweepRecord.from_json(text, folder / FILE)
    content = parse_json(text.encode(), folder / FILE, remedy=REMEDY)
    if content.get(OWN_DIGEST) != _digest(content):
        raise UnusableFileError(folder / FILE, f"differs from its own digest, {OWN_DIGEST}", REMEDY)
    path, values = _table(folder, VALUES, record.values_sha256)
    tasks = {cell.label: cell.task for cell in record.cells if cell.done}
    record = replace(record, values=tuple(_parsed(values, tasks, path)))
    if not record.rows_sha256:
        return record
    path, rows = _table(folder, ROWS, record.rows_sha256, MOST_ROWS)
    return replace(record, rows=read_rows(rows, list(tasks), path, REMEDY))


def _table(folder: Path, name: str, digest: str, most: int = MOST_TEXT) -> tuple[Path, str]:
    """The text of a compressed table, or of the one that an earlier record has in its place, and its file."""
    path, plain = folder / name, folder / name.removesuffix(ENDING)
    if os.path.lexists(path) or not os.path.lexists(plain):
        text = read_compressed(path, remedy=REMEDY, inside=folder, most=most)
    else:
        path, text = plain, read_text(plain, remedy=REMEDY, inside=folder, most=most)
    if _sha256(text) != digest:
        raise UnusableFileError(path, f"differs from its digest in {FILE}", REMEDY)
    return path, text


def find_sweep_records(root: str | Path) -> list[Path]:
    """The folders at or below `root` that have the record of a sweep, in order; hidden ones are skipped."""
    return sorted(place for place in folders_in(Path(root)) if os.path.lexists(place / FILE))


def check_off_axes(record: SweepRecord) -> None:
    """Raises ValueError in one line if the cells differ in other settings than the axes and the seed."""
    keys = sorted({key for cell in record.cells for key in cell.off_axes})
    if keys:
        values = {
            str(cell.off_axes[keys[0]]): cell.label for cell in record.cells if keys[0] in cell.off_axes
        }
        shown = "; ".join(f"{value} in {label}" for value, label in list(values.items())[:3])
        raise ValueError(
            f"the cells of {record.name} differ in {', '.join(keys)}, which is not an axis "
            f"({keys[0]}: {shown}); {REMEDY}"
        )


def values_text(values: Iterable[Value]) -> str:
    """The text in `VALUES`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in values:
        line = line_of(each._replace(value=float(each.value)))
        writer.writerow(["" if item is None else item for item in line])
    return buffer.getvalue()


def line_of(value: Value) -> list[Any]:
    """A figure as a row, in the order of `COLUMNS`."""
    unit = METRICS[value.metric].unit if value.metric in METRICS else ""
    return [value.run, value.metric, value.value, unit, value.case, value.kind, value.seed, value.step]


def _parsed(text: str, tasks: Mapping[str, str], path: Path) -> Iterable[Value]:
    """The lines of `VALUES`; `tasks` by the labels of the cells that may have some."""
    try:
        rows: Sequence[Sequence[str]] = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise UnusableFileError(path, f"is not a table ({error})", REMEDY) from None
    if not rows or tuple(rows[0]) != COLUMNS:
        raise UnusableFileError(path, f"does not begin with the columns {','.join(COLUMNS)}", REMEDY)
    for number, row in enumerate(rows[1:], start=2):
        try:
            cell, metric, value, _, case, kind, seed, step = row
            if kind not in get_args(Kind) or cell not in tasks or not metric:
                raise ValueError("no such cell, metric or kind")
            whole = (int(seed) if seed else None, int(step) if step else None)
            yield Value(cell, tasks[cell], metric, float(value), case, kind, *whole)  # type: ignore[arg-type]
        except ValueError as error:
            raise UnusableFileError(path, f"line {number} is not a figure ({error})", REMEDY) from None
