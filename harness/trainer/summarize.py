"""A run's rows to its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from omegaconf import DictConfig

from gradwire.harness.network.rates import link_rate
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.provenance import provenance
from gradwire.harness.record.summary import Summary
from gradwire.harness.timing.measure.accuracy import Evaluation, metric_mode, time_to_accuracy
from gradwire.harness.timing.measure.overlap import OF_GROUP, row_of, utilization
from gradwire.harness.timing.measure.wire import wire_bits
from gradwire.harness.trainer.steplog import PARTS

METRIC = "perplexity"


def summarize(
    config: DictConfig,
    *,
    config_hash: str,
    steps: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    clock: Literal["wall", "simulated"],
    wall_time_s: float,
    bytes_by_rank: list[int],
    bytes_by_phase: dict[str, int],
    num_coordinates: int,
    gradients_sent: float,
    layout_hash: str,
    data: Mapping[str, Any],
    attempts: Attempts | None = None,
) -> Summary:
    """The documented keys of `summary.json`; times per step leave out measured steps."""
    timed = [row for row in steps if not row["measured"]] or list(steps)
    errors = [row["vnmse"] for row in steps if row.get("vnmse") is not None]
    curve = [Evaluation(row["step"], row["train_time_s"], row[METRIC]) for row in evaluations]
    mean_step_s = _mean([row["step_time_s"] for row in timed])
    size = config.cluster.workers
    parts: dict[str, Any] = {
        part: _mean([row[part] for row in timed]) if config.measure.spans else None for part in PARTS
    }
    sent = wire_bits(sum(bytes_by_rank), gradients_sent, num_coordinates * len(steps))
    return Summary(
        metric=METRIC,
        final_metric=evaluations[-1][METRIC],
        tta={f"{target:g}": _tta(curve, target) for target in config.measure.targets},
        vnmse_mean=_mean(errors) if errors else None,
        clock=clock,
        train_time_s=evaluations[-1]["train_time_s"],
        wall_time_s=wall_time_s,
        rounds_per_second=1.0 / mean_step_s,
        **parts,
        bytes_sent_per_rank=bytes_by_rank,
        bytes_by_phase=bytes_by_phase,
        wire_bits_per_coordinate=sent,
        seed=config.seed,
        skipped_steps=sum(row["skipped"] for row in steps),
        steps=len(steps),
        workers=size,
        kernel_backend=config.kernels.name,
        config_hash=config_hash,
        **provenance(config),
        num_coordinates=num_coordinates,
        layout_hash=layout_hash,
        data=dict(data),
        resumed_after=[] if attempts is None else attempts.resumed_after,
        earlier_ends=[] if attempts is None else attempts.earlier_ends,
        **(_overlap(timed) if size > 1 else {}),
        utilization=_utilization(config, max(bytes_by_rank) / len(steps), mean_step_s) if sent else None,
    )


def _overlap(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over steps, and ROW of the means; nothing where spans were not recorded."""
    known = [row for row in rows if None not in (row.get(name) for name in OF_GROUP)]
    if not known:
        return {}
    overlap_s, wait_s, osf = (_mean([row[name] for row in known]) for name in ("overlap_s", "wait_s", "osf"))
    return {"overlap_s": overlap_s, "wait_s": wait_s, "row": row_of(overlap_s, wait_s), "osf": osf}


def _utilization(config: DictConfig, num_bytes: float, seconds: float) -> float | None:
    """How much of its link a rank uses that sends `num_bytes` in a step of `seconds`; None without a rate of
    its own."""
    rate = link_rate(config.network, config.cluster.workers)
    return None if rate is None else utilization(num_bytes, rate, seconds)


def _tta(curve: Sequence[Evaluation], target: float) -> dict[str, Any]:
    found = time_to_accuracy(curve, target, metric_mode(METRIC))
    return {"train_time_s": found.train_time_s, "step": found.step, "stays": found.stays}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
