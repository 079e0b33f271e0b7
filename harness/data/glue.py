"""GLUE (Wang et al. 2019): labelled sentences, as the benchmark's own tsv files or as records of the hub.

`dataset.configuration` names the task as the hub (nyu-mll/glue) does: sst2, rte, cola. The benchmark's
archive has a folder for each, with train.tsv and dev.tsv; only these are read. (Its test.tsv has no labels.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.data.examples import LabelledText
from gradwire.harness.data.formats import format_of, read_records, read_rows
from gradwire.harness.data.records import UnreadableFileError, encodable
from gradwire.harness.data.text import files_below

FOLDERS: Mapping[str, tuple[str, ...]] = {"train": ("train",), "validation": ("dev", "validation")}
"""The names of files for each of the hub's splits."""


@dataclass(frozen=True)
class GlueTask:
    """One task: its folder in the archive, the fields of its sentences, its labels by index, its metric."""

    folder: str
    fields: tuple[str, ...]
    labels: tuple[str, ...]
    metric: str
    columns: tuple[str, ...] | None = None
    """The columns of its tsv files if these have no header."""


TASKS: Mapping[str, GlueTask] = {
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), "accuracy"),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy"),
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        "matthews",
        columns=("source", "label", "mark", "sentence"),
    ),
}
"""The tasks by the names that the hub gives them."""


def split_files(path: Path, task: GlueTask, name: str, split: str) -> list[Path]:
    """The files of `split` of the task `name`, below a folder of all tasks or in the task's own.

    Raises OSError.
    """
    own = [path / folder for folder in (task.folder, name) if (path / folder).is_dir()]
    folder = own[0] if own else path
    words = "|".join(FOLDERS.get(split, (split,)))
    wanted = re.compile(rf"({words})(\.|-\d+-of-\d+)")
    own_files = [file for file in files_below(folder, path) if file.parent == folder]
    return [file for file in own_files if format_of(file) and wanted.match(file.name.lower())]


def read_texts(file: Path, task: GlueTask) -> Iterator[LabelledText]:
    """The examples of a tsv file or a file of records. Raises UnreadableFileError."""
    if format_of(file) in (".csv", ".tsv"):
        yield from (text_of(record, task) for record in _of_rows(file, task))
    else:
        wanted = (*task.fields, "label")
        yield from (text_of(record, task) for record in read_records(file, wanted))


def _of_rows(file: Path, task: GlueTask) -> Iterator[Mapping[str, str]]:
    rows = read_rows(file)
    columns = task.columns or tuple(next(rows, []))
    wanted = {*task.fields, "label"}
    if not wanted <= {*columns}:
        raise UnreadableFileError(
            f"has the columns {', '.join(columns)[:120]}, not {', '.join(sorted(wanted))}; use the task's "
            "own file"
        )
    for number, row in enumerate(rows, start=1 if task.columns else 2):
        if len(row) != len(columns):
            raise UnreadableFileError(f"line {number} has {len(row)} columns, not {len(columns)}; repair it")
        yield dict(zip(columns, row, strict=True))


def text_of(record: Mapping[str, Any], task: GlueTask) -> LabelledText:
    """The example in a record of the hub or of a file. Raises UnreadableFileError for a record of another
    form."""
    sentences = [record.get(name) for name in task.fields]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise UnreadableFileError(
            f"a record lacks {' or '.join(task.fields)} (found: {', '.join(map(str, record))[:120]}); use "
            "other data"
        )
    first, *rest = (encodable(str(sentence)).strip() for sentence in sentences)
    return LabelledText(first, rest[0] if rest else None, _label(record.get("label"), task))


def _label(value: Any, task: GlueTask) -> int:
    if value in task.labels:
        return task.labels.index(value)
    index = int(value) if isinstance(value, int) or str(value).isdecimal() else -1
    if not 0 <= index < len(task.labels):
        allowed = f"0 to {len(task.labels) - 1}, {', '.join(task.labels)}"
        raise UnreadableFileError(
            f"a label is {value!r}, not one of {allowed} (test splits are published without); use another "
            "split"
        )
    return index
