"""The tables of a run for wandb: plain rows that can be sent as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.record.runs import Run
from gradwire.harness.record.summary import Summary
from gradwire.harness.timing.measure.metrics import METRICS, PARTS

WandbTable = dict[str, list[Any]]
"""`columns` and `rows`."""

MOST_ROWS = 10_000
"""The largest number of rows of a table that wandb shows; longer curves are thinned out evenly."""


def tables(run: Run) -> dict[str, WandbTable]:
    """Tables by name: the curves and, once the run is done, the contents of its summary, without empty
    tables."""
    measured = [row for row in run.steps if row.get("vnmse") is not None]
    found = {
        "steps": curve(run.steps),
        "evals": curve(run.evals),
        "vnmse": curve([{"step": row["step"], "vnmse": row["vnmse"]} for row in measured]),
    }
    if run.summary is not None:
        found |= _of_summary(run.summary, run.network)
    return {name: table for name, table in found.items() if table["rows"]}


def curve(rows: Sequence[Mapping[str, Any]]) -> WandbTable:
    """The rows of a record as a table with a column for each key; None where a row lacks a key."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    shown = rows[:: math.ceil(len(rows) / MOST_ROWS) or 1]
    return {"columns": columns, "rows": [[row.get(key) for key in columns] for row in shown]}


def _of_summary(summary: Summary, network: str) -> dict[str, WandbTable]:
    phases, ranks = summary.bytes_by_phase.items(), enumerate(summary.bytes_sent_per_rank)
    return {
        "time_to_accuracy": _time_to_accuracy(summary, network),
        "breakdown": _breakdown(summary, network),
        "overlap": _overlap(summary, network),
        "bytes_by_phase": {"columns": ["phase", "bytes"], "rows": [list(item) for item in phases]},
        "bytes_by_rank": {"columns": ["rank", "bytes"], "rows": [list(item) for item in ranks]},
    }


def _time_to_accuracy(summary: Summary, network: str) -> WandbTable:
    """A row for each target; a missed target has an infinite time and no step."""
    rows = [
        [float(target), found["train_time_s"], found["step"], found["stays"], summary.clock, network]
        for target, found in summary.tta.items()
    ]
    return {"columns": ["target", "train_time_s", "step", "stays", "clock", "network"], "rows": rows}


def _breakdown(summary: Summary, network: str) -> WandbTable:
    """Seconds per step by part; empty if spans were not recorded."""
    known = summary.values()
    rows = [[METRICS[part].words, known[part], summary.clock, network] for part in PARTS if part in known]
    return {"columns": ["part", "seconds_per_step", "clock", "network"], "rows": rows}


def _overlap(summary: Summary, network: str) -> WandbTable:
    """AQGB's figures, with times in seconds per step; empty if they are not known."""
    known = summary.values().items()
    rows = [[key, value, summary.clock, network] for key, value in known if METRICS[key].section == "overlap"]
    return {"columns": ["figure", "value", "clock", "network"], "rows": rows}
