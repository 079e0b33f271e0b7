"""Scores of models that assign no likelihood to endings: held-out losses and metrics, as in training.

A masked model gets its masked-LM loss on text, and a model with a classification head the metrics of a GLUE
task. Neither needs lm-eval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from gradwire.harness.data.glue import TASKS as GLUE
from gradwire.harness.data.prepare import data_source, dataset_available, prepare_data
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.models.build import num_segments
from gradwire.harness.models.described import Kind
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.objectives.registry import make_objective
from gradwire.harness.studies.score.checkpoint import Checkpoint
from gradwire.harness.studies.score.study import Scored, ScoredValue, Scoring

LONGEST_ROW = 512
"""Tokens of a row, if no run specifies it and the model's context is long enough."""

SHARES = ("accuracy",)
"""Metrics that are shares of correct rows."""


@dataclass(frozen=True)
class HeldOut:
    """A task on held-out data. `folders` are the folders below `score.data` that may contain it."""

    name: str
    label: str
    kind: Kind
    folders: tuple[str, ...]
    dataset: DatasetConfig
    shape: str

    def dataset_for(self, checkpoint: Checkpoint, data: Path | None) -> DatasetConfig:
        """The data: below the folder `data` if given, else the run's held-out data, else the hub's.

        Raises ValueError in one line if it is unavailable.
        """
        of_run = self._of_run(checkpoint)
        asked = of_run.sequence_length if of_run is not None else None
        length = min(checkpoint.context or LONGEST_ROW, asked or LONGEST_ROW)
        chosen = self._below(data) if data is not None else of_run or self.dataset
        # The training split is not used, so its tokens need not be prepared.
        chosen = replace(chosen, sequence_length=length, max_train_tokens=length)
        if chosen.name == "text" and chosen.path is None:
            raise ValueError(f"tasks=[{self.name}]: needs text; use score.data=<folder with text/>")
        reason = dataset_available(chosen, tokenized_by(checkpoint))
        if reason is not None:
            raise ValueError(f"tasks=[{self.name}]: {reason.partition(';')[0]}; use score.data=<folder>")
        return chosen

    def _of_run(self, checkpoint: Checkpoint) -> DatasetConfig | None:
        """The run's data, if it is of the kind that this task needs; else None."""
        if checkpoint.trained is None:
            return None
        known = {each.name for each in fields(DatasetConfig)}
        given = checkpoint.trained.get("dataset") or {}
        found = DatasetConfig(**{key: value for key, value in given.items() if key in known})
        if self.kind == "classification" and found.configuration != self.name:
            head = found.configuration or f"the sentences of dataset={found.name}"
            raise ValueError(f"tasks=[{self.name}]: the head of checkpoint={checkpoint.asked} is for {head}")
        return found

    def _below(self, data: Path) -> DatasetConfig:
        for folder in self.folders:
            if (data / folder).is_dir():
                return replace(self.dataset, hub=None, path=str(data / folder))
        raise ValueError(
            f"score.data={data}: tasks={self.name} needs {' or '.join(self.folders)}, {self.shape}"
        )


HELD_OUT: Mapping[str, HeldOut] = {
    each.name: each
    for each in (
        HeldOut(
            *("masked_lm", "masked LM", "masked", ("text", "wikitext-2"), DatasetConfig(name="text")),
            "a folder of text",
        ),
        *(
            HeldOut(
                *(name, task.folder, "classification", ("glue",)),
                DatasetConfig(
                    name="glue",
                    hub="nyu-mll/glue",
                    kind="sentences",
                    configuration=name,
                    held_out_split="validation",
                ),
                f"a folder with {task.folder}/train.tsv and {task.folder}/dev.tsv",
            )
            for name, task in GLUE.items()
        ),
    )
}
"""The tasks for masked models and classifiers, by name."""


def tokenized_by(checkpoint: Checkpoint) -> ModelConfig:
    """Settings of a model that specify the tokenizer, for preparing data."""
    path = checkpoint.place if checkpoint.folder else None
    return ModelConfig(weights="pretrained", pretrained=checkpoint.place, path=path)


def data_digest(dataset: DatasetConfig) -> str:
    """Identifies the data; raises ValueError in one line for unusable files."""
    return data_source(dataset).fingerprint()


def score_held_out(task: HeldOut, checkpoint: Checkpoint, dataset: DatasetConfig, scoring: Scoring) -> Scored:
    """Scores the model on the first held-out rows. Raises ValueError in one line."""
    model, limit, batch = scoring.model, scoring.limit, scoring.batch
    data = prepare_data(dataset, tokenized_by(checkpoint))
    if task.kind == "classification" and len(data.labels) != model.config.num_labels:
        raise ValueError(
            f"tasks=[{task.name}] has {len(data.labels)} labels, and the head of "
            f"checkpoint={checkpoint.asked} has {model.config.num_labels}; leave this task out"
        )
    objective = make_objective(task.kind, data, num_segments(model))
    rows = len(data.held_out) if limit is None else min(limit, len(data.held_out))
    model.train(False)
    scoring.progress.expect(rows)
    sums = []
    for start in range(0, rows, batch):
        indices = torch.arange(start, min(start + batch, rows))
        sums.append(objective.evaluate(model, indices, model.device))
        scoring.progress.advance(task.name, len(indices))
    metrics = objective.metrics([sum(column) for column in zip(*sums, strict=True)])
    wanted = GLUE[task.name].metric if task.kind == "classification" else None
    return Scored(
        metrics={
            key: ScoredValue(value, _stderr(key, value, rows))
            for key, value in metrics.items()
            if wanted is None or key in ("loss", wanted)
        },
        documents=rows,
        available=len(data.held_out),
        source=_source(data.description, dataset),
    )


def _stderr(metric: str, value: float, rows: int) -> float | None:
    """The standard error of a share, as in lm-eval; None for losses and correlations."""
    if metric not in SHARES or rows < 2:
        return None
    return math.sqrt(value * (1 - value) / (rows - 1))


def _source(description: Mapping[str, Any], dataset: DatasetConfig) -> str:
    return str(description.get("corpus") or description.get("name") or dataset.name)
