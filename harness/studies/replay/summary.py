"""`summary.json` of a replay: what one codec did to one file of gradients, from its repeats."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.record.gradients import SavedGradients
from gradwire.harness.record.identity import data_fingerprint, run_id
from gradwire.harness.record.provenance import provenance
from gradwire.harness.record.summary import Stored
from gradwire.harness.studies.distribution import quantiles
from gradwire.harness.studies.replay.errors import (
    RateDistortionCurve,
    errors_by_width,
    exact_mean,
    relative_errors,
    vnmse,
)
from gradwire.harness.studies.replay.rounds import Repeat
from gradwire.harness.studies.replay.settings import ReplayTask
from gradwire.harness.timing.measure.step_figures import wire_bits, wire_bits_by_level


@dataclass(frozen=True)
class ReplaySummary(Stored):
    """The figures of one codec, topology and number of workers on one file of gradients."""

    # Error, over all coordinates together.
    vnmse_mean: float | None  # mean over the repeats, no unit; null if it has no value in one of them
    vnmse_std: float | None  # standard deviation over the repeats (n - 1); null for one repeat
    vnmse_min: float | None
    vnmse_max: float | None
    vnmse: list[float | None]  # one per repeat, in the order of their seeds
    super_group_errors: list[float]  # quantiles 0, 1, …, 100 % over super-groups: squared error / energy
    errors_by_width: dict[str, list[float]] = field(default_factory=dict, kw_only=True)
    """Quantiles apart for the super-groups of each width in bits; empty for codecs that choose none."""

    # Bytes, as counted by the transport, in one synchronization.
    wire_bits_per_coordinate: float | None  # bits; null if nothing is counted
    wire_bits_by_phase: dict[str, float]  # the same split: metadata, reduce_scatter, all_gather
    # the same inside nodes ("local") and between them ("node"), their sum; null with one node
    wire_bits_by_level: dict[str, float] | None = field(default=None, kw_only=True)
    bytes_sent_per_rank: list[int]

    # Against reverse water-filling over the variances of super-groups.
    yardstick_vnmse: float | None  # the least error at these wire bits
    db_above_yardstick: float | None  # 10 log10(vnmse_mean / yardstick_vnmse)
    yardstick_curve: list[
        float
    ]  # the least error at 0, 1, 2, …, 16 bits per coordinate; empty without a bound

    # Time.
    codec_s: float  # s, median over the repeats: the codec's work in one synchronization, busiest rank
    codec_ns_per_coordinate: float  # the same per coordinate

    # What ran.
    repeats: int
    rounds: int  # synchronizations in a repeat; the last one is measured
    seed: int  # of the first repeat; the others use the next ones
    workers: int
    num_coordinates: int
    num_buckets: int
    logged: dict[str, float]  # what the codec logged in the last repeat
    gradients: dict[str, Any]  # the file's name and hash, and what it says of itself
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


SMALLEST_BOUND = 1e-12

CURVE_BITS = 16
"""The bound is recorded for 0 to so many bits."""


def summarize_replay(
    config: ReplayTask,
    gradients: SavedGradients,
    values: Tensor,
    buckets: Sequence[int],
    repeats: Sequence[Repeat],
    widths: Tensor | None,
) -> ReplaySummary:
    """The documented keys of `summary.json`.

    `values` are the workers' gradients that took part, `buckets` the coordinates of each bucket, `widths` the
    bits of each super-group if the codec chooses them.
    """
    mean = exact_mean(values)
    errors = [vnmse(repeat.mean, mean) for repeat in repeats]
    spread = _spread(errors)
    codec_s = statistics.median(repeat.codec_s for repeat in repeats)
    bits = _bits(config, repeats[-1], values.shape[1])
    return ReplaySummary(
        **spread,
        vnmse=errors,
        super_group_errors=_distribution(repeats, mean),
        errors_by_width={} if widths is None else _by_width(repeats, mean, buckets, widths),
        wire_bits_per_coordinate=sum(bits.values()) or None,
        wire_bits_by_phase=bits,
        wire_bits_by_level=_by_level(config, repeats[-1], values.shape[1]),
        bytes_sent_per_rank=[sum(sent.values()) for sent in repeats[-1].bytes_by_rank],
        **_against_bound(mean, sum(bits.values()), spread["vnmse_mean"]),
        codec_s=codec_s,
        codec_ns_per_coordinate=1e9 * codec_s / values.shape[1],
        repeats=len(repeats),
        rounds=config.replay.rounds,
        seed=config.seed,
        workers=values.shape[0],
        num_coordinates=values.shape[1],
        num_buckets=len(buckets),
        logged=dict(repeats[-1].logged),
        gradients=_described(Path(config.gradients), gradients),
        kernel_backend=config.kernels.name,
        config_hash=run_id(config),
        **provenance(config.mapping()),
    )


def pooled(summaries: Sequence[ReplaySummary]) -> ReplaySummary:
    """Replays of one codec on gradients of runs that differ only in the seed, as one.

    Errors are those of all repeats, other figures means over the replays; distributions, bytes and what ran
    are the first one's.
    """
    first, *others = summaries
    if not others:
        return first
    errors = [error for one in summaries for error in one.vnmse]

    def mean(key: str) -> float | None:
        known = [value for one in summaries if (value := getattr(one, key)) is not None]
        return statistics.fmean(known) if known else None

    figures: dict[str, Any] = {
        key: mean(key) for key in ("wire_bits_per_coordinate", "yardstick_vnmse", "db_above_yardstick")
    }
    times: dict[str, Any] = {key: mean(key) for key in ("codec_s", "codec_ns_per_coordinate")}
    spread: dict[str, Any] = _spread(errors)
    return replace(first, vnmse=errors, repeats=len(errors), **spread, **figures, **times)


def _distribution(repeats: Sequence[Repeat], mean: Tensor) -> list[float]:
    """Quantiles of the super-groups' relative errors; empty if these are not finite or no group has
    energy."""
    errors = relative_errors([repeat.mean for repeat in repeats], mean)
    return quantiles(errors) if errors.numel() and bool(errors.isfinite().all()) else []


def _by_width(
    repeats: Sequence[Repeat], mean: Tensor, buckets: Sequence[int], widths: Tensor
) -> dict[str, list[float]]:
    """Quantiles for each width that some super-group has; those that are not finite are left out."""
    found = errors_by_width([repeat.mean for repeat in repeats], mean, buckets, widths)
    usable = {width: own for width, own in found.items() if own.numel() and bool(own.isfinite().all())}
    return {str(width): quantiles(own) for width, own in usable.items()}


def _spread(errors: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and range; all None if the error of one repeat has no value."""
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


def _bits(config: ReplayTask, repeat: Repeat, numel: int) -> dict[str, float]:
    """Wire bits per coordinate by phase; empty if nothing was counted."""
    sent: Counter[str] = Counter()
    for by_phase in repeat.bytes_by_rank:
        sent.update(by_phase)
    nodes = num_nodes(config.cluster)
    gradients_sent = make_schedule(config.topology.name, config.cluster.size, nodes).gradients_sent
    bits = {phase: wire_bits(count, gradients_sent, numel) for phase, count in sorted(sent.items())}
    return {phase: value for phase, value in bits.items() if value is not None}


def _by_level(config: ReplayTask, repeat: Repeat, numel: int) -> dict[str, float] | None:
    if num_nodes(config.cluster) == 1:
        return None
    total = sum(sum(sent.values()) for sent in repeat.bytes_by_rank)
    gradients_sent = make_schedule(config.topology.name, config.cluster.size).gradients_sent
    return wire_bits_by_level(total, repeat.bytes_between_nodes, gradients_sent, numel)


def _against_bound(mean: Tensor, bits: float, error: float | None) -> dict[str, Any]:
    if not bits or not bool(mean.isfinite().all()) or not float(mean.abs().max()):
        return {"yardstick_vnmse": None, "db_above_yardstick": None, "yardstick_curve": []}
    curve = RateDistortionCurve.of(mean)
    if curve.bound(bits) < SMALLEST_BOUND:  # a handful of coordinates: nothing to compare with
        return {"yardstick_vnmse": None, "db_above_yardstick": None, "yardstick_curve": []}
    return {
        "yardstick_curve": [curve.bound(whole) for whole in range(CURVE_BITS + 1)],
        "yardstick_vnmse": curve.bound(bits),
        "db_above_yardstick": curve.decibels_above(error, bits) if error else None,
    }


def _described(path: Path, gradients: SavedGradients) -> dict[str, Any]:
    about = {key: value for key, value in (gradients.about or {}).items() if key != "buckets"}
    return {"file": path.name, "hash": data_fingerprint(path, every_file=True, whole=True)[:12], **about}
