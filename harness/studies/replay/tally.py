"""Figures of a replay, file by file and over a row: errors, bits, and the distance from a bound."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.distribution import (
    GroupErrors,
    RateDistortionCurve,
    exact_mean,
    quantiles,
    vnmse,
)
from gradwire.harness.studies.message_bounds import MessageBound
from gradwire.harness.studies.replay.rounds import ReplayCosts, Synchronized
from gradwire.harness.studies.replay.row import GradientRow
from gradwire.harness.studies.replay.study import MEAN, ReplaySummary, ReplayTask, spread_of
from gradwire.harness.timing.measure.step_figures import wire_bits, wire_bits_by_level

SMALLEST_BOUND = 1e-12

CURVE_BITS = 16
"""The bound is recorded for 0 to this many bits."""


_message_bounds: dict[tuple[Hashable, ...], MessageBound] = {}
"""Those of the files that this process has replayed, each some 100 kB: the cells of a sweep share them."""


@dataclass
class StepTally:
    """The results of the repeats for one file: their errors and codec times, the last one's traffic, the
    squared errors of super-groups, and the bound."""

    groups: GroupErrors
    """Those of the whole vector."""
    bucket_groups: GroupErrors | None
    """Those of each bucket, for codecs with widths."""
    widths: Tensor | None
    errors: list[float | None] = field(default_factory=list)
    codec_s: list[float] = field(default_factory=list)
    traffic: list[ReplayCosts] = field(default_factory=list)
    bound: float | None = None
    """The least vNMSE at the wire bits; None if there is nothing to compare with."""
    curve: list[float] = field(default_factory=list)


class ReplayTally:
    """Adds up measured synchronizations, repeat by repeat; `summary` says what they gave.

    `numels` are the coordinates of each bucket. One file's gradients are needed at a time.
    """

    def __init__(self, config: ReplayTask, row: GradientRow, numels: Sequence[int]) -> None:
        self._config, self._row, self._numels = config, row, numels
        self._numel = sum(numels)
        self._steps: dict[int, StepTally] = {}
        self._mean: tuple[int, Tensor] | None = None

    def add(self, found: Synchronized, widths: Tensor | None) -> None:
        """Adds a synchronization; `widths` are those of the file's super-groups, if the codec has any."""
        if self._mean is None or self._mean[0] != found.place:
            self._mean = found.place, exact_mean(found.values)
        mean = self._mean[1]
        if found.place not in self._steps:
            groups = GroupErrors.of(mean, [self._numel])
            split = None if widths is None else GroupErrors.of(mean, self._numels)
            self._steps[found.place] = StepTally(groups, split, widths)
        step = self._steps[found.place]
        step.errors.append(vnmse(found.mean, mean))
        step.codec_s.append(found.traffic.codec_s)
        step.traffic.append(found.traffic)
        difference = found.mean.double() - mean
        step.groups.add(difference)
        if step.bucket_groups is not None:
            step.bucket_groups.add(difference)
        if len(step.errors) == self._config.replay.repeats:
            bits = sum(self._bits(found.traffic).values())
            step.bound, step.curve = _against(self._curve(found, mean), bits)

    def summary(self) -> ReplaySummary:
        """The documented keys of `summary.json`."""
        config, steps = self._config, [self._steps[place] for place in sorted(self._steps)]
        errors = [_mean_or_none(of_steps) for of_steps in zip(*(step.errors for step in steps), strict=True)]
        spread = spread_of(errors)
        codec_s = statistics.median(seconds for step in steps for seconds in step.codec_s)
        last = [step.traffic[-1] for step in steps]
        by_step = [self._bits(traffic) for traffic in last]
        bits = _mean_bits(by_step)
        return ReplaySummary(
            **spread,
            vnmse=errors,
            **self._by_step(steps, by_step),
            super_group_errors=_distribution(steps),
            errors_by_width=_by_width(steps),
            wire_bits_per_coordinate=sum(bits.values()) or None,
            wire_bits_by_phase=bits,
            wire_bits_by_level=self._by_level(last),
            bytes_sent_per_rank=_mean_sent(last),
            **_against_bound(steps, spread["vnmse_mean"]),
            bound=config.replay.bound,
            codec_s=codec_s,
            codec_ns_per_coordinate=1e9 * codec_s / self._numel,
            repeats=len(errors),
            rounds=config.replay.rounds,
            seed=config.seed,
            workers=config.cluster.size,
            num_coordinates=self._numel,
            num_buckets=len(self._numels),
            logged=dict(last[-1].logged),
            gradients=self._row.about(),
            kernel_backend=config.kernels.name,
            config_hash=run_id(config),
            **provenance(config.mapping()),
        )

    def _curve(self, found: Synchronized, mean: Tensor) -> RateDistortionCurve | MessageBound | None:
        """The bound of a file's gradients that `replay.bound` names; None if their mean is zero or not
        finite, and for a single worker."""
        name, size = self._config.replay.bound, self._config.cluster.size
        if size == 1 or not bool(mean.isfinite().all()) or not float(mean.abs().max()):
            return None
        if name == MEAN:
            return RateDistortionCurve.of(mean)
        key = self._row.hash_of(found.place), name, size, tuple(self._numels)
        if key not in _message_bounds:
            schedule = make_schedule(name, size)
            _message_bounds[key] = MessageBound.of(found.values, mean, self._numels, schedule)
        return _message_bounds[key]

    def _by_step(self, steps: Sequence[StepTally], bits: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """The figures of single steps of a row; none for a single file."""
        if self._row.is_one:
            return {}
        names = list(map(str, self._row.steps))
        first = spread_of(steps[0].errors)["vnmse_mean"]
        return {
            "vnmse_first_step": first,
            "vnmse_by_step": {name: step.errors for name, step in zip(names, steps, strict=True)},
            "wire_bits_by_step": {
                name: sum(own.values()) for name, own in zip(names, bits, strict=True) if own
            },
        }

    def _bits(self, traffic: ReplayCosts) -> dict[str, float]:
        """Wire bits per coordinate by phase; empty if bytes were not counted."""
        sent: Counter[str] = Counter()
        for by_phase in traffic.bytes_by_rank:
            sent.update(by_phase)
        cluster = self._config.cluster
        gradients_sent = make_schedule(
            self._config.topology.name, cluster.size, num_nodes(cluster)
        ).gradients_sent
        bits = {phase: wire_bits(count, gradients_sent, self._numel) for phase, count in sorted(sent.items())}
        return {phase: value for phase, value in bits.items() if value is not None}

    def _by_level(self, traffic: Sequence[ReplayCosts]) -> dict[str, float] | None:
        if num_nodes(self._config.cluster) == 1:
            return None
        total = sum(sum(sent.values()) for each in traffic for sent in each.bytes_by_rank)
        between = sum(each.bytes_between_nodes for each in traffic)
        schedule = make_schedule(self._config.topology.name, self._config.cluster.size)
        return wire_bits_by_level(total, between, schedule.gradients_sent, len(traffic) * self._numel)


def _mean_or_none(errors: Sequence[float | None]) -> float | None:
    """The mean of a repeat's errors over the row; None if one of them is undefined."""
    known = [error for error in errors if error is not None]
    return statistics.fmean(known) if len(known) == len(errors) else None


def _mean_bits(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the row of the bits of each phase; steps without it have none."""
    phases = sorted({phase for bits in steps for phase in bits})
    return {phase: statistics.fmean(bits.get(phase, 0.0) for bits in steps) for phase in phases}


def _mean_sent(steps: Sequence[ReplayCosts]) -> list[int]:
    """Bytes that each rank sent in one synchronization, the mean over the row."""
    by_rank = zip(*(map(_total, step.bytes_by_rank) for step in steps), strict=True)
    return [round(sum(sent) / len(steps)) for sent in by_rank]


def _total(sent: Mapping[str, int]) -> int:
    return sum(sent.values())


def _distribution(steps: Sequence[StepTally]) -> list[float]:
    """Quantiles of the super-groups' relative errors in all steps; empty if they are not finite or no group
    has energy."""
    errors = torch.cat([step.groups.relative() for step in steps])
    return quantiles(errors) if errors.numel() and bool(errors.isfinite().all()) else []


def _by_width(steps: Sequence[StepTally]) -> dict[str, list[float]]:
    """Quantiles for each width that occurs; those that are not finite are excluded."""
    found: dict[int, list[Tensor]] = {}
    for step in steps:
        if step.bucket_groups is not None and step.widths is not None:
            for width, own in step.bucket_groups.by_width(step.widths).items():
                found.setdefault(width, []).append(own)
    whole = {width: torch.cat(found[width]) for width in sorted(found)}
    usable = {width: own for width, own in whole.items() if own.numel() and bool(own.isfinite().all())}
    return {str(width): quantiles(own) for width, own in usable.items()}


def _against(
    curve: RateDistortionCurve | MessageBound | None, bits: float
) -> tuple[float | None, list[float]]:
    """The bound of one step at these bits, and at 0, 1, … bits; none if there is nothing to compare with."""
    if curve is None or not bits or curve.bound(bits) < SMALLEST_BOUND:  # the last: a handful of coordinates
        return None, []
    return curve.bound(bits), [curve.bound(whole) for whole in range(CURVE_BITS + 1)]


def _against_bound(steps: Sequence[StepTally], error: float | None) -> dict[str, Any]:
    """The mean over the row of the steps' bounds, and the distance of the mean error from it."""
    bound = _mean_or_none([step.bound for step in steps])
    if bound is None:
        return {"bound_vnmse": None, "db_above_bound": None, "bound_curve": []}
    return {
        "bound_curve": [statistics.fmean(own) for own in zip(*(step.curve for step in steps), strict=True)],
        "bound_vnmse": bound,
        "db_above_bound": 10 * math.log10(error / bound) if error else None,
    }
