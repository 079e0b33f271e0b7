"""Views of panels: scales, limits and ticks of their axes, as `Panel.views` takes them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gradwire.harness.report.figures import MAX_TICKS
from gradwire.harness.report.group_rows import group_targets
from gradwire.harness.report.groups import Group
from gradwire.harness.report.series import Rules, View
from gradwire.harness.report.style import Form

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HEADING_CHARACTERS = 45
MANY_NAMES = 5
LABEL_GAP = 0.09
"""The height of a line of letters relative to the height of an axis."""


def highest_shown(groups: Sequence[Group]) -> float:
    """Twice the worst value at the beginning of any run: a run that exceeds it has diverged."""
    curves = [group.curves.median for group in groups]
    return 2 * max((curve[0].metric for curve in curves if curve), default=math.inf)


def without_diverged(groups: Sequence[Group]) -> View:
    """All but what lies far above where the runs began: one that diverged must not hide the rest."""
    highest = highest_shown(groups)
    values = [point.metric for group in groups for point in group.curves.median]
    shown = [value for value in values if value <= highest or groups[0].mode == "max"]

    def view(axes: Axes, form: Form) -> None:
        if groups[0].mode == "max":
            return
        plain_log(shown)(axes, form)
        bottom, top = axes.get_ylim()
        if shown and top > highest:
            axes.set_ylim(max(bottom, min(shown) - 0.2 * abs(min(shown))), highest)

    return view


def near_the_end(groups: Sequence[Group]) -> View:
    """The place where the better runs end up, with marks at the targets that the BF16 runs set."""
    curves = [group.curves.median for group in groups]
    finals = [curve[-1].metric for curve in curves if curve]
    leader = (min if groups[0].mode == "min" else max)(finals, default=0.0)
    # A diverged run must not compress the scale for all others.
    finals = [final for final in finals if abs(final - leader) <= 0.1 * abs(leader)]
    heading, targets = _targets(groups)

    def view(axes: Axes, form: Form) -> None:
        if not finals:
            return
        best, worst = min(finals + list(targets.values())), max(finals + list(targets.values()))
        margin = 0.15 * (worst - best) or 0.05 * abs(best) or 0.05
        axes.set_ylim(best - margin, worst + margin)
        inside = [p.train_time_s for curve in curves for p in curve if best <= p.metric <= worst]
        if inside:
            span = max(max(inside) - min(inside), 0.2 * max(inside))
            axes.set_xlim(left=min(inside) - 0.1 * span)
        _mark_targets(axes, targets, form)
        axes.set_title(textwrap.fill(heading, HEADING_CHARACTERS))

    return view


def _mark_targets(axes: Axes, targets: Mapping[float, float], form: Form) -> None:
    """A dotted line at each target and its factor to the right, moved up where two would overlap."""
    low, high = axes.get_ylim()
    at = -math.inf
    for factor, target in sorted(targets.items(), key=lambda item: item[1]):
        Rules([target], line=(0, (1, 2)), width=0.8, level=True).draw(axes, form)
        at = max((target - low) / (high - low), at + LABEL_GAP)
        look: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": 7, "va": "center"}
        axes.annotate(f" ×{factor:g}", (1.0, at), **look)


def plain_log(values: Sequence[float], ratio: float = 4.0) -> View:
    """A logarithmic y axis with plain numbers, where positive values span more than `ratio`."""

    def view(axes: Axes, form: Form) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        if not values or min(values) <= 0 or max(values) / min(values) < ratio:
            return
        axes.set_yscale("log")
        span = max(values) / min(values)
        ticks = (1.0, 2.0, 3.0, 5.0) if span < 30 else (1.0, 3.0) if span < 1000 else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=ticks))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())

    return view


def plain_log_x(axes: Axes, form: Form) -> None:
    """A logarithmic x axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_y(axes: Axes, form: Form) -> None:
    """A logarithmic y axis labelled in powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 30 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: scientific(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def log_x(axes: Axes, form: Form) -> None:
    """A logarithmic x axis with few ticks, labelled in powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 30 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=MAX_TICKS + 2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: scientific(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def whole_x(axes: Axes, form: Form) -> None:
    """Whole numbers at the x axis."""
    axes.locator_params(axis="x", integer=True)


def from_zero(axes: Axes, form: Form) -> None:
    """A y axis that begins at 0."""
    axes.set_ylim(bottom=0)


def x_from(low: float, high: float | None = None) -> View:
    """An x axis from `low` to `high`, or as far as there are data."""
    return lambda axes, _: axes.set_xlim(low, high)


def y_from(low: float, high: float | None = None) -> View:
    """A y axis from `low` to `high`, or as far as there are data."""
    return lambda axes, _: axes.set_ylim(low, high)


def edge_to_edge(axes: Axes, form: Form) -> None:
    """An x axis without margins."""
    axes.margins(x=0)


def like_first(axes: Axes, form: Form) -> None:
    """The limits of the x axis of the first panel."""
    axes.set_xlim(axes.figure.axes[0].get_xlim())


def quarters(axes: Axes, form: Form) -> None:
    """Ticks at the quarters of a share."""
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def no_grid(axis: Literal["x", "y", "both"]) -> View:
    """No lines of the grid at the ticks of an axis."""
    return lambda axes, _: axes.grid(visible=False, axis=axis)


def row_ticks(places: Sequence[float], names: Sequence[str]) -> View:
    """A name at the y axis for each row."""
    return lambda axes, _: axes.set_yticks(places, names)


def row_names(places: Sequence[float], names: Sequence[str]) -> View:
    """A name at the y axis for each row of bars, and no lines of the grid there."""

    def view(axes: Axes, form: Form) -> None:
        axes.set_yticks(places, names)
        axes.grid(visible=False, axis="y")

    return view


def column_names(names: Sequence[str]) -> View:
    """A name at the x axis for each of the bars at 0, 1, 2, …, slanting where these are many; bars without a
    length at the ends have no place."""

    def view(axes: Axes, form: Form) -> None:
        limits = axes.get_xlim()
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(limits)
        axes.tick_params(axis="x", labelrotation=0 if len(names) < MANY_NAMES else 60)

    return view


def ticks_at(values: Sequence[float], *, doubling: bool = False) -> View:
    """A tick only at each of the values; with `doubling` 2, 4 and 8 are equally far apart."""

    def view(axes: Axes, form: Form) -> None:
        if doubling:
            axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.minorticks_off()

    return view


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
    whose = f" of {baselines[0].words}" if len(baselines) > 1 else ""
    return f"{heading}; dotted: the targets{whose}", targets
