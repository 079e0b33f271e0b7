"""The benchmarks that checkpoints are scored on, as defined by lm-eval, and their files.

A new benchmark is an entry of `BENCHMARKS` and, unless an existing one reads its files, a reader in
`records.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from gradwire.harness.data.formats import OPENERS
from gradwire.harness.files.hostile import leads_to_file, root_of
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.studies.score import records
from gradwire.harness.studies.score.records import Record

Files = Mapping[str, Sequence[Path]]
"""A benchmark's files by split, including the scored split."""


@dataclass(frozen=True)
class Split:
    """One split of a benchmark in local files."""

    name: str  # as the hub calls it
    files: tuple[tuple[str, ...], ...]  # for each file that it takes, the names that it may have
    read: Callable[..., Iterator[Record]]  # takes the files in this order


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, consisting of one or several of lm-eval's `tasks`, e.g. one for each subject."""

    name: str  # also lm-eval's name of the task or of the group, and of the folder with local files
    label: str  # in tables, as the papers write it
    stock: str  # the folder with lm-eval's own YAML, below its tasks
    hub: str  # the repository of the hub that lm-eval takes the documents from
    shape: str  # of a local record, in words
    splits: Mapping[str, Sequence[Split]]  # by lm-eval's name of the task; the last split is scored

    def files(self, folder: Path) -> dict[str, dict[str, list[Path]]]:
        """The local files by task and split. Raises ValueError in one line for the first that is missing."""
        return {
            task: {split.name: [self._found(folder, names) for names in split.files] for split in splits}
            for task, splits in self.splits.items()
        }

    def records(self, folder: Path) -> Iterator[tuple[str, dict[str, list[Record]]]]:
        """Yields the name of each task, with its records by split.

        Raises UnusableFileError for files that are missing, empty or of another form.
        """
        for task, files in self.files(folder).items():
            found = {split.name: list(split.read(*files[split.name])) for split in self.splits[task]}
            for split, read in found.items():
                if not read:
                    raise UnusableFileError(files[split][0], "has no records", records.REMEDY)
            yield task, found

    @property
    def scored(self) -> dict[str, str]:
        """The split that is scored, by task."""
        return {task: splits[-1].name for task, splits in self.splits.items()}

    def _found(self, folder: Path, names: Iterable[str]) -> Path:
        known, home = [folder / self.name / name for name in names], root_of(folder)
        for path, suffix in product(known, ("", *OPENERS)):
            compressed = path.with_name(path.name + suffix)
            if leads_to_file(compressed, home, remedy=records.REMEDY):  # folders on the way may be links, too
                return compressed
        missing = " or ".join(f"{self.name}/{path.relative_to(folder / self.name)}" for path in known)
        raise ValueError(f"score.data={folder}: tasks={self.name} needs {missing}, {self.shape}")


def _alone(name: str, label: str, stock: str, hub: str, shape: str, split: Split) -> Benchmark:
    """A benchmark with a single task, which needs only the scored split because no examples are shown
    first.
    """
    return Benchmark(name, label, stock, hub, shape, {name: [split]})


def _subject(name: str) -> Sequence[Split]:
    named = [("dev", "dev"), ("test", "test")]
    return [Split(split, ((f"{folder}/{name}_{folder}.csv",),), records.mmlu) for split, folder in named]


SUBJECTS = (
    *("abstract_algebra", "anatomy", "astronomy", "business_ethics", "clinical_knowledge", "college_biology"),
    *("college_chemistry", "college_computer_science", "college_mathematics", "college_medicine"),
    *("college_physics", "computer_security", "conceptual_physics", "econometrics", "electrical_engineering"),
    *("elementary_mathematics", "formal_logic", "global_facts", "high_school_biology"),
    *("high_school_chemistry", "high_school_computer_science", "high_school_european_history"),
    *("high_school_geography", "high_school_government_and_politics", "high_school_macroeconomics"),
    *("high_school_mathematics", "high_school_microeconomics", "high_school_physics"),
    *("high_school_psychology", "high_school_statistics", "high_school_us_history"),
    *("high_school_world_history", "human_aging", "human_sexuality", "international_law", "jurisprudence"),
    *("logical_fallacies", "machine_learning", "management", "marketing", "medical_genetics"),
    *("miscellaneous", "moral_disputes", "moral_scenarios", "nutrition", "philosophy", "prehistory"),
    *("professional_accounting", "professional_law", "professional_medicine", "professional_psychology"),
    *("public_relations", "security_studies", "sociology", "us_foreign_policy", "virology"),
    "world_religions",
)
"""MMLU's 57 subjects."""

_ARC = 'lines like {"id", "question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}'

BENCHMARKS: Mapping[str, Benchmark] = {
    each.name: each
    for each in (
        _alone(
            *("arc_easy", "ARC_easy", "arc", "allenai/ai2_arc", _ARC),
            Split("test", (("test.jsonl", "ARC-Easy-Test.jsonl"),), records.arc),
        ),
        _alone(
            *("arc_challenge", "ARC_challenge", "arc", "allenai/ai2_arc", _ARC),
            Split("test", (("test.jsonl", "ARC-Challenge-Test.jsonl"),), records.arc),
        ),
        _alone(
            *("hellaswag", "HellaSwag", "hellaswag", "Rowan/hellaswag"),
            "six lines each: activity and context, the right ending's number, four endings",
            Split("validation", (("hellaswag_val_full.txt", "hellaswag_val.jsonl"),), records.hellaswag),
        ),
        _alone(
            *("openbookqa", "OpenBookQA", "openbookqa", "allenai/openbookqa"),
            "a table with the columns ID, Question Stem, Choices, Answer Key",
            Split("test", (("test.tsv", "openbook_qa.jsonl"),), records.openbookqa),
        ),
        _alone(
            *("piqa", "PIQA", "piqa", "baber/piqa"),
            'lines like {"goal", "sol1", "sol2"} and a file with the number of the right one a line',
            Split("validation", (("valid.jsonl",), ("valid-labels.lst",)), records.piqa),
        ),
        _alone(
            *("winogrande", "WinoGrande", "winogrande", "allenai/winogrande"),
            'lines like {"sentence", "option1", "option2", "answer"}',
            Split("validation", (("dev.jsonl",),), records.winogrande),
        ),
        Benchmark(
            *("mmlu", "MMLU", "mmlu/default", "cais/mmlu"),
            "a csv file without a header: question, four choices, the answer's letter",
            {f"mmlu_{subject}": _subject(subject) for subject in SUBJECTS},
        ),
    )
}
"""Benchmarks by name, in the order of EDGC's Table IV, followed by MMLU."""
