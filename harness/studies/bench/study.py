"""`task=bench`: its settings and its record, `bench.json`, with the rows of all operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from gradwire.codecs.fields import at_least, between, list_of
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.record.figures import Figure, FigureFields, FigureValue, StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.studies.study import Study
from gradwire.harness.timing.measure.metric import quotient
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import KernelsConfig

if TYPE_CHECKING:
    from gradwire.harness.studies.bench.operation import Case


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


@dataclass(frozen=True)
class Times:
    """Seconds of one call: the minimum and the median over `repeats`."""

    shortest_s: float
    median_s: float
    repeats: int
    clock: str  # "thread CPU", "wall", "CUDA graph" or "CUDA launch"


@dataclass(frozen=True)
class BenchRow(FigureFields):
    """One measurement. `bytes_read` and `bytes_written` are those of an implementation without intermediate
    results; `copy_bytes_per_s` is the rate of reads and writes of a copy of the bucket in the same run.

    Figures are None if the clock has not advanced.
    """

    operation: str
    dtype: str
    numel: int
    implementation: str  # "default", "cpu", "cuda", or a peer's name
    threads: int
    times: Times
    bytes_read: int
    bytes_written: int
    value_bytes: int  # of the bucket
    copy_bytes_per_s: float | None
    default_s: float | None = None  # shortest time of the definition on one thread
    peers_s: Mapping[str, float] | None = None  # peers' names to their shortest times

    @classmethod
    def of(cls, case: Case, times: Times, **about: Any) -> BenchRow:
        """Makes the row of a case from its times."""
        return cls(times=times, bytes_read=case.bytes_read, bytes_written=case.bytes_written, **about)

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Its name in tables."""
        return self.operation, self.dtype, f"{self.numel:,}", self.implementation

    @property
    def values(self) -> dict[str, float | None]:
        """Its figures by field."""
        return {field: getattr(self, field) for field in self.single_figures()}

    @property
    def seconds(self) -> float:
        """The shortest time, because disturbances can only lengthen a measurement."""
        return self.times.shortest_s

    @property
    def ns_per_coordinate(self) -> Annotated[float | None, Figure("ns_per_coordinate", column=1)]:
        return 1e9 * self.seconds / self.numel if self.seconds else None

    @property
    def values_gb_per_s(self) -> Annotated[float | None, Figure("values_gb_per_s", column=2)]:
        """10⁹ bytes of the bucket's values per second, i.e. of an encoder's input or a decoder's output."""
        return quotient(1e-9 * self.value_bytes, self.seconds)

    @property
    def bytes_per_coordinate(self) -> Annotated[float, Figure("bytes_per_coordinate", column=3)]:
        return (self.bytes_read + self.bytes_written) / self.numel

    @property
    def share_of_copy(self) -> Annotated[float | None, Figure("share_of_copy", column=4)]:
        """Bytes moved per second relative to a copy; near 1, the operation is limited by memory."""
        rate = quotient(self.bytes_read + self.bytes_written, self.seconds)
        return quotient(rate, self.copy_bytes_per_s)

    @property
    def speedup(self) -> Annotated[float | None, Figure("speedup", column=5)]:
        """Speed relative to the definition on one thread."""
        return quotient(self.default_s or None, self.seconds)

    @property
    def speedup_to_peers(self) -> dict[str, float | None]:
        """Speed relative to each peer."""
        return {
            name: quotient(seconds or None, self.seconds) for name, seconds in (self.peers_s or {}).items()
        }

    def as_json(self) -> dict[str, Any]:
        """The measured values and the figures derived from them."""
        return asdict(self) | self.values | {"speedup_to_peers": self.speedup_to_peers}


CASE = ("operation", "dtype", "numel", "implementation", "threads")


@dataclass(frozen=True)
class BenchRecord(StudyRecord):
    """A case for each operation, dtype, size, implementation and number of threads."""

    file: ClassVar[str] = "bench.json"
    part_types: ClassVar[tuple[type[FigureFields], ...]] = (BenchRow,)

    rows: list[dict[str, Any]]

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        yield from super().figures(content)
        for row in content["rows"]:
            yield from BenchRow.figures_in(row, content, " ".join(str(row[key]) for key in CASE))

    @classmethod
    def tables(cls, content: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"operations": content["rows"]}


STUDY = Study(BenchTask, BenchRecord, "gradwire.harness.studies.bench.task", times=True)
