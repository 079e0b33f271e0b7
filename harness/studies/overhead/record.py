"""`overhead.json`: each block of each contestant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gradwire.harness.record.figures import FigureValue, StudyRecord


class OverheadRecord(StudyRecord):
    """CPU and wall seconds per step of each block; the case is the contestant."""

    file: ClassVar[str] = "overhead.json"

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        for contestant, blocks in content["blocks"].items():
            for step, (cpu_s, wall_s) in enumerate(blocks):
                yield FigureValue("cpu_step_s", cpu_s, contestant, step=step)
                yield FigureValue("step_time_s", wall_s, contestant, step=step)


RECORD = OverheadRecord
