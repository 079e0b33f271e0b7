"""`task=replay`: its settings and its record, `summary.json`, for one codec on one file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

from gradwire.codecs.fields import at_least, checked, one_of
from gradwire.harness.comm.settings import ClusterConfig, TopologyConfig
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.figures import Figure, StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.studies.study import Study
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import KernelsConfig

MEAN, TOPOLOGIES = "mean", ("ring", "butterfly")
"""The bounds: that of one encoding of the exact mean, and those of all messages of a topology."""

SMALLEST_BUCKET_MB, LARGEST_BUCKET_MB = 1e-3, 65_536


@dataclass(frozen=True)
class ReplayConfig:
    """The settings of replays."""

    repeats: int = at_least(1, 5, 10_000)  # synchronizations of the same gradients, other random numbers each
    rounds: int = at_least(1, 1, 100_000)  # of one file; the last counts: codecs that adapt need some
    # MiB of float32 synchronized together, where the file does not say which buckets there are
    bucket_mb: int | float = at_least(SMALLEST_BUCKET_MB, 25.0, LARGEST_BUCKET_MB)
    # what errors are compared with: one encoding of the exact mean, or all messages of an all-reduce
    bound: str = one_of(MEAN, *TOPOLOGIES)


@dataclass(frozen=True, kw_only=True)
class ReplayTask(RecordedConfig):
    """A codec on saved gradients, without training."""

    # .npz or .safetensors with an array `gradients` (workers, coordinates), or a list of consecutive steps
    gradients: str | list[str] = checked(MISSING, fewest=1)
    replay: ReplayConfig
    codec: dict[str, Any]
    topology: TopologyConfig
    cluster: ClusterConfig
    kernels: KernelsConfig
    tracking: TrackingConfig


@dataclass(frozen=True)
class ReplaySummary(StudyRecord):
    """The figures of one codec, topology and number of workers on one file of gradients, or on a row of
    files, whose figures are means over its steps."""

    file: ClassVar[str] = SUMMARY

    # Error, over all coordinates together.
    vnmse_mean: float | None  # mean over the repeats, no unit; null if it has no value in one of them
    vnmse_std: float | None  # standard deviation over the repeats (n - 1); null for one repeat
    vnmse_min: float | None
    vnmse_max: float | None
    # one per repeat, in the order of their seeds; of a row the mean over its steps
    vnmse: Annotated[list[float | None], Figure("vnmse", each="repeat")]
    # of a row: its first step, in which codecs have no state yet; mean over the repeats
    vnmse_first_step: Annotated[float | None, Figure("vnmse_first_step")] = field(default=None, kw_only=True)
    # of a row: by the number of the step, one per repeat
    vnmse_by_step: Annotated[
        dict[str, list[float | None]], Figure("vnmse_by_step", each=("case", "repeat"))
    ] = field(default_factory=dict, kw_only=True)
    super_group_errors: list[float]  # quantiles 0, 1, …, 100 % over super-groups: squared error / energy
    errors_by_width: dict[str, list[float]] = field(default_factory=dict, kw_only=True)
    """Quantiles separately for the super-groups of each width in bits; empty for codecs without widths."""

    # Bytes, as counted by the transport, in one synchronization.
    # bits; null if nothing is counted
    wire_bits_per_coordinate: Annotated[float | None, Figure("wire_bits_per_coordinate")]
    # of a row: the same by the number of the step, in the last repeat
    wire_bits_by_step: Annotated[dict[str, float], Figure("wire_bits_by_step", each="case")] = field(
        default_factory=dict, kw_only=True
    )
    # the same split: metadata, reduce_scatter, all_gather
    wire_bits_by_phase: Annotated[dict[str, float], Figure("wire_bits_per_coordinate", each="case")]
    # the same inside nodes ("local") and between them ("node"), their sum; null with one node
    wire_bits_by_level: Annotated[dict[str, float] | None, Figure("wire_bits_by_level", each="level")] = (
        field(default=None, kw_only=True)
    )
    bytes_sent_per_rank: Annotated[list[int], Figure("bytes_sent", each="rank")]

    # Against reverse water-filling over the variances of super-groups, or of groups of all messages.
    bound: str = field(default=MEAN, kw_only=True)  # which of them: replay.bound
    # the least error at these wire bits
    bound_vnmse: Annotated[float | None, Figure("bound_vnmse")]
    # 10 log10(vnmse_mean / bound_vnmse)
    db_above_bound: Annotated[float | None, Figure("db_above_bound")]
    # the least error at 0, 1, 2, …, 16 bits per coordinate; empty without a bound
    bound_curve: list[float]

    # Time.
    # s, median over the repeats: the codec's work in one synchronization, busiest rank
    codec_s: Annotated[float, Figure("codec_s")]
    # the same per coordinate
    codec_ns_per_coordinate: Annotated[float, Figure("codec_ns_per_coordinate")]

    # What ran.
    repeats: int
    rounds: int  # synchronizations in a repeat; the last one is measured
    seed: int  # of the first repeat; the others use the next ones
    workers: int
    num_coordinates: int
    num_buckets: int
    logged: dict[str, float]  # what the codec logged in the last repeat
    gradients: dict[
        str, Any
    ]  # the name of the file, or of the files, a hash, and what they say of themselves
    kernel_backend: str
    config_hash: str
    code_hash: str
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    machine: dict[str, Any]

    def impossible(self) -> str | None:
        if not self.bytes_sent_per_rank or min(self.repeats, self.workers) < 1:
            return "has no repeats, workers or bytes"
        return None


def bound_in_words(bound: str) -> str:
    """The end of the name of a bound: the messages it is of; empty for the mean's."""
    return "" if bound == MEAN else f" of a {bound}'s messages"


def pooled(summaries: Sequence[ReplaySummary]) -> ReplaySummary:
    """Replays of one codec on gradients of runs that differ only in the seed, combined to one.

    Errors are those of all repeats, other figures means over the replays; distributions, bytes and provenance
    are the first one's.
    """
    first, *others = summaries
    if not others:
        return first
    errors = [error for one in summaries for error in one.vnmse]

    def mean(key: str) -> float | None:
        known = [value for one in summaries if (value := getattr(one, key)) is not None]
        return statistics.fmean(known) if known else None

    kept = {each.name for each in fields(first)}
    figures: dict[str, Any] = {key: mean(key) for key in first.single_figures() if key in kept}
    spread: dict[str, Any] = spread_of(errors)
    by_step = {
        step: [e for one in summaries for e in one.vnmse_by_step[step]] for step in first.vnmse_by_step
    }
    return replace(first, vnmse=errors, vnmse_by_step=by_step, repeats=len(errors), **spread, **figures)


def spread_of(errors: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and range; all None if the error of one repeat is undefined."""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return dict.fromkeys(("vnmse_mean", "vnmse_std", "vnmse_min", "vnmse_max"))
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return {
        "vnmse_mean": statistics.fmean(known),
        "vnmse_std": deviation,
        "vnmse_min": min(known),
        "vnmse_max": max(known),
    }


STUDY = Study(
    ReplayTask,
    ReplaySummary,
    "gradwire.harness.studies.replay.task",
    "gradwire.harness.studies.replay.compare",
)
