"""Small benchmarks of our own, as their authors' files and as the hub's records, each written by hand."""

from __future__ import annotations

import bz2
import csv
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.studies.score.benchmarks import SUBJECTS

Records = list[dict[str, Any]]

WORDS = (
    *("the", "a", "red", "small", "old", "engine", "garden", "river", "letter", "window", "cook", "paints"),
    *("opens", "carries", "under", "beside", "quickly", "before", "after", "seven", "stones", "green"),
    *("paper", "boat", "music", "winter", "teacher", "lamp", "wheel", "sings", "grows"),
)

DOCUMENTS = 12
"""The number of documents of each benchmark."""

HUB = {
    "arc_easy": ("arc/arc_easy.yaml", "test"),
    "arc_challenge": ("arc/arc_challenge.yaml", "test"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "openbookqa": ("openbookqa/openbookqa.yaml", "test"),
    "piqa": ("piqa/piqa.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
}
"""lm-eval's own file of each benchmark but MMLU, and the split it scores."""


class Author:
    """Writes nonsense, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def words(self, fewest: int, most: int) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(fewest, most)))

    def sentence(self) -> str:
        return f"{self.words(3, 9).capitalize()}."

    def choice(self, most: int) -> int:
        return self._random.randrange(most)

    def endings(self, count: int) -> list[str]:
        """Endings of different lengths."""
        return [f"{self.words(1, 12)}." for _ in range(count)]


def hub_records(name: str, count: int) -> Records:
    """`count` documents of a benchmark, as the hub has them; of MMLU, of one subject."""
    author = Author(len(name))
    return [_MAKERS[name.removesuffix("_easy").removesuffix("_challenge")](author, n) for n in range(count)]


def _arc(author: Author, number: int) -> dict[str, Any]:
    labels = ["1", "2", "3", "4"] if number % 3 == 1 else ["A", "B", "C", "D", "E"][: 3 + number % 3]
    choices = {"text": author.endings(len(labels)), "label": labels}
    answer = labels[author.choice(len(labels))]
    question = author.sentence()
    return {"id": f"q{number}", "question": question, "choices": choices, "answerKey": answer}


def _hellaswag(author: Author, number: int) -> dict[str, Any]:
    return {
        "activity_label": author.words(1, 3).capitalize(),
        "ctx_a": " ".join(author.sentence() for _ in range(2)),
        "ctx_b": author.words(1, 3) if number % 2 else "",
        "endings": author.endings(4),
        "label": str(author.choice(4)),
    }


def _openbookqa(author: Author, number: int) -> dict[str, Any]:
    choices = {"text": author.endings(4), "label": ["A", "B", "C", "D"]}
    answer = "ABCD"[author.choice(4)]
    return {"id": f"7-{number}", "question_stem": author.words(4, 9), "choices": choices, "answerKey": answer}


def _piqa(author: Author, number: int) -> dict[str, Any]:
    one, other = author.endings(2)
    return {"goal": author.words(2, 8), "sol1": one, "sol2": other, "label": author.choice(2)}


def _winogrande(author: Author, number: int) -> dict[str, Any]:
    sentence = f"{author.words(4, 8).capitalize()} because _ {author.words(2, 6)}."
    options = {"option1": author.words(1, 1), "option2": author.words(1, 2)}
    return {"sentence": sentence, **options, "answer": "12"[author.choice(2)]}


def _mmlu(author: Author, number: int) -> dict[str, Any]:
    question = f'{author.sentence()} It says "{author.words(1, 3)}", doesn\'t it?'
    return {"question": question, "choices": author.endings(4), "answer": author.choice(4)}


_MAKERS = {
    "arc": _arc,
    "hellaswag": _hellaswag,
    "openbookqa": _openbookqa,
    "piqa": _piqa,
    "winogrande": _winogrande,
    "mmlu": _mmlu,
}


def write_files(folder: Path, records: Mapping[str, Records]) -> None:
    """Writes each benchmark's records as its authors publish them; MMLU's, one after another, as subjects."""
    for name, found in records.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        _WRITERS[name.removesuffix("_easy").removesuffix("_challenge")](folder / name, found)


def _lines(path: Path, records: Iterable[object]) -> None:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def _write_arc(folder: Path, records: Records) -> None:
    lines = []
    for record in records:
        texts, labels = record["choices"]["text"], record["choices"]["label"]
        choices = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        answer = "ABCDE"[labels.index(record["answerKey"])]  # a letter, also where the choices have numbers
        question = {"stem": record["question"], "choices": choices}
        lines.append({"id": record["id"], "question": question, "answerKey": answer})
    _lines(folder / "test.jsonl", lines)


def _write_hellaswag(folder: Path, records: Records) -> None:
    lines = []
    for record in records:
        context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b']}".rstrip()
        lines += [context, record["label"], *record["endings"]]
    text = "".join(f"{line}\n" for line in lines)
    (folder / "hellaswag_val_full.txt.bz2").write_bytes(bz2.compress(text.encode()))


def _write_openbookqa(folder: Path, records: Records) -> None:
    lines = ["ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key"]
    for record in records:
        choices = " ".join(
            f"({label}) {text}"
            for label, text in zip(record["choices"]["label"], record["choices"]["text"], strict=True)
        )
        stem = record["question_stem"]
        lines.append(f"{record['id']}\t{stem}\t{choices}\t{stem} {choices}\t{record['answerKey']}")
    (folder / "test.tsv").write_text("".join(f"{line}\n" for line in lines))


def _write_piqa(folder: Path, records: Records) -> None:
    _lines(folder / "valid.jsonl", [{k: v for k, v in each.items() if k != "label"} for each in records])
    _lines(folder / "valid-labels.lst", [each["label"] for each in records])


def _write_winogrande(folder: Path, records: Records) -> None:
    _lines(folder / "dev.jsonl", [{"qID": f"w{n}", **each} for n, each in enumerate(records)])


def _write_mmlu(folder: Path, records: Records) -> None:
    for place, (subject, own) in enumerate(by_subject(records).items()):
        shown = [records[place % len(records)]]
        for split, found in (("dev", shown), ("test", own)):
            (folder / split).mkdir(exist_ok=True)
            with (folder / split / f"{subject}_{split}.csv").open("w", newline="") as file:
                csv.writer(file).writerows(
                    [each["question"], *each["choices"], "ABCD"[each["answer"]]] for each in found
                )


_WRITERS = {
    "arc": _write_arc,
    "hellaswag": _write_hellaswag,
    "openbookqa": _write_openbookqa,
    "piqa": _write_piqa,
    "winogrande": _write_winogrande,
    "mmlu": _write_mmlu,
}


def by_subject(records: Records) -> dict[str, Records]:
    """MMLU's subjects, with two records each, one of them shared with the next subject."""
    count = len(records)
    return {
        subject: [records[place % count], records[(place + 1) % count]]
        for place, subject in enumerate(SUBJECTS)
    }
