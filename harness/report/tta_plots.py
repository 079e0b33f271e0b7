"""Time to accuracy of a comparison (DynamiQ Fig. 4): a panel for each target, a bar for each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradwire.harness.report.bar_rows import AXIS_HEIGHT, BAR_HEIGHT, LINE_HEIGHT, draw_range, group_rows
from gradwire.harness.report.busy_times import NO_STEPS, CommonSteps
from gradwire.harness.report.curve_plots import Styles, clock_label
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.group_rows import TargetRow, against_baseline
from gradwire.harness.report.groups import Group, title
from gradwire.harness.report.style import Form, LineStyle
from gradwire.harness.report.tables import NOT_REACHED, number
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADING_HEIGHT = 0.28  # inches of a panel's heading and the gap above it


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

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for index, axes in enumerate(panels):
            for center, row, group in zip(rows.centers, by_target[index], groups, strict=True):
                _draw_time(axes, center, row.train_time_s, form, styles[group.label])
                if row.common_s is not None and math.isfinite(row.common_s.median):
                    look: dict[str, Any] = {
                        "marker": "D",
                        "ms": 4,
                        "mfc": form.ground,
                        "mec": form.colors["ink"],
                        "mew": 0.8,
                    }
                    axes.plot([row.common_s.median], [center], ls="none", **look)
            rows.finish(axes, ends[index], figures[index], right)
            axes.set_title(_heading(by_target[index], groups), loc="right")
            axes.tick_params(labelbottom=axes is panels[-1])
        panels[-1].set_xlabel(clock_label(groups[0].clock) + diamonds, loc="right")

    diamonds = "" if common.how is None else f"\n◇ with the common computation ({common.how})"
    height = HEADING_HEIGHT + rows.height + (AXIS_HEIGHT + LINE_HEIGHT * bool(diamonds)) / len(by_target)
    shown = "median and range" + "; (k/n): k got there" * any("(" in text for row in figures for text in row)
    return Plot(name, title(groups, shown), draw, (height,) * len(by_target))


def _draw_time(axes: Axes, center: float, time: Spread, form: Form, style: LineStyle) -> None:
    """A bar up to the median and the range of the seeds; a group that missed has none."""
    if math.isfinite(time.median):
        axes.barh(center, time.median, BAR_HEIGHT, color=form.colors[style.hue])
        if time.low < time.high:
            draw_range(axes, center, time.low, _end(time), form)


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
