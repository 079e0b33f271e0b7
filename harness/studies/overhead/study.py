"""`task=overhead`: its settings and its record, `overhead.json`, with each block of each contestant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from gradwire.codecs.fields import at_least
from gradwire.harness.record.figures import Figure, StudyRecord
from gradwire.harness.studies.study import Study
from gradwire.harness.trainer.settings import RunConfig


@dataclass(frozen=True)
class OverheadConfig:
    """The comparison of the trainer's step with a plain loop's."""

    blocks: int = at_least(1, 12, 10_000)  # counted blocks of each loop; one more before them is not
    steps: int = at_least(1, 20, 1_000_000)  # optimizer steps in a block


@dataclass(frozen=True, kw_only=True)
class OverheadTask(RunConfig):
    """A training run, in blocks that alternate with a plain loop's."""

    overhead: OverheadConfig


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step, medians over the blocks: CPU time of all workers, wall time of the slowest."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class BlockRatio:
    """A loop's times over the bare loop's: of the medians, and of two blocks of one round."""

    of_medians: float
    lowest: float
    median: float
    highest: float


@dataclass(frozen=True)
class StepRatio:
    """Null where a clock has seen no time pass."""

    cpu: BlockRatio | None
    wall: BlockRatio | None


@dataclass(frozen=True)
class RecordingCost:
    """The spans that a step records, and the seconds that one costs."""

    spans_per_step: float
    span_s: float


@dataclass(frozen=True)
class OverheadRecord(StudyRecord):
    """Loops by name: the bare one, and the trainer's."""

    file: ClassVar[str] = "overhead.json"

    model: str
    size: str
    codec: str
    parallel: str
    kernel_backend: str
    workers: int
    network: str  # in words
    micro_batch: int
    steps_per_block: int
    blocks_each: int
    code_hash: str | None = field(default=None, kw_only=True)
    commit: str | None = field(default=None, kw_only=True)
    dirty: bool | None = field(default=None, kw_only=True)
    versions: dict[str, str] = field(default_factory=dict, kw_only=True)
    machine: dict[str, Any] = field(default_factory=dict, kw_only=True)
    recording: RecordingCost
    seconds_per_step: dict[str, StepSeconds]
    ratio: dict[str, StepRatio]  # of all loops but the bare one
    # CPU and wall seconds per step of each block
    blocks: Annotated[
        dict[str, list[list[float]]],
        Figure("cpu_step_s", each=("case", "step", 0)),
        Figure("step_time_s", each=("case", "step", 1)),
    ]

    def impossible(self) -> str | None:
        if not self.seconds_per_step.keys() == self.blocks.keys() >= self.ratio.keys():
            return "has loops without blocks or times"
        return None


STUDY = Study(OverheadTask, OverheadRecord, "gradwire.harness.studies.overhead.task", times=True)
