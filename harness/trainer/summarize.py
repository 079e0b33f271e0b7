"""Computes a run's summary from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.harness.network.configured import link_rate
from gradwire.harness.network.settings import recorded_network
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.provenance import provenance
from gradwire.harness.record.summary import PERCENTILES, SPREAD, Clock, Summary
from gradwire.harness.timing.measure.accuracy import Evaluation, metric_mode, time_to_accuracy
from gradwire.harness.timing.measure.metrics import METRICS, keys, kind_of
from gradwire.harness.timing.measure.step_figures import row_of, utilization, wire_bits
from gradwire.harness.timing.measure.training_metrics import ACTIVITY, ACTIVITY_PREFIX
from gradwire.harness.timing.trace.step import NOT_ENCODED
from gradwire.harness.trainer.steplog import LEVELS

OBSERVED = keys(lambda metric: metric.observed and metric.mean)
"""The metrics that are observed step by step."""


@dataclass(frozen=True, kw_only=True)
class RunTotals:
    """Facts of a whole run that no row has, and its summary needs."""

    metric: str  # the one that the run is judged by
    clock: Clock
    wall_time_s: float
    bytes_by_rank: list[int]
    bytes_by_phase: dict[str, int]
    num_coordinates: int
    gradients_sent: float  # encoded gradients that a synchronization sends
    layout_hash: str
    data: Mapping[str, Any]
    attempts: Attempts | None = None
    profile: Mapping[str, Any] | None = None  # what `calibration.profile_in_summary` says
    workers_per_machine: int | None = None
    captured: Mapping[str, Any] | None = None  # `CapturedBuckets` of rank 0


def summarize(
    settings: Mapping[str, Any],
    config_hash: str,
    steps: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    totals: RunTotals,
) -> Summary:
    """The documented keys of `summary.json`; measured steps are excluded from times per step.

    `settings` are the run's settings as in `config.yaml`, `steps` and `evaluations` its rows.
    """
    metric, by_rank, by_phase = totals.metric, totals.bytes_by_rank, totals.bytes_by_phase
    attempts, per_machine = totals.attempts, totals.workers_per_machine
    size, network = settings["cluster"]["workers"], recorded_network(settings["network"])
    timed = [row for row in steps if not row["measured"]] or list(steps)
    errors = [row["vnmse"] for row in steps if row.get("vnmse") is not None]
    curve = [Evaluation(row["step"], row["train_time_s"], row[metric]) for row in evaluations]
    mean_step_s = _mean([row["step_time_s"] for row in timed])
    encoded = sum(by_rank) - sum(by_phase.get(phase, 0) for phase in NOT_ENCODED)
    sent = wire_bits(encoded, totals.gradients_sent, totals.num_coordinates * len(steps))
    rate = link_rate(network, size) if sent else None
    used = None if rate is None else utilization(max(by_rank) / len(steps), rate, mean_step_s)
    return Summary(
        metric=metric,
        final_metric=evaluations[-1][metric],
        tta={f"{target:g}": _tta(curve, target, metric) for target in settings["measure"]["targets"]},
        vnmse_mean=_mean(errors) if errors else None,
        clock=totals.clock,
        kind=kind_of(
            settings["cluster"]["name"],
            network.name,
            share_device=settings["cluster"].get("share_device") is True,
        ),
        train_time_s=evaluations[-1]["train_time_s"],
        wall_time_s=totals.wall_time_s,
        rounds_per_second=1.0 / mean_step_s,
        tokens_per_s=_tokens_per_s(timed),
        figures=_figures(timed, size)
        | {"utilization": used}
        | _of_machine(timed, size // (per_machine or size))
        | _captured(totals.captured)
        | _activity(steps, totals.captured),
        spread=_spread(timed),
        bytes_sent_per_rank=by_rank,
        bytes_by_phase=by_phase,
        wire_bits_per_coordinate=sent,
        wire_bits_by_level=_by_level(steps),
        seed=settings["seed"],
        skipped_steps=sum(row["skipped"] for row in steps),
        steps=len(steps),
        workers=size,
        kernel_backend=settings["kernels"]["name"],
        config_hash=config_hash,
        **provenance(settings),
        num_coordinates=totals.num_coordinates,
        layout_hash=totals.layout_hash,
        data=dict(totals.data),
        workers_per_machine=per_machine,
        resumed_after=[] if attempts is None else attempts.resumed_after,
        earlier_ends=[] if attempts is None else attempts.earlier_ends,
        profile=None if totals.profile is None else dict(totals.profile),
        captured=None if totals.captured is None else dict(totals.captured),
    )


def _tokens_per_s(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over time; None if no step has this figure."""
    known = [row for row in rows if row.get("tokens_per_s") is not None]
    if not known:
        return None
    tokens = sum(float(row["tokens_per_s"] * row["step_time_s"]) for row in known)
    return tokens / sum(float(row["step_time_s"]) for row in known)


def _by_level(rows: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Means over all steps; None on a single node, and if the bytes are not counted."""
    known = [row for row in rows if all(row.get(level) is not None for level in LEVELS)]
    if not known:
        return None
    return {level.rpartition(".")[2]: _mean([row[level] for row in known]) for level in LEVELS}


def _figures(rows: Sequence[Mapping[str, Any]], size: int) -> dict[str, float | None]:
    """Means over steps of how ranks spend their time, and the ROW of these means; None without spans."""
    found = dict[str, float | None]()
    for key, metric in METRICS.items():
        if metric.mean and not metric.observed:
            known = [row[key] for row in rows if row.get(key) is not None]
            found[key] = _mean(known) if known and (size > 1 or not metric.peers) else None
    overlap_s, wait_s = found["overlap_s"], found["wait_s"]
    found["row"] = None if overlap_s is None or wait_s is None else row_of(overlap_s, wait_s)
    return found


def _of_machine(rows: Sequence[Mapping[str, Any]], machines: int) -> dict[str, float | None]:
    """The known observations of the machine: means, and ratios of means. The workers are spread evenly over
    the machines."""
    known = {key: [row[key] for row in rows if row.get(key) is not None] for key in OBSERVED}
    found: dict[str, float | None] = {key: _mean(values) for key, values in known.items() if values}
    computed = [row for row in rows if row.get("compute_cpu_s") is not None and row.get("compute_s")]
    if computed:
        found["compute_cpu_share"] = _mean([row["compute_cpu_s"] for row in computed]) / _mean(
            [row["compute_s"] for row in computed]
        )
    busy, own_s = found.get("cpu_busy"), found.get("worker_cpu_s")
    if busy is not None and own_s is not None:
        own = own_s / machines / _mean([row["step_time_s"] for row in rows])
        found["others_cpus"] = max(0.0, busy - own)
    return found


def _captured(about: Mapping[str, Any] | None) -> dict[str, float | None]:
    """The number of a step's buckets that are captured; empty where none can be."""
    return {"captured_buckets": float(about["captured"])} if about and about["buckets"] else {}


def _activity(
    rows: Sequence[Mapping[str, Any]], captured: Mapping[str, Any] | None
) -> dict[str, float | None]:
    """The known means over steps of what the codec's mechanism did, and the share of captured buckets."""
    found = dict[str, float | None]()
    for metric in ACTIVITY:
        known = [row[metric.key] for row in rows if row.get(metric.key) is not None]
        if known:
            found[metric.key] = _mean(known)
    if captured is not None and captured.get("buckets"):
        found[f"{ACTIVITY_PREFIX}captured"] = captured["captured"] / captured["buckets"]
    return found


def _spread(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Percentiles over steps of the times that also have means."""
    found = dict[str, dict[str, float]]()
    for key in SPREAD:
        known = [row[key] for row in rows if row.get(key) is not None]
        if known:
            percentiles = np.quantile(known, list(PERCENTILES.values())).tolist()
            found[key] = dict(zip(PERCENTILES, percentiles, strict=True))
    return found


def _tta(curve: Sequence[Evaluation], target: float, metric: str) -> dict[str, Any]:
    found = time_to_accuracy(curve, target, metric_mode(metric))
    return {"train_time_s": found.train_time_s, "step": found.step, "stays": found.stays}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
