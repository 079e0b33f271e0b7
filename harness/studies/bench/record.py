"""`bench.json`: the rows of all operations, and how each becomes figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.timing.measure.metrics import OPERATION

CASE = ("operation", "dtype", "numel", "implementation", "threads")


class BenchRecord(StudyRecord):
    """A case for each operation, dtype, size, implementation and number of threads."""

    file: ClassVar[str] = "bench.json"

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        for row in content["rows"]:
            case = " ".join(str(row[key]) for key in CASE)
            for key in OPERATION:
                yield from Figure(key).values(row[key], content, case)

    @classmethod
    def tables(cls, content: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"operations": content["rows"]}


RECORD = BenchRecord
