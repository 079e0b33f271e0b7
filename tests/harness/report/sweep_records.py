"""Records of sweeps that were never run, for tests of their readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.report.frame import Value
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

MACHINE = {"processor": "A processor", "cores": 2, "gpus": [], "system": "Linux 6", "intra_op_threads": 1}


def cell(axes: Mapping[str, Any], seed: int = 0, **about: Any) -> CellRecord:
    """A finished cell, unless `about` says otherwise."""
    words = [*(f"{key}={value}" for key, value in axes.items() if value is not None), f"seed={seed}"]
    usual: dict[str, Any] = {
        "label": " ".join(words),
        "task": "train",
        "axes": dict(axes),
        "seed": seed,
        "run": "-".join(words),
        "id": "0123456789ab",
        "status": "done",
        "reason": "",
        "off_axes": {},
        "wall_time_s": 60.0,
        "metric": "perplexity",
        "kind": "emulated",
        "code_hash": "aaaa",
        "commit": "1234567890",
        "dirty": False,
        "machine": MACHINE,
        "computation": None,
        "workers": None,
        "network": None,
    }
    return CellRecord(**usual | about)


def record(
    axes: Sequence[str],
    rows: Sequence[tuple[Mapping[str, Any], int, Mapping[str, float]]],
    *,
    name: str = "made_up",
    size: str = "small",
    more: Sequence[CellRecord] = (),
    curves: Mapping[str, Sequence[tuple[int, float, float]]] | None = None,
    **about: Any,
) -> SweepRecord:
    """A record with a cell for each row (values of the axes, seed, figures by metric).

    `curves` has the evaluations of cells by label: step, clock, perplexity.
    """
    cells, values = [], []
    for own, seed, figures in rows:
        one = cell({axis: own.get(axis) for axis in axes}, seed, **about)
        cells.append(one)
        values += [Value(one.label, one.task, key, figure, seed=seed) for key, figure in figures.items()]
        for step, seconds, perplexity in (curves or {}).get(one.label, ()):
            usual = {"seed": seed, "step": step}
            values.append(Value(one.label, one.task, "train_time_s", seconds, kind="emulated", **usual))
            values.append(Value(one.label, one.task, "perplexity", perplexity, **usual))
    settings = {"train": {"topology.name": "ring", "cluster.workers": 4, "model.name": "llama1b"}}
    return SweepRecord(
        *(name, size, "A Paper Table 1", f"run.py sweeps={name} size={size}", list(axes), "embedded"),
        *(settings, [*cells, *more], "", tuple(values)),
        folder=f"{name}-{size}",
        overrides=[],
    )
