"""Limits and scales of axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradwire.harness.report.figures import MAX_TICKS
from gradwire.harness.report.group_rows import group_targets
from gradwire.harness.report.groups import Group
from gradwire.harness.report.series import STEPS, View
from gradwire.harness.report.style import Form

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HEADING_CHARACTERS = 45
LABEL_GAP = 0.09
"""The height of a line of letters relative to the height of an axis."""


def highest_shown(groups: Sequence[Group]) -> float:
    """Twice the worst value at the beginning of any run: a run that exceeds it has diverged."""
    curves = [group.median_curve(group.done_metric) for group in groups]
    return 2 * max((curve[0].metric for curve in curves if curve), default=math.inf)


def limit_view(axes: Axes, groups: Sequence[Group]) -> None:
    """Limits the view to values near those at the beginning, so that a diverged run does not hide the
    rest.
    """
    curves = [group.median_curve(groups[0].done_metric) for group in groups]
    values = [point.metric for curve in curves for point in curve]
    highest = highest_shown(groups)
    shown = [value for value in values if value <= highest or groups[0].mode == "max"]
    if groups[0].mode == "min":
        plain_log_axis(axes, shown)
    bottom, top = axes.get_ylim()
    if shown and groups[0].mode == "min" and top > highest:
        axes.set_ylim(max(bottom, min(shown) - 0.2 * abs(min(shown))), highest)


def zoom_view(axes: Axes, groups: Sequence[Group], form: Form) -> None:
    """Limits the view to the range in which the better runs end, and marks the targets set by the BF16
    runs.
    """
    metric = groups[0].done_metric
    curves = [group.median_curve(metric) for group in groups]
    finals = [curve[-1].metric for curve in curves if curve]
    leader = (min if groups[0].mode == "min" else max)(finals, default=0.0)
    # A diverged run must not compress the scale for all others.
    finals = [final for final in finals if abs(final - leader) <= 0.1 * abs(leader)]
    if not finals:
        return
    heading, targets = _targets(groups)
    best, worst = min(finals + list(targets.values())), max(finals + list(targets.values()))
    margin = 0.15 * (worst - best) or 0.05 * abs(best) or 0.05
    axes.set_ylim(best - margin, worst + margin)
    inside = [p.train_time_s for curve in curves for p in curve if best <= p.metric <= worst]
    if inside:
        span = max(max(inside) - min(inside), 0.2 * max(inside))
        axes.set_xlim(left=min(inside) - 0.1 * span)
    _mark_targets(axes, targets, form)
    axes.set_title(textwrap.fill(heading, HEADING_CHARACTERS))


def _mark_targets(axes: Axes, targets: Mapping[float, float], form: Form) -> None:
    """A dotted line at each target and its factor to the right, moved up where two would overlap."""
    low, high = axes.get_ylim()
    at = -math.inf
    for factor, target in sorted(targets.items(), key=lambda item: item[1]):
        axes.axhline(target, color=form.colors["grey"], lw=0.8, ls=(0, (1, 2)))
        at = max((target - low) / (high - low), at + LABEL_GAP)
        look: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": 7, "va": "center"}
        axes.annotate(f" ×{factor:g}", (1.0, at), **look)


def step_axis(axes: Axes) -> None:
    """An x axis of whole steps."""
    axes.set_xlabel(STEPS)
    axes.locator_params(axis="x", integer=True)


def plain_log_axis(axes: Axes, values: Sequence[float], ratio: float = 4.0) -> None:
    """A logarithmic y axis with plain numbers, where positive values span more than `ratio`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not values or min(values) <= 0 or max(values) / min(values) < ratio:
        return
    axes.set_yscale("log")
    span = max(values) / min(values)
    ticks = (1.0, 2.0, 3.0, 5.0) if span < 30 else (1.0, 3.0) if span < 1000 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def log_axis(axes: Axes) -> None:
    """A logarithmic y axis labelled in powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 30 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: scientific(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def plain_log(values: Sequence[float], ratio: float = 4.0) -> View:
    """`plain_log_axis` as a view."""
    return lambda axes, _: plain_log_axis(axes, values, ratio)


def log_y(axes: Axes, form: Form) -> None:
    """`log_axis` as a view."""
    log_axis(axes)


def log_x_axis(axes: Axes) -> None:
    """A logarithmic x axis with few ticks, labelled in powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 30 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=MAX_TICKS + 2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: scientific(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def ticks_at(axes: Axes, values: Sequence[float], *, doubling: bool = False) -> None:
    """A tick only at each of the values; with `doubling` 2, 4 and 8 are equally far apart."""
    if doubling:
        axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.minorticks_off()


def scientific(value: float) -> str:
    """A tick of a logarithmic axis: 10⁻³, 2×10⁻³ (characters cost less than typeset formulas)."""
    factor, exponent = f"{value:.0e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if factor == "1" else f"{factor}×{power}"


def _targets(groups: Sequence[Group]) -> tuple[str, dict[float, float]]:
    """The heading of a run's end, and the targets of the first baseline by factor; none if it diverged."""
    heading, baselines = "near the end", [group for group in groups if group.is_baseline]
    if not baselines:
        return heading, {}
    try:
        targets = group_targets(baselines[0])
    except ValueError:
        return heading, {}
    whose = f" of {baselines[0].label}" if len(baselines) > 1 else ""
    return f"{heading}; dotted: the targets{whose}", targets
