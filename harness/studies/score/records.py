"""Reads the benchmarks' files as published by their authors, and converts them to the form of the hub's
records.

lm-eval's tasks are written for the hub's records: with records of the same form their prompts, choices and
metrics apply unchanged.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gradwire.harness.data.formats import CORRUPT, open_text
from gradwire.harness.data.mmlu import read_questions
from gradwire.harness.data.records import UnreadableFileError
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import parse_json

Record = dict[str, Any]

LETTERS = "ABCDE"

REMEDY = "docs/scoring.md shows the files that are read"

_LINES_EACH = 6
_SENTENCE_END = re.compile(r"[.!?][\"')]*(?:\s+|$)")


def arc(path: Path) -> Iterator[Record]:
    """AI2's ARC: one question per line, including its choices.

    In some copies the choices are numbered but answers are letters: the letter is then the position of the
    choice.
    """
    for number, found in _json_lines(path):
        with _Shape(path, number):
            question = found["question"]
            labels = [str(choice["label"]) for choice in question["choices"]]
            answer = str(found["answerKey"])
            yield {
                "id": str(found["id"]),
                "question": question["stem"],
                "choices": {"text": [choice["text"] for choice in question["choices"]], "label": labels},
                "answerKey": answer if answer in labels else labels[LETTERS.index(answer)],
            }


def hellaswag(path: Path) -> Iterator[Record]:
    """HellaSwag's own lines of JSON, or the text form with six lines for each document.

    The text form has the context in one piece; in the hub's records the unfinished last sentence is separate,
    and the stock prompt capitalizes it. The record made here is split in the same way.
    """
    if ".jsonl" in path.suffixes:
        names = ("activity_label", "ctx_a", "ctx_b", "endings")
        for number, found in _json_lines(path):
            with _Shape(path, number):
                yield {name: found[name] for name in names} | {"label": str(found["label"])}
        return
    lines = _text(path).removesuffix("\n").split("\n")
    if len(lines) % _LINES_EACH:
        raise UnusableFileError(path, f"has {len(lines)} lines, no multiple of {_LINES_EACH}", REMEDY)
    for start in range(0, len(lines), _LINES_EACH):
        context, label, *endings = lines[start : start + _LINES_EACH]
        activity, colon, story = context.partition(": ")
        if not colon or label not in ("0", "1", "2", "3"):
            problem = f"line {start + 1} is no `<activity>: <context>` above the number of an ending"
            raise UnusableFileError(path, problem, REMEDY)
        ends = [match.end() for match in _SENTENCE_END.finditer(story)]
        cut = ends[-1] if ends else 0
        yield {
            "activity_label": activity,
            "ctx_a": story[:cut].rstrip(),
            "ctx_b": story[cut:],
            "endings": endings,
            "label": label,
        }


def openbookqa(path: Path) -> Iterator[Record]:
    """AI2's OpenBookQA: its table, or lines of JSON with `query`, `choices` and `gold`."""
    if path.suffix == ".jsonl":
        for number, found in _json_lines(path):
            with _Shape(path, number):
                yield _open_book(number, found["query"], list(found["choices"]), int(found["gold"]))
        return
    rows = csv.DictReader(io.StringIO(_text(path)), delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(rows, start=2):
        with _Shape(path, number):
            choices = [part.strip() for part in re.split(r"\(([A-D])\)\s", row["Choices"])[2::2]]
            answer = LETTERS.index(row["Answer Key"].strip())
            yield _open_book(row["ID"], row["Question Stem"], choices, answer)


def _open_book(name: object, question: str, choices: Sequence[str], answer: int) -> Record:
    labels = list(LETTERS[: len(choices)])
    return {
        "id": str(name),
        "question_stem": question,
        "choices": {"text": list(choices), "label": labels},
        "answerKey": labels[answer],
    }


def piqa(path: Path, labels: Path) -> Iterator[Record]:
    """PIQA: one question per line, and the indices of the right solutions in a separate file."""
    answers = _text(labels).split()
    for (number, found), answer in zip_longest(_json_lines(path), answers, fillvalue=(0, None)):
        if found is None or not isinstance(answer, str):
            raise UnusableFileError(labels, f"has another number of lines than {path.name}", REMEDY)
        with _Shape(path, number):
            yield {name: found[name] for name in ("goal", "sol1", "sol2")} | {"label": int(answer)}


def winogrande(path: Path) -> Iterator[Record]:
    """WinoGrande 1.1: one sentence with a blank per line."""
    for number, found in _json_lines(path):
        with _Shape(path, number):
            sentence, answer = found["sentence"], str(found["answer"])
            if "_" not in sentence or answer not in ("1", "2"):
                raise ValueError("no blank `_`, or an answer that is not 1 or 2")
            yield {name: found[name] for name in ("sentence", "option1", "option2")} | {"answer": answer}


def mmlu(path: Path) -> Iterator[Record]:
    """MMLU's questions of one subject."""
    try:
        for found in read_questions(path):
            yield {"question": found.question, "choices": list(found.choices), "answer": found.answer}
    except UnreadableFileError as error:
        raise UnusableFileError(path, str(error), REMEDY) from None


class _Shape:
    """Reports the line whose record has an unexpected form."""

    def __init__(self, path: Path, number: int) -> None:
        self._path, self._number = path, number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | IndexError | AttributeError):
            problem = f"line {self._number} is not a record of this benchmark ({error!r})"
            raise UnusableFileError(self._path, problem, REMEDY) from None


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield number, parse_json(line.encode(), path, remedy=REMEDY, where=f"line {number} ")


def _text(path: Path) -> str:
    try:
        with open_text(path) as handle:
            return handle.read()
    except UnusableFileError as error:
        raise UnusableFileError(path, error.problem, REMEDY) from None
    except (UnicodeDecodeError, *CORRUPT) as error:
        raise UnusableFileError(path, f"cannot be read ({error})", REMEDY) from None
