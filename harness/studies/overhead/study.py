"""`task=overhead`: its settings and its record, `overhead.json`: each block of each contestant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.codecs.fields import at_least
from gradwire.harness.record.figures import FigureValue, StudyRecord
from gradwire.harness.studies.study import Study
from gradwire.harness.trainer.settings import RunConfig


@dataclass(frozen=True)
class OverheadConfig:
    """The trainer's step against a bare loop's."""

    blocks: int = at_least(1, 12, 10_000)  # counted blocks of each loop; one more before them is not
    steps: int = at_least(1, 20, 1_000_000)  # optimizer steps in a block


@dataclass(frozen=True, kw_only=True)
class OverheadTask(RunConfig):
    """A training run, in blocks beside a bare loop's."""

    overhead: OverheadConfig


@dataclass(frozen=True)
class OverheadRecord(StudyRecord):
    """CPU and wall seconds per step of each block; the case is the contestant."""

    file: ClassVar[str] = "overhead.json"

    blocks: dict[str, list[list[float]]]

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        for contestant, blocks in content["blocks"].items():
            for step, (cpu_s, wall_s) in enumerate(blocks):
                yield FigureValue("cpu_step_s", cpu_s, contestant, step=step)
                yield FigureValue("step_time_s", wall_s, contestant, step=step)


STUDY = Study(OverheadTask, OverheadRecord, "gradwire.harness.studies.overhead.task", times=True)
