"""The table of metrics, and lists derived from it.

A new training metric is one entry of `TRAINING`, `TIMES`, `MACHINE`, `BYTES` or `ACTIVITY`, and the code
that computes it: `rank_figures` for metrics derived from a rank's spans, `StepWatch` for observations of a
process or its machine, `Codec.activity` for what codecs did, `trainer/steplog.py` or `trainer/summarize.py`
for others. A new metric of a study is a field of its record (`record/figures.py`), with the metric itself
or the key of an entry of `STUDIES`. Rows, summaries, comparisons, plots, wandb and the table in
docs/measurement.md all use the entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from gradwire.harness.timing.measure.metric import Kind, Metric
from gradwire.harness.timing.measure.study_metrics import STUDIES
from gradwire.harness.timing.measure.training_metrics import ACTIVITY, BYTES, MACHINE, TIMES, TRAINING

METRICS: dict[str, Metric] = {
    metric.key: metric for metric in (*TRAINING, *TIMES, *MACHINE, *BYTES, *ACTIVITY, *STUDIES)
}
"""All metrics by key, in the order in which records and tables show them."""


def in_words(metric: str) -> str:
    """The name of a run's metric in tables, plots and lines."""
    return METRICS[metric].words if metric in METRICS else metric


def keys(chosen: Callable[[Metric], object]) -> tuple[str, ...]:
    """The keys of the metrics for which `chosen` holds, in the table's order."""
    return tuple(key for key, metric in METRICS.items() if chosen(metric))


OBSERVED_DIGITS = 6
"""Digits after the point of observations in rows."""

PARTS = keys(lambda metric: metric.plot == "parts")
"""The parts of a step, which sum to it."""


def kind_of(cluster: str | None, network: str | None, *, share_device: bool = False) -> Kind:
    """The kind of a run's times, given the names of its cluster and network, and whether its ranks share a
    device."""
    if cluster == "virtual":
        return "modelled"
    return "emulated" if share_device or network in ("paced", "shaped") else "measured"


def of_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Combines the figures of all ranks of a step as `Metric.ranks` specifies, in the order of rank 0's keys.

    Of several slowest ranks, the one that waits least is used. A figure that a rank's spans do not give is
    NaN, and None in the result. Observations are combined over the ranks that have them; without any, the
    result lacks the key.
    """
    slowest = max(ranks, key=lambda own: (own["step_time_s"], -own["wait_s"]))
    row = dict[str, float | None]()
    for key in ranks[0]:
        metric, values = METRICS[key], [own[key] for own in ranks]
        if metric.observed:
            values = [value for value in values if not math.isnan(value)]
            found = (
                slowest[key]
                if metric.ranks == "slowest"
                else _REDUCE[metric.ranks or "max"](values or [math.nan])
            )
            if not math.isnan(found):
                row[key] = round(found, OBSERVED_DIGITS)
            continue
        value = slowest[key] if metric.ranks == "slowest" else _REDUCE[metric.ranks or "max"](values)
        row[key] = None if metric.spans and value != value else value
    return row


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


_REDUCE: Mapping[str, Callable[[Iterable[float]], float]] = {
    "mean": _mean,
    "max": max,
    "min": min,
    "sum": sum,
}
