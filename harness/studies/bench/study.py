"""`task=bench`: its settings and its record, `bench.json`: the rows of all operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.codecs.fields import at_least, between, list_of
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.studies.study import Study
from gradwire.harness.timing.measure.metrics import OPERATION
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import KernelsConfig


@dataclass(frozen=True)
class BenchConfig:
    """The speed of the codecs' operations."""

    operations: list[str] = list_of(["*"], fewest=1)  # names with * and ?, e.g. [dynamiq.*,mxfp.add.8]
    sizes: list[int] = list_of([1 << 18, 3_000_000, 1 << 24], fewest=1, low=1, high=1 << 31)  # coordinates
    dtypes: list[str] = list_of(["float32", "bfloat16"], fewest=1, choices=("float32", "bfloat16"))
    # of the CPU; one thread's CPU time counts, several threads' wall time
    threads: list[int] = list_of([1], fewest=1, low=1, high=1024)
    seconds: int | float = at_least(0, 0.2, 60)  # at least, for each row
    # the host's work for one bucket: among so many workers, of these codecs, with so many coordinates
    workers: list[int] = list_of([2, 8, 64], low=2, high=1024)
    codecs: list[str] = list_of(["fp32", "bf16", "mxfp8", "dynamiq"])
    bucket: int = between(1, 1 << 31, 1 << 18)
    # real workers that take an all-reduce of these codecs by turns; on GPUs one to each
    ranks: list[int] = list_of([2], low=2, high=1024)
    coordinates: int = between(1, 1 << 31, 1 << 23)
    rounds: int = at_least(1, 7, 10_000)


@dataclass(frozen=True, kw_only=True)
class BenchTask(RecordedConfig):
    """The speed of the codecs' operations on this machine."""

    bench: BenchConfig
    cluster: ClusterConfig
    kernels: KernelsConfig
    tracking: TrackingConfig


CASE = ("operation", "dtype", "numel", "implementation", "threads")


@dataclass(frozen=True)
class BenchRecord(StudyRecord):
    """A case for each operation, dtype, size, implementation and number of threads."""

    file: ClassVar[str] = "bench.json"

    rows: list[dict[str, Any]]

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        for row in content["rows"]:
            case = " ".join(str(row[key]) for key in CASE)
            for key in OPERATION:
                yield from Figure(key).values(row[key], content, case)

    @classmethod
    def tables(cls, content: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"operations": content["rows"]}


STUDY = Study(BenchTask, BenchRecord, "gradwire.harness.studies.bench.task", times=True)
