"""Comparisons of a study's records: tables, CSV and JSON for several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG
from gradwire.harness.record.figures import StudyRecord
from gradwire.harness.record.seal import REMEDY
from gradwire.harness.report.configs import SEED, Settings, changes_result, flatten, labels
from gradwire.harness.report.frame import Value, spreads, table, values_in
from gradwire.harness.report.tables import Column, Line, Page, Table, figures_table, finished
from gradwire.harness.timing.measure.metric import Spread

SPREADS = "Figures: median over seeds (lowest–highest)."


class Entry(NamedTuple):
    """A finished run in a comparison."""

    folder: Path
    record: Any
    """An instance of the study's record class."""
    config: Mapping[str, Any]

    @property
    def settings(self) -> Settings:
        """The configuration by dotted key."""
        return flatten(self.config)


@dataclass(frozen=True)
class Compared:
    """The tables of several runs, the rows of table.csv, those of table.json if they hold more, and plots."""

    tables: Sequence[Table]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    content: Sequence[Mapping[str, Any]] | None = None
    draw: Callable[[Path], object] | None = None


def compare_records(
    record: type[StudyRecord], comparing: Any, folders: Sequence[Path], output: Path, axes: Sequence[str]
) -> Page:
    """Reads the records in `folders`, and writes the result of `comparing.compared` for them to `output`."""
    done, left_out = finished(folders)
    entries = list[Entry]()
    for folder in done:
        try:
            content = record.read(folder / record.file)
            config = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)
        except UnusableFileError as error:
            left_out.append(f"{folder.name}: left out, {error}")
        else:
            entries.append(Entry(folder, content, config))
    if not entries:
        raise ValueError(f"nothing to compare: {'; '.join(left_out)}")
    found: Compared = comparing.compared(entries, axes)
    page = Page(list(found.tables), [*found.notes, *left_out])
    rows = found.rows if found.content is None else found.content
    page.write(output, found.rows, {"rows": rows, "left_out": left_out})
    if found.draw is not None:
        found.draw(output)
    return page


Item = TypeVar("Item")


def listed(title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], str]]) -> Table:
    """A table with a row for each item; `columns` maps each heading to the text of its cells."""
    return Table(title, list(columns), [[cell(item) for cell in columns.values()] for item in items])


def titled_tables(
    lines: Iterable[tuple[str, Line]],
    names: Callable[[str], Sequence[str]] | Sequence[str],
    columns: Callable[[str], Iterable[Column | str]] | Iterable[Column | str],
) -> list[Table]:
    """A table for each title among `lines`, in order; names and columns may depend on the title."""
    by_title: dict[str, list[Line]] = {}
    for title, line in lines:
        by_title.setdefault(title, []).append(line)
    return [
        figures_table(
            title,
            names(title) if callable(names) else names,
            own,
            columns(title) if callable(columns) else columns,
        )
        for title, own in by_title.items()
    ]


def figure_columns(entries: Sequence[Entry]) -> list[Column]:
    """The columns that the fields of the records ask for, by the names of these."""
    record: type[StudyRecord] = type(entries[0].record)
    return [Column(metric, field) for field, metric in record.columns().items()]


def over_seeds(records: Sequence[Any], fields: Iterable[str]) -> dict[str, Spread | None]:
    """Spreads of the fields of records that differ only in the seed; None if one of them has no value."""
    values = {key: [getattr(record, key) for record in records] for key in fields}
    return {key: None if None in found else Spread.of(found) for key, found in values.items()}


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A line for each configuration and case with all metrics of the records, as spreads over seeds."""
    settings = [
        {key: value for key, value in entry.settings.items() if changes_result(key) and key != SEED}
        for entry in entries
    ]
    names = labels(settings, axes) if len(entries) > 1 else [entries[0].folder.name]
    values = [
        Value(name, *value[1:])
        for name, entry in zip(names, entries, strict=True)
        for value in values_in(entry.folder)
    ]
    found = spreads(table(values), "run", "case", "metric")
    figures: dict[tuple[str, str], dict[str, Spread]] = {}
    for value in values:
        line = figures.setdefault((value.run, value.case), {})
        line[value.metric] = found[value.run, value.case, value.metric]
    heads = ["run", "case"] if any(case for _, case in figures) else ["run"]
    metrics = list(dict.fromkeys(value.metric for value in values))
    lines = [(list(key)[: len(heads)], own) for key, own in figures.items()]
    rows = [
        dict(zip(heads, name, strict=True))
        | {
            f"{key}_{part}": getattr(each, part)
            for key, each in own.items()
            for part in Spread.__match_args__
        }
        for name, own in lines
    ]
    title = str(entries[0].config["task"]["name"])
    shown = figures_table(title, heads, lines, metrics)
    return Compared([replace(shown, names=len(heads))], rows, [SPREADS])
