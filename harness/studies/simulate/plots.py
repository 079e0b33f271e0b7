"""Pictures of one simulated training: ratios over time, what is undelivered, and blocks over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.style import Form, Hue
from gradwire.harness.studies.simulate.compare import blocks_text, scheme_text
from gradwire.harness.studies.simulate.figures import sent_rows
from gradwire.harness.studies.simulate.summary import SimulateSummary
from gradwire.harness.timing.simulate.rounds import BACKWARD, FORWARD, STAGE_ONE, STAGE_TWO, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDS_SHOWN = 3
"""How many of worker 0's rounds are shown block by block."""

LANES = {FORWARD: "forward", BACKWARD: "backward", STAGE_ONE: "stage 1", STAGE_TWO: "stage 2"}

BLOCK_LOOKS: tuple[tuple[Hue, str], ...] = (
    ("blue", ""),
    ("orange", "////"),
    ("vermilion", "xxxx"),
    ("green", "\\\\\\\\"),
    ("purple", "++++"),
    ("sky", "----"),
)
"""The looks of blocks in forward order; further ones begin anew."""

RATIOS: tuple[tuple[str, str, Hue, str], ...] = (
    ("q_ratio_first", "first stage", "blue", "-"),
    ("q_ratio", "both stages", "vermilion", "--"),
)

BYTES = 4
MB = 1e6


def plot_training(summary: SimulateSummary, rows: Rows, folder: Path) -> list[Path]:
    """Writes the pictures; returns the files."""
    plots = [ratio_plot(summary), *_shown_rounds(summary, rows)]
    return write_plots([plot for plot in plots if plot is not None], folder)


def title_of(summary: SimulateSummary) -> str:
    """`aqgb · 4 blocks · 16 workers · modelled, aqgb, 2.5 Gbit/s, multicast`."""
    words = [scheme_text(summary), blocks_text(summary), f"{summary.workers} workers", summary.network_text]
    return " · ".join(words)


def ratio_plot(summary: SimulateSummary) -> Plot | None:
    """Q_ratio by round, and the rate that senders expect beside a sender's share of a link (Figure 9)."""
    series = summary.series
    points = [at for at, ratio in enumerate(series.get("q_ratio", ())) if ratio is not None]
    if not points:
        return None
    at_s = _numbers(series["end_s"], points)

    def draw(panels: Sequence[Axes], form: Form) -> None:
        above, below = panels
        for key, label, hue, line in RATIOS:
            above.plot(
                at_s, _numbers(series[key], points), color=form.colors[hue], ls=line, lw=1.0, label=label
            )
        above.set_ylabel("Q_ratio")
        above.set_ylim(0, 1.05)
        rates = _numbers(series["rate_mbit"], points)
        below.plot(at_s, rates, color=form.colors["green"], lw=1.0, label="expected rate")
        share, changes = summary.rate_mbit / (summary.workers - 1), summary.phases
        steps_s = [phase["from_s"] for phase in changes] + [summary.seconds]
        shares = [share * phase["factor"] for phase in changes]
        below.step(
            steps_s,
            [*shares, shares[-1]],
            where="post",
            color=form.colors["grey"],
            ls=":",
            label=f"link / {summary.workers - 1}",
        )
        below.set_ylabel("Mbit/s")
        below.set_ylim(bottom=0)
        below.set_xlabel("time [s]")
        below.set_xlim(above.get_xlim())

    return Plot("ratio", f"{title_of(summary)} · Q_ratio over time", draw, (1.6, 1.2))


def _numbers(values: Sequence[float | None], points: Sequence[int]) -> list[float]:
    """Those at `points`, NaN for what is not known."""
    return [math.nan if (value := values[at]) is None else value for at in points]


def _shown_rounds(summary: SimulateSummary, rows: Rows) -> Iterator[Plot]:
    """Worker 0's blocks and what it has not delivered, in some rounds from the middle of the training."""
    middle = max(0, summary.rounds // 2 - 1)
    mine = (rows.worker == 0) & ~np.isnan(rows.end)
    begins = rows.start[mine & (rows.kinds == BACKWARD) & (rows.block == len(summary.blocks) - 1)]
    if len(begins) < middle + 2:
        return
    window = (float(begins[middle]), float(begins[min(len(begins) - 1, middle + ROUNDS_SHOWN)]))
    shown = np.flatnonzero(mine & (rows.end > window[0]) & (rows.start < window[1]))
    yield _blocks_plot(summary, rows, shown, window)
    if sent_rows(rows).any():
        yield _queue_plot(summary, rows, window)


def _blocks_plot(
    summary: SimulateSummary, rows: Rows, shown: np.ndarray, window: tuple[float, float]
) -> Plot:
    def draw(panels: Sequence[Axes], form: Form) -> None:
        (axes,) = panels
        lanes = [kind for kind in LANES if (rows.kinds[shown] == kind).any()]
        for block in range(len(summary.blocks)):
            hue, hatch = BLOCK_LOOKS[block % len(BLOCK_LOOKS)]
            own = [at for at in shown if rows.block[at] == block]
            axes.barh(
                [-lanes.index(rows.kinds[at]) for at in own],
                [rows.end[at] - rows.start[at] for at in own],
                left=[rows.start[at] for at in own],
                height=0.7,
                color=form.colors[hue],
                edgecolor=form.ground,
                linewidth=0.3,
                hatch=hatch,
                label=f"block {block + 1}",
            )
        axes.set_yticks([-at for at in range(len(lanes))], [LANES[kind] for kind in lanes])
        axes.grid(visible=False, axis="y")
        axes.set_xlim(window)
        axes.set_xlabel("time [s]")

    return Plot("blocks", f"{title_of(summary)} · worker 0's blocks over time", draw, (1.7,))


def _queue_plot(summary: SimulateSummary, rows: Rows, window: tuple[float, float]) -> Plot:
    """What worker 0's first stage has not delivered, in bytes of float32: it grows as a block's gradient is
    there, and shrinks while it is sent."""
    points = [
        (float(rows.end[at]), float(summary.blocks[rows.block[at]][0]), 0.0)
        for at in np.flatnonzero((rows.worker == 0) & (rows.kinds == BACKWARD) & ~np.isnan(rows.end))
    ]
    points += [
        (float(rows.end[at]), -float(rows.values_sent[at]), float(rows.end[at] - rows.start[at]))
        for at in np.flatnonzero((rows.worker == 0) & (rows.kinds == STAGE_ONE) & ~np.isnan(rows.end))
    ]
    times, queue = _queue(points)

    def draw(panels: Sequence[Axes], form: Form) -> None:
        (axes,) = panels
        inside = [at for at, time in enumerate(times) if window[0] <= time <= window[1]]
        x, y = [times[at] for at in inside], [queue[at] * BYTES / MB for at in inside]
        axes.fill_between(x, y, color=form.colors["sky"], lw=0)
        axes.plot(x, y, color=form.colors["blue"], lw=0.9)
        axes.set_xlim(window)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("undelivered [MB]")
        axes.set_xlabel("time [s]")

    return Plot("queue", f"{title_of(summary)} · worker 0's gradients to be sent", draw, (1.6,))


def _queue(points: Sequence[tuple[float, float, float]]) -> tuple[list[float], list[float]]:
    """(time, change, over how many seconds before it) as a line of (time, sum): jumps as two points."""
    slopes: list[tuple[float, float, float]] = []  # time, jump, change of slope
    for time, change, over in points:
        if over > 0:
            slopes += [(time - over, 0.0, change / over), (time, 0.0, -change / over)]
        else:
            slopes.append((time, change, 0.0))
    times, sums, now, total, slope = [0.0], [0.0], 0.0, 0.0, 0.0
    for time, jump, bend in sorted(slopes, key=lambda each: each[0]):
        total += slope * (time - now)
        times.append(time)
        sums.append(total)
        now, total, slope = time, total + jump, slope + bend
        times.append(time)
        sums.append(total)
    return times, sums
