"""Plots of one run: its losses, its compression error, and where the time of its steps goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.plots import plot_vnmse, title, vnmse_curve
from gradwire.harness.report.runs import Run
from gradwire.harness.report.style import PARTS, drawing, plain_log_axis

MAX_BINS = 60


def plot_run(run: Run, folder: str | Path) -> list[Path]:
    """Everything one finished run can show; returns the files written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    heading = f"{run.codec} · {title(group_runs([run]))} · seed {run.seed}"
    files = [plot_loss(run, folder / "loss.png", heading)]
    if any(_timed(row) for row in run.steps):
        files.append(plot_step_times(run, folder / "breakdown.png", heading))
    if vnmse_curve(run):
        files.append(plot_vnmse(group_runs([run]), folder / "vnmse.png"))
    return files


def plot_loss(run: Run, path: Path, heading: str) -> Path:
    """Training and evaluation loss against the training clock."""
    training, evaluated = _finite(run.steps, "loss"), _finite(run.evals, "loss")
    with drawing(path, heading) as (axes,):
        axes.plot(*training, color="#56B4E9", lw=1.0, label="training")
        axes.plot(*evaluated, color="black", lw=1.2, ls="--", marker="o", ms=4, label="evaluation")
        plain_log_axis(axes, training[1] + evaluated[1])
        axes.set_xlabel(f"training clock [s] ({run.clock})")
        axes.set_ylabel("loss [nats per token]")
    return path


def plot_step_times(run: Run, path: Path, heading: str) -> Path:
    """The parts of a step over the run, each bar the mean over some steps; measured steps are left out."""
    rows = [row for row in run.steps if _timed(row)]
    size = math.ceil(len(rows) / MAX_BINS)
    bins = [rows[start : start + size] for start in range(0, len(rows), size)]
    edges = [chunk[0]["step"] for chunk in bins] + [rows[-1]["step"] + 1]
    # A bar reaches to the next one, over the measured steps between them.
    widths = [after - before for before, after in pairwise(edges)]
    bottom = [0.0] * len(bins)
    with drawing(path, heading) as (axes,):
        for key, (name, color, hatch) in PARTS.items():
            heights = [1e3 * fmean(row[key] for row in chunk) for chunk in bins]
            look: dict[str, Any] = {
                "label": name,
                "color": color,
                "hatch": hatch,
                "edgecolor": "white",
                "linewidth": 0.0,
            }
            axes.bar(edges[:-1], heights, widths, bottom, align="edge", **look)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.margins(x=0)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("training step")
        axes.set_ylabel(f"time of a step [ms] ({run.clock} clock)")
    return path


def _timed(row: Mapping[str, Any]) -> bool:
    """Whether a step counts for the breakdown and has one."""
    return not row.get("measured") and all(row.get(key) is not None for key in PARTS)


def _finite(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    known = [row for row in rows if row.get(key) is not None and math.isfinite(row[key])]
    return [row["train_time_s"] for row in known], [row[key] for row in known]
