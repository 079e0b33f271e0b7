"""`task=score`: its settings and its record, `scores.json`, with the scores of one checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from gradwire.codecs.fields import NOTHING, at_least, checked, one_of
from gradwire.harness.record.figures import Figure, FigureFields, FigureValue, StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.study import Study
from gradwire.harness.tracking.settings import TrackingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ScoreConfig:
    """The choice of documents, and how they are scored."""

    data: str | None = None  # a folder with the benchmarks' files (docs/scoring.md); null: the hub
    limit: int | None = at_least(1, None, 10**9)  # documents of each task, the first ones; null: all
    batch: int = at_least(1, 16, 65_536)  # requests that go through the model together
    device: str = one_of("auto", "cpu", "cuda")  # auto: cuda where there is one
    threads: int = at_least(1, 1, 1024)  # of the CPU; another number gives other last bits
    digest: str | None = checked(None, kinds=(NOTHING,), optional=True)  # of the weights and the data


@dataclass(frozen=True, kw_only=True)
class ScoreTask(RecordedConfig):
    """The scoring of a finished checkpoint on published benchmarks."""

    checkpoint: str  # a finished run's directory, a Hugging Face folder, or a name on the hub
    # arc_easy, arc_challenge, hellaswag, openbookqa, piqa, winogrande, mmlu; of a masked model masked_lm, of
    # a classifier sst2, rte or cola; null: all that fit
    tasks: list[str] | None = checked(dataclasses.MISSING, fewest=1, unique=True)
    score: ScoreConfig
    tracking: TrackingConfig


SCORES = "scores.json"


@dataclass(frozen=True)
class Scoring:
    """A model on its device, and how it is scored: on the first `limit` documents of each task, `batch`
    requests at a time."""

    model: PreTrainedModel
    limit: int | None
    batch: int
    progress: Progress


@dataclass(frozen=True)
class ScoredValue:
    """One figure with its standard error over the documents; null if it has none."""

    value: float
    stderr: float | None = None


@dataclass(frozen=True)
class Scored(FigureFields):
    """One task's figures, and the documents that they were computed from."""

    metrics: dict[str, ScoredValue]  # by the keys of METRICS
    documents: Annotated[int, Figure("documents")]  # that were scored
    available: int  # that the data has
    left_out: int = 0  # of those asked for: an ending alone is longer than the model's context
    requests: int = 0  # of lm-eval; 0 where it takes no part
    cut: float = 0.0  # share of the requests whose beginning was cut off, so that they fit into the context
    version: str | None = None  # lm-eval's of the task
    shots: int = 0  # solved examples in the prompt
    source: str = ""  # the folder below score.data, or the repository of the hub
    data: str = ""  # identifies the data: of local files their contents, of the hub's its name


@dataclass(frozen=True)
class Scores(StudyRecord):
    """The scores of one checkpoint."""

    file: ClassVar[str] = SCORES
    part_types: ClassVar[tuple[type[FigureFields], ...]] = (Scored,)

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

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """A case for each task, besides those of the checkpoint."""
        yield from super().figures(content)
        for row in score_rows(content):
            yield from Figure(row["metric"]).values(row["value"], content, row["task"])
            yield from Figure(f"{row['metric']}_stderr").values(row["stderr"], content, row["task"])
        for task, scored in content["tasks"].items():
            yield from Scored.figures_in(scored, content, task)
            if scored["requests"]:
                yield from Figure("cut_requests").values(scored["cut"], content, task)

    @classmethod
    def tables(cls, content: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"scores": score_rows(content)}

    def impossible(self) -> str | None:
        if not self.tasks or any(each.documents < 1 or not each.metrics for each in self.tasks.values()):
            return "has no tasks, or one without documents or figures"
        return None


def score_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each task and metric of `scores.json`: the figure, and the documents it was computed from."""
    over = ("documents", "available", "left_out", "cut", "version", *Scored.columns())
    return [
        {"task": task, "metric": metric, **figure, **{key: scored[key] for key in over}}
        for task, scored in found["tasks"].items()
        for metric, figure in scored["metrics"].items()
    ]


STUDY = Study(
    ScoreTask, Scores, "gradwire.harness.studies.score.task", "gradwire.harness.studies.score.compare"
)
