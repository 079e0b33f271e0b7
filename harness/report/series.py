"""The drawing of all series: lines with ranges, over a clock, over steps or over an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import Form, LineStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = "training step"
"""The label of an x axis of steps, whose ticks are whole numbers."""

View = Callable[["Axes", Form], None]
"""Sets the scale and the limits of an axis, and adds marks other than series."""


@dataclass(frozen=True)
class Series:
    """A line through points, with a range around it."""

    x: Sequence[float]
    y: Sequence[float]
    style: LineStyle
    label: str | None = None
    every: int = 1  # of so many points one carries a marker
    width: float | None = None  # points
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    marks: View | None = None  # what is drawn below the line

    def draw(self, axes: Axes, form: Form) -> None:
        if self.marks is not None:
            self.marks(axes, form)
        if self.low is not None and self.high is not None:
            color = form.colors[self.style.hue]
            axes.fill_between(self.x, self.low, self.high, color=color, alpha=0.2, linewidth=0)
        look: dict[str, Any] = self.style.drawn(form) | {"markevery": self.style.markers(self.every)}
        if self.width is not None:
            look["lw"] = self.width
        axes.plot(self.x, self.y, **look, label=self.label)


@dataclass(frozen=True)
class Panel:
    """Series on one pair of axes."""

    series: Sequence[Series]
    y_label: str
    x_label: str = ""
    title: str = ""
    views: Sequence[View] = ()  # taken once the series are drawn


def series_plot(
    name: str,
    title: str,
    panels: Sequence[Panel],
    heights: tuple[float, ...] = (2.1,),
    *,
    one_x: bool = False,
) -> Plot:
    """Panels below one another; with `one_x` they share the x axis, labelled below the last one."""

    def draw(places: Sequence[Axes], form: Form) -> None:
        for axes, panel in zip(places, panels, strict=True):
            for series in panel.series:
                series.draw(axes, form)
            for view in panel.views:
                view(axes, form)
            axes.set_ylabel(panel.y_label)
            if one_x and axes is not places[0]:
                axes.sharex(places[0])  # before its ticks are set, which all then share
            if one_x and axes is not places[-1]:
                axes.tick_params(labelbottom=False)
            if panel.x_label:
                axes.set_xlabel(panel.x_label)
            if panel.x_label == STEPS:
                axes.locator_params(axis="x", integer=True)
            if panel.title:
                axes.set_title(panel.title)

    return Plot(name, title, draw, heights)
