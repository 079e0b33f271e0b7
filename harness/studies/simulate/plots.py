"""Plots of one simulated training, and of a sweep of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from gradwire.harness.network.configured import common_text
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.names import name_of
from gradwire.harness.report.series import (
    Area,
    Bars,
    Drawable,
    Panel,
    Rules,
    Series,
    Steps,
    View,
    series_plot,
)
from gradwire.harness.report.style import Filling, Hue, line_styles, plain
from gradwire.harness.report.views import (
    column_names,
    from_zero,
    like_first,
    no_grid,
    row_names,
    x_from,
    y_from,
)
from gradwire.harness.studies.simulate.compare import USUAL_FLOOR, about, blocks_text
from gradwire.harness.studies.simulate.figures import sent_rows
from gradwire.harness.studies.simulate.study import SimulateSummary
from gradwire.harness.timing.simulate.rounds import BACKWARD, FORWARD, STAGE_ONE, STAGE_TWO, RoundRows

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
    """The plots of one training run."""
    return [ratio_plot(summary), *_shown_rounds(summary, rows)]


def scheme_in_words(one: SimulateSummary) -> str:
    """The scheme as legends have it: `AQGB`, `4 bits`, `no compression`, `no waiting`."""
    if one.scheme == "fixed":
        return name_of("bits", one.bits)
    is_usual = one.scheme != "aqgb" or one.floor == USUAL_FLOOR
    return name_of("scheme", one.scheme) + ("" if is_usual else f", {name_of('floor', one.floor)}")


def title_of(summary: SimulateSummary) -> str:
    """`AQGB · 4 blocks · 16 workers · modelled, aqgb, 2.5 Gbit/s, multicast`."""
    words = [
        scheme_in_words(summary),
        blocks_text(summary),
        f"{summary.workers} workers",
        summary.network_text,
    ]
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
    ratios = [
        Series(at_s, _numbers(series[key], points), plain(hue, line), label, width=1.0)
        for key, label, hue, line in RATIOS
    ]
    share, changes = summary.rate_mbit / (summary.workers - 1), summary.phases
    edges = [phase["from_s"] for phase in changes] + [summary.seconds]
    shares = [share * phase["factor"] for phase in changes]
    rates: list[Drawable] = [
        Series(at_s, _numbers(series["rate_mbit"], points), plain("green"), "expected rate", width=1.0),
        Steps(edges, shares, plain("grey", ":"), f"link / {summary.workers - 1}", width=1.4),
    ]
    panels = [
        Panel(ratios, "bits over 32", views=[y_from(0, 1.05)]),
        Panel(rates, "rate [Mbit/s]", "time [s]", views=[from_zero, like_first]),
    ]
    title = f"{title_of(summary)} · ratio of bits over time"
    return series_plot("ratio", title, panels, (1.6, 1.2))


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
    lanes = [kind for kind in LANES if (rows.kinds[shown] == kind).any()]
    bars = []
    for block in range(len(summary.blocks)):
        own = [at for at in shown if rows.block[at] == block]
        places = [-lanes.index(rows.kinds[at]) for at in own]
        lengths, starts = [rows.end[at] - rows.start[at] for at in own], [rows.start[at] for at in own]
        filling = Filling(f"block {block + 1}", *BLOCK_LOOKS[block % len(BLOCK_LOOKS)])
        bars.append(Bars(places, lengths, filling, 0.7, starts, filling.label, 0.3))
    names = row_names([-at for at in range(len(lanes))], [LANES[kind] for kind in lanes])
    panel = Panel(bars, x_label="time [s]", views=[names, x_from(*window)])
    return series_plot("blocks", f"{title_of(summary)} · worker 0's blocks over time", [panel], (1.7,))


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

    inside = [at for at, time in enumerate(times) if window[0] <= time <= window[1]]
    x, y = [times[at] for at in inside], [queue[at] * BYTES / MB for at in inside]
    series: list[Drawable] = [Area(x, [0.0] * len(x), y, "sky", 1.0), Series(x, y, plain("blue"), width=0.9)]
    panel = Panel(series, "undelivered [MB]", "time [s]", views=[x_from(*window), from_zero])
    return series_plot("queue", f"{title_of(summary)} · worker 0's gradients to be sent", [panel], (1.6,))


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


PANELS = {
    "rounds": "rounds",
    "utilization": "share of links used",
    "t_wait": "waiting / computation",
    "row": "overlap / waiting",
}
"""The panels of Figures 10, 12 and 13, by their figure: T_wait is the third, ROW the last."""

COLUMNS = 2
"""Panels of a row."""

FEWEST = 3
"""The smallest number of rates, or of numbers of blocks, that make a line."""

IDEAL = name_of("scheme", "ideal")

Of = Callable[[SimulateSummary], float]


def plot_sweep(found: Sequence[SimulateSummary], folder: Path) -> list[Path]:
    """Writes the plots for which there are enough simulations; returns the files."""
    plots: list[Plot | None] = []
    changing = [one for one in found if one.network_settings["rate_changes"] and one.scheme == "aqgb"]
    if changing:
        plots.append(ratio_plot(changing[0]))
    lines = [*_over(found, _rate, "rates", "Gbit/s"), *_over(found, _blocks, "blocks", "number of blocks")]
    plots += lines or [_bars_plot(name, own) for name, own in _by_computation(found)]
    return write_plots(plots, folder, pdf=True)


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
        if len({of(one) for one in own if scheme_in_words(one) != IDEAL}) >= FEWEST
    }
    return [
        _line_plot(f"{name}-{at}" if len(lines) > 1 else name, times, own, of, label)
        for at, (times, own) in enumerate(lines.items(), 1)
    ]


def _line_plot(name: str, title: str, found: Sequence[SimulateSummary], of: Of, label: str) -> Plot:
    """Medians over seeds, with a line for each scheme, and a horizontal line for training without any
    waiting."""
    names = [each for each in dict.fromkeys(map(scheme_in_words, found)) if each != IDEAL]
    most = [one.rounds for one in found if scheme_in_words(one) == IDEAL]
    panels = []
    for index, key in enumerate(PANELS):
        series = list[Drawable]()
        for scheme, style in zip(names, line_styles(names), strict=True):
            own = [one for one in found if scheme_in_words(one) == scheme]
            points = [
                (at, median([_number(one, key) for one in own if of(one) == at]))
                for at in sorted(set(map(of, own)))
            ]
            series.append(Series.through(points, style, scheme))
        if most and key == "rounds":
            series.append(Rules([median(most)], label=IDEAL, level=True))
        panels.append(_panel(series, key, label if index >= len(PANELS) - COLUMNS else ""))
    network = common_text(one.network_text for one in found)
    heading = f"simulated training · {network} · {title}"
    return series_plot(name, heading, panels, (1.4, 1.4), columns=COLUMNS)


def _by_computation(found: Sequence[SimulateSummary]) -> list[tuple[str, list[SimulateSummary]]]:
    """Simulations that differ only in the scheme and the seed, by a name for the plot."""
    groups: dict[str, list[SimulateSummary]] = {}
    for one in found:
        words = [text for key, text in about(one).items() if key != "scheme"]
        groups.setdefault(", ".join(words), []).append(one)
    return [(f"schemes-{at}", own) for at, own in enumerate(groups.values(), 1) if len(own) > 1]


def _bars_plot(name: str, found: Sequence[SimulateSummary]) -> Plot:
    names = list(dict.fromkeys(map(scheme_in_words, found)))
    panels = []
    for key in PANELS:
        bars = []
        for at, (scheme, style) in enumerate(zip(names, line_styles(names), strict=True)):
            height = median([_number(one, key) for one in found if scheme_in_words(one) == scheme])
            bars.append(Bars([at], [height], Filling("", style.hue), 0.6, edge=0, upright=True))
        panels.append(_panel(bars, key, "", column_names(names), no_grid("x")))
    words = [text for key, text in about(found[0]).items() if key in ("blocks", "compute times")]
    network = common_text(one.network_text for one in found)
    return series_plot(name, " · ".join([network, *words]), panels, (1.4, 1.4), columns=COLUMNS)


def _panel(series: Sequence[Drawable], key: str, x_label: str, *views: View) -> Panel:
    return Panel(series, PANELS[key], x_label, views=[*views, from_zero])


def _number(one: SimulateSummary, key: str) -> float:
    value = getattr(one, key)
    return float("nan") if value is None or value == float("inf") else float(value)
