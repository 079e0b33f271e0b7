"""Sources of examples: MMLU's and GLUE's files, the same data on the hub, or the embedded text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from gradwire.harness.data import glue, mmlu
from gradwire.harness.data.corpus import Passes
from gradwire.harness.data.examples import Example, Examples, LabelledText
from gradwire.harness.data.formats import formats_in_words
from gradwire.harness.data.hub import HubCorpus
from gradwire.harness.data.records import located
from gradwire.harness.data.text import describe_files, searching


@dataclass(frozen=True)
class ExampleShape(Generic[Example]):
    """The conversion of a benchmark's files and records to examples."""

    name: str
    split_files: Callable[[Path, str], list[Path]]
    read: Callable[[Path], Iterator[Example]]
    of_record: Callable[[Mapping[str, Any]], Example]
    metric: str
    labels: tuple[str, ...] = ()
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """The split that is trained on if files lack the hub's training split."""

    def examples(
        self, name: str, train: Passes[Example], held_out: Passes[Example], split: str
    ) -> Examples[Example]:
        """The examples of both splits; `split` describes them in the record."""
        return Examples(name, train, held_out, split, self.metric, self.labels)


MMLU = ExampleShape(
    name="MMLU",
    split_files=mmlu.split_files,
    read=mmlu.read_questions,
    of_record=mmlu.question_of,
    metric="accuracy",
    stand_ins={"auxiliary_train": "test"},
)


def glue_shape(name: str) -> ExampleShape[LabelledText]:
    """The shape of GLUE's task `name`, an entry of `glue.TASKS`."""
    task = glue.TASKS[name]
    return ExampleShape(
        name=f"GLUE {task.folder}",
        split_files=lambda path, split: glue.split_files(path, task, name, split),
        read=lambda file: glue.read_texts(file, task),
        of_record=lambda record: glue.text_of(record, task),
        metric=task.metric,
        labels=task.labels,
    )


@dataclass(frozen=True)
class FileExamples(Generic[Example]):
    """Examples read from a folder in the form of a benchmark's own files."""

    path: Path
    shape: ExampleShape[Example]
    train_split: str
    held_out_split: str

    def fingerprint(self) -> str:
        (_, train), held_out = self._train(), self._files(self.held_out_split)
        settings = (self.shape.name, self.train_split, self.held_out_split)
        return hashlib.sha256(repr((describe_files(train + held_out), settings)).encode()).hexdigest()

    def load(self) -> Examples[Example]:
        (split, train), held_out = self._train(), self._files(self.held_out_split)
        return self.shape.examples(
            f"{self.shape.name} of {self.path.resolve().name}",
            Passes(lambda: self._read(train)),
            Passes(lambda: self._read(held_out)),
            f"trained on {split}, evaluated on {self.held_out_split}",
        )

    def _train(self) -> tuple[str, list[Path]]:
        """The split that is trained on, and its files."""
        stand_in = self.shape.stand_ins.get(self.train_split)
        if stand_in is not None and not self._found(self.train_split) and self._found(stand_in):
            return stand_in, self._files(stand_in)
        return self.train_split, self._files(self.train_split)

    def _files(self, split: str) -> list[Path]:
        found = self._found(split)
        if not found:
            raise ValueError(
                f"dataset.path={self.path}: has no files of {self.shape.name}'s split {split} "
                f"({formats_in_words()}); give the folder that holds the splits, or set dataset.train_split= "
                "and dataset.held_out_split="
            )
        return found

    def _found(self, split: str) -> list[Path]:
        if not self.path.is_dir():
            raise ValueError(f"dataset.path={self.path}: no such folder; correct the path")
        with searching(f"dataset.path={self.path}"):
            return self.shape.split_files(self.path, split)

    def _read(self, files: list[Path]) -> Iterator[Example]:
        for file in files:
            with located(f"dataset.path={self.path}: {os.path.relpath(file, self.path)}"):
                yield from self.shape.read(file)


@dataclass(frozen=True)
class HubExamples(Generic[Example]):
    """Examples read from a repository on the hub in the form of a benchmark."""

    repository: HubCorpus
    shape: ExampleShape[Example]

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.shape.name} {self.repository.fingerprint()}".encode()).hexdigest()

    def load(self) -> Examples[Example]:
        train, held_out = self.repository.train_split, self.repository.held_out_split
        assert held_out is not None, "resolve_dataset comes first"
        name, records = self.repository.records()
        return self.shape.examples(
            name,
            Passes(lambda: self._read(records, train)),
            Passes(lambda: self._read(records, held_out)),
            f"trained on {train}, evaluated on {held_out}",
        )

    def _read(self, records: Callable[[str], Iterator[Mapping[str, Any]]], split: str) -> Iterator[Example]:
        with located(f"{self.repository.where}, split {split}"):
            yield from map(self.shape.of_record, records(split))
