"""A run's summary next to the definitions of its figures: rows are made up, and lack some."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from training_jobs import tiny_run

from gradwire.harness.comm.world.process_captured import CapturedBuckets
from gradwire.harness.record.summary import Summary
from gradwire.harness.timing.measure.metrics import METRICS
from gradwire.harness.trainer.steplog import LEVELS
from gradwire.harness.trainer.summarize import OBSERVED, RunTotals, summarize

PEERS = {"overlap_s", "wait_s", "osf"}
"""The figures of communication that is hidden, which one worker does not have."""

MEANS = [key for key, metric in METRICS.items() if metric.mean and not metric.observed]
NAMES = [*MEANS, *OBSERVED, *LEVELS, "vnmse", "tokens_per_s"]


def rows_of(rng: random.Random, count: int, share: float) -> list[dict[str, Any]]:
    """Rows of steps that have `share` of the figures; the first two are of measured steps."""
    rows = []
    for step in range(count):
        found = {key: rng.uniform(0.5, 2) if rng.random() < share else None for key in NAMES}
        usual = {"step_time_s": rng.uniform(1, 2), "measured": step < 2, "skipped": step == 3}
        rows.append({key: value for key, value in found.items() if value is not None or step % 2} | usual)
    return rows


@pytest.mark.parametrize("share", [0, 0.6, 1])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_summary_is_what_its_rows_come_to(workers: int, share: float) -> None:
    rng = random.Random(workers)
    rows = rows_of(rng, 9, share)
    config = tiny_run("cluster=virtual", f"cluster.workers={workers}", "measure.targets=[0.5,2]")
    accuracies = [0.25, 0.75, 0.4, 0.5]
    found = summarize(
        config.mapping(),
        config_hash="1",
        steps=rows,
        evaluations=[
            {"step": 3 * at, "train_time_s": 10.0 * at, "accuracy": value}
            for at, value in enumerate(accuracies)
        ],
        totals=RunTotals(
            metric="accuracy",
            clock="wall",
            wall_time_s=99.0,
            bytes_by_rank=[900 + rank for rank in range(workers)],
            bytes_by_phase={"reduce_scatter": 700},
            num_coordinates=100,
            gradients_sent=1.0,
            layout_hash="2",
            data={},
        ),
    )

    def known(key: str, *, timed: bool = True) -> list[float]:
        return [row[key] for row in rows[2 * timed :] if row.get(key) is not None]

    def mean(values: list[float]) -> float | None:
        return pytest.approx(fmean(values)) if values else None

    assert found.rounds_per_second == pytest.approx(1 / fmean(known("step_time_s")))
    for key in MEANS:
        assert found.figures[key] == (None if workers == 1 and key in PEERS else mean(known(key))), key
    for key in OBSERVED:
        assert found.figures.get(key) == mean(known(key)), key
    overlap_s, wait_s = found.figures["overlap_s"], found.figures["wait_s"]
    row = None if overlap_s is None or wait_s is None else pytest.approx(overlap_s / wait_s)
    assert found.figures["row"] == row
    assert found.vnmse_mean == mean(known("vnmse", timed=False))
    told = [each for each in rows[2:] if each.get("tokens_per_s") is not None]
    tokens = sum(each["tokens_per_s"] * each["step_time_s"] for each in told)
    seconds = sum(each["step_time_s"] for each in told)
    assert found.tokens_per_s == (pytest.approx(tokens / seconds) if told else None)
    whole = [each for each in rows if all(each.get(level) is not None for level in LEVELS)]
    levels = {level.split(".")[1]: mean([each[level] for each in whole]) for level in LEVELS}
    assert found.wire_bits_by_level == (levels if whole else None)
    assert found.spread.keys() == {"step_time_s", *(key for key in MEANS if key in found.spread)}
    for name, percent in (("p10", 10), ("p90", 90)):
        at = np.percentile(known("step_time_s"), percent)
        assert found.spread["step_time_s"][name] == pytest.approx(at)
    assert (found.skipped_steps, found.steps, found.workers) == (1, 9, workers)
    assert (found.final_metric, found.train_time_s, found.wall_time_s) == (0.5, 30.0, 99.0)
    assert found.tta == {
        "0.5": {"train_time_s": 10.0, "step": 3, "stays": False},
        "2": {"train_time_s": np.inf, "step": None, "stays": None},
    }


def summary_of(rows: Sequence[Mapping[str, Any]], captured: Mapping[str, Any] | None = None) -> Summary:
    config = tiny_run("cluster=virtual")
    return summarize(
        config.mapping(),
        config_hash="1",
        steps=rows,
        evaluations=[{"step": 0, "train_time_s": 1.0, "loss": 3.0}],
        totals=RunTotals(
            metric="loss",
            clock="wall",
            wall_time_s=1.0,
            bytes_by_rank=[0] * config.cluster.workers,
            bytes_by_phase={},
            num_coordinates=100,
            gradients_sent=1.0,
            layout_hash="2",
            data={},
            captured=captured,
        ),
    )


def test_captured_buckets_are_figures_of_the_run() -> None:
    rows = rows_of(random.Random(0), 3, 1)
    about = asdict(CapturedBuckets(buckets=4, captured=3, refused={"moves": 1}))
    figures = summary_of(rows, about).values()
    assert (figures["captured_buckets"], figures["activity/captured"]) == (3, 0.75)
    none = summary_of(rows, asdict(CapturedBuckets(2, 0, {"moves": 2}))).values()
    assert (none["captured_buckets"], none["activity/captured"]) == (0, 0)
    assert not {"captured_buckets", "activity/captured"} & summary_of(rows).values().keys()


def test_steps_that_are_all_measured_count() -> None:
    rows = rows_of(random.Random(0), 2, 1)
    found = summary_of(rows)
    assert found.rounds_per_second == pytest.approx(1 / fmean(row["step_time_s"] for row in rows))
