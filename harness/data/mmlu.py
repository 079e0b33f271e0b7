"""MMLU (Hendrycks et al. 2021): its questions, as files of the original archive or as records of the hub.

The archive has a folder for each split with a csv file for each subject, without a header: question,
choices, letter of the answer. On the hub (cais/mmlu) a record has `question`, `choices`, `answer` (an index)
and `subject`. Fine-tuning takes `auxiliary_train`, 99,842 questions of other benchmarks, which is MMLU's own
training split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.data.examples import LETTERS, Question
from gradwire.harness.data.formats import format_of, read_records, read_rows
from gradwire.harness.data.records import UnreadableFileError, encodable
from gradwire.harness.data.text import files_below

FIELDS = ("question", "choices", "answer")
CALLED: Mapping[str, str] = {
    "auxiliary_train": "auxiliary_train",
    "dev": "dev",
    "validation": "validation",
    "val": "validation",
    "test": "test",
}
"""For each split, the names of its folders and files, and its name on the hub."""


def split_files(path: Path, split: str) -> list[Path]:
    """The files of `split` below the folder `path`, sorted; empty if there is none.

    A file belongs to the split named by its folder or else by its own name: val/anatomy_val.csv and
    validation-00000-of-00001.parquet are both of `validation`. Raises OSError.
    """
    called = {**CALLED, split: split}
    return [
        file
        for file in files_below(path)
        if format_of(file) and _split_of(file.relative_to(path), called) == split
    ]


def _split_of(file: Path, called: Mapping[str, str]) -> str | None:
    *folders, name = (part.lower() for part in file.parts)
    for folder in reversed(folders):
        if folder in called:
            return called[folder]
    stem = name.partition(".")[0]
    named = (word for word in called if re.search(rf"(?<![a-z]){word}(?![a-z])", stem))
    return next((called[word] for word in named), None)


def read_questions(file: Path) -> Iterator[Question]:
    """The questions in a csv file or a file of records. Raises UnreadableFileError."""
    if format_of(file) in (".csv", ".tsv"):
        yield from _of_rows(file)
    else:
        yield from map(question_of, read_records(file, FIELDS))


def _of_rows(file: Path) -> Iterator[Question]:
    subject = re.sub(r"_(dev|val|test)$", "", file.name.split(".")[0])
    for number, row in enumerate(read_rows(file), start=1):
        if not row or (number == 1 and row[0].strip().lower() == "question"):
            continue
        letter = row[-1].strip().upper()
        choices = row[1:-1]
        if len(choices) < 2 or letter not in LETTERS[: len(choices)] or len(letter) != 1:
            raise UnreadableFileError(
                f"line {number} is not a question (wanted: question, choices, letter of the answer); "
                f"repair it"
            )
        yield _question(row[0], choices, LETTERS.index(letter), subject)


def question_of(record: Mapping[str, Any]) -> Question:
    """The question in a record of the hub. Raises UnreadableFileError for a record of another form."""
    text, choices, answer = (record.get(name) for name in FIELDS)
    if isinstance(answer, str) and len(answer) == 1 and answer in LETTERS:
        answer = LETTERS.index(answer)
    if not isinstance(text, str) or not isinstance(choices, list | tuple) or not isinstance(answer, int):
        raise UnreadableFileError(
            f"a record is not a question (wanted: {', '.join(FIELDS)}; found: "
            f"{', '.join(map(str, record))[:120]}); choose other data"
        )
    if not 2 <= len(choices) <= len(LETTERS) or not 0 <= answer < len(choices):
        raise UnreadableFileError(
            f"a question has {len(choices)} choices and the answer {answer}; leave it out"
        )
    return _question(text, [str(choice) for choice in choices], answer, str(record.get("subject") or ""))


def _question(text: str, choices: list[str], answer: int, subject: str) -> Question:
    return Question(encodable(text), tuple(map(encodable, choices)), answer, subject)
