"""The figures of one group of runs for a comparison, as medians over seeds with their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.harness.record.summary import PERCENTILES, SPREAD, Clock
from gradwire.harness.report.evaluation import same_but_codec, spread
from gradwire.harness.report.frame import over_runs
from gradwire.harness.report.groups import Group, baseline_of
from gradwire.harness.timing.measure.accuracy import (
    TimeToAccuracy,
    paired_test_faster,
    relative_targets,
)
from gradwire.harness.timing.measure.metric import RUN_SECTIONS, Spread
from gradwire.harness.timing.measure.metrics import keys

if TYPE_CHECKING:
    from pandas import DataFrame


NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class TargetRow:
    """A group's times to one target."""

    factor: float  # the target is this times the baseline's median final metric
    target: float
    train_time_s: Spread  # s on the training clock; a seed that missed is infinite
    steps: Spread  # optimizer steps to the target; infinite where missed
    step_time_s: Spread | None  # s, of the seeds that got there: TTA / steps
    reached: int  # seeds that reached it
    stays: bool | None  # whether none of those fell back later; None when none reached it
    p_faster: float | None  # one-sided paired test against the baseline; None without two shared seeds
    common_s: Spread | None = None  # s: train_time_s with the computation that a comparison's runs share


@dataclass(frozen=True)
class GroupRow:
    """One group of runs; times are on `clock`, figures that were not measured are None."""

    label: str
    codec: str
    clock: Clock | None  # None when every seed failed
    network: str  # the links and what times on them are, in words
    metric: str | None
    seeds: list[int | None]  # of the runs that are done
    failed_seeds: list[int | None]
    diverged_seeds: list[int | None]  # those of the failed ones that training itself ended
    baseline: str | None  # the group whose runs set the targets
    final_metric: Spread  # failed and diverged seeds at the worst value
    targets: list[TargetRow]
    figures: dict[str, Spread | None]  # by the keys of METRICS, those that comparisons show
    bytes_ratio: float | None  # to the BF16 runs that differ in nothing but the codec
    spread: dict[str, Spread] = field(default_factory=dict)  # `<metric>.p10` and `.p90` over a run's steps

    @property
    def num_seeds(self) -> int:
        return len(self.seeds) + len(self.failed_seeds)


@dataclass(frozen=True)
class Standing:
    """A group's times to the targets of its baseline; `complaint` is the reason if there are none."""

    baseline: Group | None
    targets: list[TargetRow] = field(default_factory=list)
    complaint: str = ""


def against_baseline(
    group: Group, groups: Sequence[Group], common: Mapping[str, float] = NOTHING
) -> Standing:
    """A group against its baseline among `groups`.

    `common`: seconds of a step with the computation that the comparison's runs share, by run directory.
    """
    baseline = baseline_of(group, groups)
    if baseline is None:
        return Standing(None)
    try:
        targets = group_targets(baseline)
    except ValueError as error:
        return Standing(baseline, complaint=f"No targets from {baseline.label}: {error}.")
    return Standing(baseline, [target_row(group, baseline, *item, common) for item in targets.items()])


def make_row(
    group: Group, compared: Standing, values: DataFrame, common: Mapping[str, float] = NOTHING
) -> GroupRow:
    """The figures of `group`, from all runs' `values`; `common` as in `against_baseline`."""
    baseline = compared.baseline
    found = over_runs(values, [str(run.folder) for run in group.runs])
    alike = baseline if baseline is not None and same_but_codec(group, baseline) else None
    reference = over_runs(values, [str(run.folder) for run in alike.runs]) if alike else {}
    # Failed seeds only affect the final metric, which is not among these figures.
    shown = keys(lambda metric: metric.section in RUN_SECTIONS and metric.key != "final_metric")
    figures = {key: found.get(key) for key in shown}
    steps_s = [common[str(run.folder)] for run in group.runs if str(run.folder) in common]
    figures["common_step_s"] = Spread.of(steps_s) if steps_s else None
    return GroupRow(
        label=group.label,
        codec=group.codec,
        clock=group.clock,
        network=group.network,
        metric=group.metric,
        seeds=[run.seed for run in group.runs],
        failed_seeds=[run.seed for run in group.failed],
        diverged_seeds=[run.seed for run in group.failed if run.diverged],
        baseline=baseline.label if baseline else None,
        final_metric=spread(final_metrics(group), group.mode),
        targets=compared.targets,
        figures=figures,
        bytes_ratio=_bytes_ratio(found, reference),
        spread=_spread_of_steps(group),
    )


def _spread_of_steps(group: Group) -> dict[str, Spread]:
    """Percentiles over the steps of a run, as spreads over the runs; only those that all runs have."""
    found = dict[str, Spread]()
    for key in SPREAD:
        for end in PERCENTILES:
            known = [run.done.spread[key][end] for run in group.runs if key in run.done.spread]
            if known and len(known) == len(group.runs):
                found[f"{key}.{end}"] = Spread.of(known)
    return found


def final_metrics(group: Group) -> list[float]:
    """Every seed's final metric, NaN for a failed run."""
    return [run.done.final_metric for run in group.runs] + [math.nan] * len(group.failed)


def group_targets(baseline: Group) -> dict[float, float]:
    """The targets set by the BF16 runs, by factor; raises ValueError if they diverged."""
    return relative_targets(final_metrics(baseline), baseline.mode)


def target_row(
    group: Group, baseline: Group, factor: float, target: float, common: Mapping[str, float] = NOTHING
) -> TargetRow:
    """One target for one group; `common` as in `against_baseline`."""
    times, reference = group.curves.times_to(target), baseline.curves.times_to(target)
    got_there = [time for time in times.values() if time.step is not None]
    per_step = [time.train_time_s / time.step for time in got_there if time.step]
    return TargetRow(
        factor=factor,
        target=target,
        train_time_s=spread([time.train_time_s for time in times.values()]),
        steps=spread([math.inf if time.step is None else time.step for time in times.values()]),
        step_time_s=spread(per_step) if per_step else None,
        reached=len(got_there),
        stays=all(time.stays for time in got_there) if got_there else None,
        p_faster=_p_faster(times, reference) if group is not baseline else None,
        common_s=_common(group, times, common),
    )


def _common(
    group: Group, times: Mapping[int | None, TimeToAccuracy], common: Mapping[str, float]
) -> Spread | None:
    """Times to a target if each step takes the time in `common`; None if that lacks a run."""
    steps_s = {run.seed: common.get(str(run.folder)) for run in group.runs}
    if not steps_s or None in steps_s.values():
        return None
    found = [
        math.inf if time.step is None else time.step * (steps_s[seed] or 0.0) for seed, time in times.items()
    ]
    return spread(found)


def _p_faster(
    times: dict[int | None, TimeToAccuracy], baseline: dict[int | None, TimeToAccuracy]
) -> float | None:
    shared = sorted(times.keys() & baseline.keys(), key=str)
    if len(shared) < 2:
        return None
    return paired_test_faster(
        [baseline[seed].train_time_s for seed in shared], [times[seed].train_time_s for seed in shared]
    )


def _bytes_ratio(found: Mapping[str, Spread], reference: Mapping[str, Spread]) -> float | None:
    """Bytes per step relative to BF16's; None if BF16 did not run on the same topology, or bytes are
    unknown.
    """
    own, other = (figures.get("bytes_per_step_per_rank") for figures in (found, reference))
    return own.median / other.median if own and other and other.median else None
