"""Time to accuracy of a comparison (DynamiQ Fig. 4): a panel for each target, a bar for each group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradwire.harness.report.bar_rows import AXIS_HEIGHT, BAR_HEIGHT, LINE_HEIGHT, group_rows
from gradwire.harness.report.busy_times import NO_STEPS, CommonSteps
from gradwire.harness.report.curve_plots import Styles, clock_label
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.group_rows import TargetRow, against_baseline
from gradwire.harness.report.groups import Group, title
from gradwire.harness.report.series import Bars, Drawable, Series, Whiskers, series_plot
from gradwire.harness.report.style import Filling, LineStyle
from gradwire.harness.report.tables import NOT_REACHED, number
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import in_words

HEADING_HEIGHT = 0.28  # inches of a panel's heading and the gap above it

DIAMOND = LineStyle("ink", "none", "D", hollow=True)
"""The mark of a time with the common computation."""


def tta_plot(
    groups: Sequence[Group], styles: Styles, name: str, common: CommonSteps = NO_STEPS
) -> Plot | None:
    """Median and range of the times to each target, with the medians for `common` computation times; None
    without a baseline that sets targets."""
    by_group = {group.label: against_baseline(group, groups, common.seconds).targets for group in groups}
    groups = [group for group in groups if by_group[group.label]]
    if not groups:
        return None
    rows = group_rows(groups)
    # The loosest target first.
    by_target = list(zip(*(by_group[group.label] for group in groups), strict=True))
    ends = [[_end(row.train_time_s) for row in target] for target in by_target]
    figures = [list(map(_reached, target, groups)) for target in by_target]
    right = max(map(rows.room, ends, figures))
    diamonds = "" if common.how is None else f"\n◇ with the common computation ({common.how})"
    panels = []
    for target, own_ends, texts in zip(by_target, ends, figures, strict=True):
        series = [
            drawn
            for center, row, group in zip(rows.centers, target, groups, strict=True)
            for drawn in _time(center, row, styles[group.label])
        ]
        panel = rows.panel(series, own_ends, texts, "", right)
        panels.append(replace(panel, title=_heading(target, groups)))
    panels[-1] = replace(panels[-1], x_label=clock_label(groups[0].clock) + diamonds)
    height = HEADING_HEIGHT + rows.height + (AXIS_HEIGHT + LINE_HEIGHT * bool(diamonds)) / len(by_target)
    shown = "median and range" + "; (k/n): k got there" * any("(" in text for row in figures for text in row)
    return series_plot(name, title(groups, shown), panels, (height,) * len(panels), ticks="last")


def _time(center: float, row: TargetRow, style: LineStyle) -> Iterator[Drawable]:
    """A bar up to the median and the range of the seeds, none for a group that missed; a diamond at the time
    with the common computation."""
    time = row.train_time_s
    if math.isfinite(time.median):
        yield Bars([center], [time.median], Filling("", style.hue), BAR_HEIGHT, edge=0)
        if time.low < time.high:
            yield Whiskers([center], [time.low], [_end(time)])
    if row.common_s is not None and math.isfinite(row.common_s.median):
        yield Series([row.common_s.median], [center], DIAMOND, size=4, edge=0.8)


def _end(time: Spread) -> float:
    """The right end of a time's bar and range; a seed that missed the target adds nothing."""
    return max((value for value in (time.median, time.high) if math.isfinite(value)), default=0.0)


def _reached(row: TargetRow, group: Group) -> str:
    """The median time, or that there is none; how many seeds reached the target if not all did."""
    time = row.train_time_s.median
    text = number(time, 3) if math.isfinite(time) else NOT_REACHED
    return f"{text} ({row.reached}/{group.num_seeds})" if 0 < row.reached < group.num_seeds else text


def _heading(rows: Sequence[TargetRow], groups: Sequence[Group]) -> str:
    """The target, with its value if it is the same for all groups."""
    metric, factor = in_words(groups[0].done_metric), f"×{rows[0].factor:g}"
    if len({row.target for row in rows}) > 1:
        return f"{factor} the baseline's {metric}"
    sign = "≤" if groups[0].mode == "min" else "≥"
    return f"{metric} {sign} {number(rows[0].target)} ({factor})"
