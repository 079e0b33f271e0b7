"""The choice of tasks for a checkpoint, and checks that their data is available."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gradwire.codecs.wording import did_you_mean
from gradwire.harness.data.glue import TASKS as GLUE
from gradwire.harness.data.hub import repository_available
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.record.identity import data_fingerprint
from gradwire.harness.studies.score.benchmarks import BENCHMARKS, Benchmark
from gradwire.harness.studies.score.checkpoint import ABOUT, Checkpoint
from gradwire.harness.studies.score.held_out import HELD_OUT, HeldOut, data_digest
from gradwire.harness.studies.score.study import ScoreConfig, ScoreTask

NO_DATA = "use score.data=<folder with its files> (docs/scoring.md)"

LABELS: Mapping[str, str] = {
    **{name: each.label for name, each in BENCHMARKS.items()},
    **{name: each.label for name, each in HELD_OUT.items()},
}
"""The tasks' names in tables, in column order."""


@dataclass(frozen=True)
class Chosen:
    """The tasks for one checkpoint, in the table's order, and the source of their data."""

    data: Path | None  # None: the hub, or what the run held out
    benchmarks: list[Benchmark] = field(default_factory=list)
    held_out: list[tuple[HeldOut, DatasetConfig]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [*(each.name for each in self.benchmarks), *(each.name for each, _ in self.held_out)]

    def contents(self) -> dict[str, str]:
        """12 hexadecimal digits that identify each task's data, by contents or, on the hub, by name."""
        found = {each.name: _contents(each, self.data) for each in self.benchmarks}
        for task, dataset in self.held_out:
            settings = {key: value for key, value in asdict(dataset).items() if key != "path"}
            found[task.name] = f"{data_digest(dataset)} {settings}"
        return {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in found.items()}


def choose(config: ScoreTask, checkpoint: Checkpoint) -> Chosen:
    """Chooses the tasks. Raises ValueError in one line for a task that is unknown or does not fit the
    checkpoint, and for unavailable data."""
    able = _able(checkpoint)
    for task in config.tasks or ():
        if task not in LABELS:
            known = ", ".join(LABELS)
            raise ValueError(f"tasks=[{task}]: no such task; choose from {known}{did_you_mean(task, LABELS)}")
        if task not in able:
            fit = f"use {' or '.join(able)}" if able else "it was trained on no task that is known"
            raise ValueError(f"tasks=[{task}]: checkpoint={checkpoint.asked} {ABOUT[checkpoint.kind]}; {fit}")
    if config.tasks is None and len(able) != 1 and checkpoint.kind == "classification":
        raise ValueError(
            f"tasks=null: checkpoint={checkpoint.asked} has a head for a task that is not known; name it by "
            f"tasks=, one of {', '.join(GLUE)}"
        )
    asked = able if config.tasks is None else config.tasks
    data = _folder(config.score)
    benchmarks = [each for name, each in BENCHMARKS.items() if name in asked]
    for each in benchmarks:
        if data is not None:
            each.files(data)
        elif (reason := repository_available(each.hub)) is not None:
            raise ValueError(f"tasks=[{each.name}] ({each.hub}): {reason}; {NO_DATA}")
    held_out = [each for name, each in HELD_OUT.items() if name in asked]
    return Chosen(data, benchmarks, [(each, each.dataset_for(checkpoint, data)) for each in held_out])


def note_on(checkpoint: Checkpoint) -> str | None:
    """The reason why a model that is not causal has no other scores."""
    if checkpoint.kind == "causal":
        return None
    also = {
        "masked": ", so that its masked-LM loss is all there is; GLUE needs a classification head, which "
        "model.objective=classification trains",
        "classification": ", so that the metrics of its own task are all there is",
    }[checkpoint.kind]
    return f"{checkpoint.name} {ABOUT[checkpoint.kind]}{also}."


def _able(checkpoint: Checkpoint) -> Sequence[str]:
    """The tasks that fit the checkpoint; for a classifier from a run, the one that its head was trained
    for.
    """
    if checkpoint.kind == "causal":
        return list(BENCHMARKS)
    fitting = [name for name, each in HELD_OUT.items() if each.kind == checkpoint.kind]
    if checkpoint.kind == "classification" and checkpoint.trained is not None:
        own = (checkpoint.trained.get("dataset") or {}).get("configuration")
        return [name for name in fitting if name == own]
    return fitting


def _folder(score: ScoreConfig) -> Path | None:
    if score.data is None:
        return None
    folder = Path(score.data).expanduser()
    if not folder.is_dir():
        raise ValueError(f"score.data={score.data}: no such folder; {NO_DATA}")
    return folder


def _contents(benchmark: Benchmark, data: Path | None) -> str:
    if data is None:
        return benchmark.hub
    files = [path for splits in benchmark.files(data).values() for found in splits.values() for path in found]
    return "".join(map(data_fingerprint, files))
