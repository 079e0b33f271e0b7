"""Plots of one simulated training, and of a sweep of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from gradwire.harness.network.configured import common_text
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.style import Form, Hue, line_styles
from gradwire.harness.studies.simulate.compare import about, blocks_text, scheme_text
from gradwire.harness.studies.simulate.figures import sent_rows
from gradwire.harness.studies.simulate.study import SimulateSummary
from gradwire.harness.timing.measure.metrics import METRICS
from gradwire.harness.timing.simulate.rounds import BACKWARD, FORWARD, STAGE_ONE, STAGE_TWO, RoundRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROUNDS_SHOWN = 3
"""The number of worker 0's rounds that are plotted block by block."""

LANES = {FORWARD: "forward", BACKWARD: "backward", STAGE_ONE: "stage 1", STAGE_TWO: "stage 2"}

BLOCK_LOOKS: tuple[tuple[Hue, str], ...] = (
    ("blue", ""),
    ("orange", "////"),
    ("vermilion", "xxxx"),
    ("green", "\\\\\\\\"),
    ("purple", "++++"),
    ("sky", "----"),
)
"""The styles of blocks in forward order, repeated for further blocks."""

RATIOS: tuple[tuple[str, str, Hue, str], ...] = (
    ("q_ratio_first", "first stage", "blue", "-"),
    ("q_ratio", "both stages", "vermilion", "--"),
)

BYTES = 4
MB = 1e6


def training_plots(summary: SimulateSummary, rows: RoundRows) -> list[Plot | None]:
    """The plots of one training."""
    return [ratio_plot(summary), *_shown_rounds(summary, rows)]


def title_of(summary: SimulateSummary) -> str:
    """`aqgb · 4 blocks · 16 workers · modelled, aqgb, 2.5 Gbit/s, multicast`."""
    words = [scheme_text(summary), blocks_text(summary), f"{summary.workers} workers", summary.network_text]
    return " · ".join(words)


def ratio_plot(summary: SimulateSummary) -> Plot | None:
    """Q_ratio by round, and the rate that senders expect compared with a sender's share of a link (Figure
    9).
    """
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
    """The values at `points`, with NaN for unknown ones."""
    return [math.nan if (value := values[at]) is None else value for at in points]


def _shown_rounds(summary: SimulateSummary, rows: RoundRows) -> Iterator[Plot]:
    """Worker 0's blocks and its backlog in some rounds from the middle of the training."""
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
    summary: SimulateSummary, rows: RoundRows, shown: np.ndarray, window: tuple[float, float]
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


def _queue_plot(summary: SimulateSummary, rows: RoundRows, window: tuple[float, float]) -> Plot:
    """The backlog of worker 0's first stage, in bytes of float32: it grows when a block's gradient is ready,
    and shrinks while it is sent."""
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
    """Points (time, change, duration of the change before it) as a line of (time, sum); jumps become two
    points."""
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


PANELS = ("rounds", "utilization", "t_wait", "row")
"""The panels of Figures 10, 12 and 13."""

FEWEST = 3
"""The smallest number of rates, or of numbers of blocks, that make a line."""

IDEAL = "ideal"

Of = Callable[[SimulateSummary], float]


def plot_sweep(found: Sequence[SimulateSummary], folder: Path) -> list[Path]:
    """Writes the plots for which there are enough simulations; returns the files."""
    plots: list[Plot | None] = []
    changing = [one for one in found if one.network_settings["rate_changes"] and one.scheme == "aqgb"]
    if changing:
        plots.append(ratio_plot(changing[0]))
    lines = [*_over(found, _rate, "rates", "Gbit/s"), *_over(found, _blocks, "blocks", "number of blocks")]
    plots += lines or [_bars_plot(name, own) for name, own in _by_computation(found)]
    return write_plots([plot for plot in plots if plot is not None], folder, pdf=True)


def _rate(one: SimulateSummary) -> float:
    return one.rate_mbit / 1e3


def _blocks(one: SimulateSummary) -> float:
    return len(one.blocks)


def _over(found: Sequence[SimulateSummary], of: Of, name: str, label: str) -> list[Plot]:
    """A plot for each kind of compute times whose simulations differ in enough values of `of`."""
    by_times: dict[str, list[SimulateSummary]] = {}
    for one in found:
        by_times.setdefault(about(one)["compute times"], []).append(one)
    lines = {
        times: own
        for times, own in by_times.items()
        if len({of(one) for one in own if one.scheme != IDEAL}) >= FEWEST
    }
    return [
        _line_plot(f"{name}-{at}" if len(lines) > 1 else name, times, own, of, label)
        for at, (times, own) in enumerate(lines.items(), 1)
    ]


def _line_plot(name: str, title: str, found: Sequence[SimulateSummary], of: Of, label: str) -> Plot:
    """Medians over seeds, with a line for each scheme, and a horizontal line for training without any
    waiting."""
    names = [each for each in dict.fromkeys(map(scheme_text, found)) if each != IDEAL]
    styles = dict(zip(names, line_styles(names), strict=True))
    most = [one.rounds for one in found if one.scheme == IDEAL]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for axes, key in zip(panels, PANELS, strict=True):
            for scheme in names:
                own = [one for one in found if scheme_text(one) == scheme]
                points = [
                    (at, median([_number(one, key) for one in own if of(one) == at]))
                    for at in sorted(set(map(of, own)))
                ]
                axes.plot(*zip(*points, strict=True), **styles[scheme].drawn(form), label=scheme)
            if most and key == "rounds":
                axes.axhline(median(most), color=form.colors["grey"], ls=":", label=IDEAL)
            _label(axes, key)
        for axes in panels[-2:]:
            axes.set_xlabel(label)

    network = common_text(one.network_text for one in found)
    return Plot(name, f"simulated training · {network} · {title}", draw, (1.4, 1.4), columns=2)


def _by_computation(found: Sequence[SimulateSummary]) -> list[tuple[str, list[SimulateSummary]]]:
    """Simulations that differ only in the scheme and the seed, by a name for the plot."""
    groups: dict[str, list[SimulateSummary]] = {}
    for one in found:
        words = [text for key, text in about(one).items() if key != "scheme"]
        groups.setdefault(", ".join(words), []).append(one)
    return [(f"schemes-{at}", own) for at, own in enumerate(groups.values(), 1) if len(own) > 1]


def _bars_plot(name: str, found: Sequence[SimulateSummary]) -> Plot:
    names = list(dict.fromkeys(map(scheme_text, found)))
    styles = line_styles(names)

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for axes, key in zip(panels, PANELS, strict=True):
            heights = [
                median([_number(one, key) for one in found if scheme_text(one) == scheme]) for scheme in names
            ]
            axes.bar(names, heights, color=[form.colors[style.hue] for style in styles], width=0.6)
            axes.grid(visible=False, axis="x")
            _label(axes, key)
            axes.tick_params(axis="x", labelrotation=0 if len(names) < 5 else 60)

    words = [text for key, text in about(found[0]).items() if key in ("blocks", "compute times")]
    network = common_text(one.network_text for one in found)
    return Plot(name, " · ".join([network, *words]), draw, (1.4, 1.4), columns=2)


def _label(axes: Axes, key: str) -> None:
    axes.set_ylabel(METRICS[key].label)
    axes.set_ylim(bottom=0)


def _number(one: SimulateSummary, key: str) -> float:
    value = getattr(one, key)
    return float("nan") if value is None or value == float("inf") else float(value)
