"""Where one run's time and bytes go: the parts of its steps, and what it sent in each phase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.harness.record.runs import Run
from gradwire.harness.report.bar_rows import AXIS_HEIGHT, BAR_HEIGHT, filled, rows_of
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import PARTS, Form, phase_filling
from gradwire.harness.report.tables import number
from gradwire.harness.report.views import step_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BINS = 60


def step_plot(run: Run, heading: str) -> Plot | None:
    """The parts of a step over the run, each bar the mean over some steps; None without spans.

    Measured steps are left out, as in the summary, whose means the legend gives.
    """
    rows = timed_rows(run)
    if not rows or not run.done.has_breakdown:
        return None
    size = math.ceil(len(rows) / MAX_BINS)
    bins = [rows[start : start + size] for start in range(0, len(rows), size)]
    # A bar reaches to the next one, over the measured steps between them.
    known = run.done.values()
    edges = [chunk[0]["step"] for chunk in bins] + [rows[-1]["step"] + 1]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        axes, base = panels[0], [0.0] * len(bins)
        for key, filling in PARTS.items():
            means = [1e3 * fmean(row[key] for row in chunk) for chunk in bins]
            tops = [low + mean for low, mean in zip(base, means, strict=True)]
            label = f"{filling.label}: {number(1e3 * known[key], 3)} ms"
            axes.stairs(tops, edges, baseline=base, fill=True, **filled(filling, form), label=label)
            base = tops
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        step_axis(axes)
        axes.set_ylabel("time of a step [ms]")

    return Plot("breakdown", heading, draw)


def bytes_plot(run: Run, heading: str) -> Plot | None:
    """What a rank sends in a step, by phase; None where nothing was sent or counted."""
    summary = run.done
    sent = {phase: count for phase, count in summary.bytes_by_phase.items() if count}
    if not sent or not summary.has_bytes:
        return None
    fillings = [phase_filling(phase) for phase in sent]
    rows = rows_of([filling.label for filling in fillings])
    megabytes = [count / summary.steps / summary.workers / 1e6 for count in sent.values()]
    figures = [f"{number(size, 3)} ({size / sum(megabytes):.1%})" for size in megabytes]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for center, filling, size in zip(rows.centers, fillings, megabytes, strict=True):
            panels[0].barh(center, size, BAR_HEIGHT, **filled(filling, form))
        rows.finish(panels[0], megabytes, figures, rows.room(megabytes, figures))
        panels[0].set_xlabel("sent per step and rank [MB = 10⁶ bytes]", loc="right")

    return Plot("bytes", heading, draw, (AXIS_HEIGHT + rows.height,))


def timed_rows(run: Run) -> list[Mapping[str, Any]]:
    """The steps the breakdown is made of: all but the measured ones, unless all were; [] without spans."""
    rows = [row for row in run.steps if not row.get("measured")] or run.steps
    return [row for row in rows if all(row.get(key) is not None for key in PARTS)]
