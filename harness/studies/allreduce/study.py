"""`task=allreduce`: its settings and its record, `allreduce.json`, with measured and modelled times and
bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from gradwire.codecs.fields import LIST, at_least, list_of
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.parallel.settings import ParallelConfig, ShardedConfig
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.studies.study import Study
from gradwire.harness.timing.measure.metric import Kind, Spread, quotient
from gradwire.harness.timing.measure.metrics import kind_of
from gradwire.harness.timing.measure.step_figures import bus_bandwidth
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import WorldConfig

COORDINATES = 1 << 23
"""The default size of the bucket."""


TIMED = ("ddp", "sharded")
"""The parallelisms whose synchronization can be timed."""


@dataclass(frozen=True)
class AllReduceConfig:
    """One all-reduce, measured and modelled."""

    coordinates: int = at_least(1, COORDINATES, 1 << 33)  # of each worker's gradient, one bucket
    # shapes of the bucket's parameters, for codecs that compress matrices; `coordinates` follows from them
    matrices: list[Any] = list_of(kinds=(LIST,), hint="e.g. [[768,3072],[768]]: a matrix and a vector")
    repeats: int = at_least(1, 10, 100_000)  # rounds that count, after some that do not


@dataclass(frozen=True, kw_only=True)
class AllReduceTask(WorldConfig):
    """An all-reduce between real workers and on the simulated clock; with `parallel=sharded`, a
    reduce-scatter of gradients and a gathering of weights."""

    allreduce: AllReduceConfig
    parallel: ParallelConfig
    tracking: TrackingConfig


def sharded(config: AllReduceTask) -> ShardedConfig | None:
    """The settings of sharded data parallelism if it is timed, else None."""
    return config.parallel if isinstance(config.parallel, ShardedConfig) else None


def in_words(settings: ShardedConfig) -> str:
    """The way in which weights are sent: `exact`, or with bits and group, e.g. `qwd-4/2048`."""
    if settings.weights == "exact":
        return settings.weights
    return f"{settings.weights}-{settings.weight_bits}/{settings.weight_group}"


def with_coordinates(config: AllReduceConfig) -> AllReduceConfig:
    """The settings with `coordinates` computed from the matrices. Raises ValueError for invalid shapes, and
    for a number of coordinates that contradicts them."""
    if not config.matrices:
        return config
    given = f"allreduce.matrices={config.matrices}".replace(" ", "")
    for shape in config.matrices:
        if not shape or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
            raise ValueError(
                f"{given} has {shape}, which is not a shape; use whole numbers from 1, e.g. "
                f"[[768,3072],[768]]"
            )
    numel = sum(map(math.prod, config.matrices))
    if config.coordinates not in (COORDINATES, numel):
        raise ValueError(
            f"allreduce.coordinates={config.coordinates} contradicts {given}, which are {numel}; leave it out"
        )
    return replace(config, coordinates=numel)


FILE = "allreduce.json"

PART_TIMES = {"gradients": "scatter_s", "weights": "gather_s"}
"""The metric of each part's time."""


@dataclass(frozen=True)
class PartSummary:
    """Times and bytes of one part of a round: a scatter of gradients or a gathering of weights. All ranks
    begin a part together, so the times of the parts add up to the round's."""

    measured: Spread | None
    modelled: Spread
    bytes_sent: int  # by all ranks in one round
    wire_bits_per_coordinate: float | None


@dataclass(frozen=True)
class AllReduceSummary(StudyRecord):
    """The record of an all-reduce. Times are those of the slowest rank in each round; `measured` is null
    without real workers."""

    file: ClassVar[str] = FILE

    codec: str  # with its bits
    topology: str
    workers: int
    coordinates: int
    pieces: int  # of each message
    network: str  # in words
    network_settings: dict[str, Any]
    rate_mbit: float | None  # a link's nominal rate; null if nothing is limited
    goodput_mbit: float | None  # what a stream over one link was measured to carry; the clock uses it
    background_jobs: int
    repeats: int
    measured: Spread | None
    # codec work of the busiest rank, while the others work, too
    measured_codec_s: Annotated[Spread | None, Figure("codec_s", "real", "case")]
    modelled: Annotated[Spread, Figure("allreduce_s", "modelled", "case")]  # on the simulated clock
    # codec work as measured in one process, one rank at a time
    modelled_codec_s: Annotated[Spread, Figure("codec_s", "modelled", "case")]
    bytes_sent: int  # sent by all ranks in one round
    wire_bits_per_coordinate: Annotated[float | None, Figure("wire_bits_per_coordinate")]
    # the same inside nodes ("local") and between them ("node"), their sum; null with one node
    wire_bits_by_level: Annotated[dict[str, float] | None, Figure("wire_bits_by_level", each="level")] = (
        field(default=None, kw_only=True)
    )
    model_dtype: str | None = field(default=None, kw_only=True)  # of the weights; null with parallel=ddp
    weights: str | None = field(default=None, kw_only=True)  # how they are sent, with bits and group
    # by name, "gradients" and "weights"; null with parallel=ddp
    parts: dict[str, PartSummary] | None = field(default=None, kw_only=True)
    kernel_backend: str
    rounds_s: Annotated[list[float], Figure("allreduce_s", "real", "step")]  # measured, one per round
    provenance: dict[str, Any]

    @property
    def ratio(self) -> float | None:
        """Measured over modelled."""
        return None if self.measured is None else quotient(self.measured.median, self.modelled.median)

    @property
    def kind(self) -> Kind:
        """The kind of its times."""
        return "modelled" if self.measured is None else kind_of(None, self.network_settings.get("name"))

    @property
    def network_text(self) -> str:
        """Its links and the kind of its times, in words, for any version of `network`."""
        return recorded_text(self.network_settings, self.kind)

    @property
    def seconds(self) -> float:
        """Measured seconds if available, else modelled ones."""
        return (self.measured or self.modelled).median

    @property
    def bus_bandwidth(self) -> float | None:
        """Bus bandwidth in bytes per second, relative to the uncompressed data whatever the codec sends; None
        for one worker.

        An all-reduce scatters and gathers the float32 vector; with parallel=sharded the gathered vector has
        the model's dtype.
        """
        scattered = gathered = 4 * self.coordinates
        if self.model_dtype is not None:
            import torch

            gathered = getattr(torch, self.model_dtype).itemsize * self.coordinates
        return bus_bandwidth((scattered + gathered) / 2, self.seconds, self.workers)

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """The figures of the fields, of the parts of sharded rounds, and the bus bandwidth."""
        yield from super().figures(content)
        for part, metric in PART_TIMES.items():
            own = (content.get("parts") or {}).get(part) or {}
            yield from Figure(metric, "real", "case").values(own.get("measured"), content)
            yield from Figure(metric, "modelled", "case").values(own.get("modelled"), content)
        kind: Literal["modelled", "real"] = "modelled" if content["measured"] is None else "real"
        yield from Figure("bus_bandwidth", kind).values(content.get("bus_bandwidth"), content)

    def content(self) -> dict[str, Any]:
        derived = {"measured_over_modelled": self.ratio, "bus_bandwidth": self.bus_bandwidth}
        return super().content() | derived

    def impossible(self) -> str | None:
        return None if self.modelled.median > 0 and self.seconds > 0 else "has a time that is not above 0"


STUDY = Study(
    AllReduceTask,
    AllReduceSummary,
    "gradwire.harness.studies.allreduce.task",
    "gradwire.harness.studies.allreduce.compare",
    times=True,
)
