"""`scores.json`: what one checkpoint scored, on what, and where the figures come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradwire.harness.record.summary import Stored

SCORES = "scores.json"


@dataclass(frozen=True)
class Value:
    """One figure with its standard error over the documents; null where it has none."""

    value: float
    stderr: float | None = None


@dataclass(frozen=True)
class Scored:
    """One task's figures, and what they were taken over."""

    metrics: dict[str, Value]  # by the keys of METRICS
    documents: int  # that were scored
    available: int  # that the data has
    left_out: int = 0  # of those asked for: an ending alone is longer than the model's context
    requests: int = 0  # of lm-eval; 0 where it takes no part
    cut: float = 0.0  # share of the requests whose beginning was cut off, so that they fit into the context
    version: str | None = None  # lm-eval's of the task
    shots: int = 0  # solved examples in the prompt
    source: str = ""  # the folder below score.data, or the repository of the hub
    data: str = ""  # identifies the data: of local files their contents, of the hub's its name


@dataclass(frozen=True)
class Scores(Stored):
    """What one checkpoint scored."""

    tasks: dict[str, Scored]
    checkpoint: str  # the run's, the folder's or the repository's name
    architecture: str
    parameters: int
    context: int | None  # tokens
    dtype: str
    note: str | None  # why nothing else was scored
    trained: dict[str, Any]  # the configuration of the run; empty where none is known
    limit: int | None
    batch: int
    device: str
    config_hash: str
    code_hash: str
    commit: str | None
    dirty: bool | None
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def impossible(self) -> str | None:
        if not self.tasks or any(each.documents < 1 or not each.metrics for each in self.tasks.values()):
            return "has no tasks, or one without documents or figures"
        return None
