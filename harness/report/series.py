"""The drawing of all series: lines with ranges, over a clock, over steps or over an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import Filling, Form, Hue, LineStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = "training step"
"""The label of an x axis of steps, whose ticks are whole numbers."""

UNNAMED = "_"
"""The label of what has no entry in the legend."""

View = Callable[["Axes", Form], object]
"""The scale, limits and ticks of axes, and texts on them: see `views`."""


class Drawable(Protocol):
    """Data with a look."""

    def draw(self, axes: Axes, form: Form) -> None: ...


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
    size: float | None = None  # of a marker, in points
    edge: float | None = None  # of a marker's outline

    @classmethod
    def through(
        cls, points: Iterable[tuple[float, float]], style: LineStyle, label: str | None = None, **look: Any
    ) -> Self:
        """The series of (x, y)."""
        pairs = list(points)
        return cls([x for x, _ in pairs], [y for _, y in pairs], style, label, **look)

    def draw(self, axes: Axes, form: Form) -> None:
        if self.low is not None and self.high is not None:
            Area(self.x, self.low, self.high, self.style.hue).draw(axes, form)
        look: dict[str, Any] = self.style.drawn(form) | {"markevery": self.style.markers(self.every)}
        own = {"lw": self.width, "ms": self.size, "mew": self.edge}
        look |= {key: value for key, value in own.items() if value is not None}
        axes.plot(self.x, self.y, **look, label=self.label)


def histogram(shares: Sequence[float], limit: float, style: LineStyle, label: str) -> Series:
    """Draws a line through the centres of non-empty bins, which have equal width from −`limit` to `limit`."""
    width = 2 * limit / len(shares)
    points = ((width * (index + 0.5) - limit, share) for index, share in enumerate(shares) if share > 0)
    return Series.through(points, style, label, width=1.0)


@dataclass(frozen=True)
class Area:
    """The area between two lines."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    hue: Hue
    alpha: float = 0.2

    def draw(self, axes: Axes, form: Form) -> None:
        color = form.colors[self.hue]
        axes.fill_between(self.x, self.low, self.high, color=color, alpha=self.alpha, linewidth=0)


@dataclass(frozen=True)
class Steps:
    """Values that hold between two edges each, as a line or, with a filling, as an area above `base`."""

    edges: Sequence[float]  # one more than there are values
    values: Sequence[float]
    look: LineStyle | Filling
    label: str | None = None
    base: Sequence[float] | float | None = None  # None: a line does not come down
    width: float | None = None

    def draw(self, axes: Axes, form: Form) -> None:
        look: dict[str, Any] = {"baseline": self.base, "label": self.label}
        if isinstance(self.look, Filling):
            look |= {"fill": True, **self.look.drawn(form)}
        else:
            look |= {"color": form.colors[self.look.hue], "ls": self.look.line}
        if self.width is not None:
            look["lw" if isinstance(self.look, LineStyle) else "linewidth"] = self.width
        axes.stairs(self.values, self.edges, **look)


@dataclass(frozen=True)
class Bars:
    """Bars of one look, which lie unless they are `upright`."""

    places: Sequence[float]  # of their middles
    lengths: Sequence[float]
    filling: Filling
    thickness: float
    starts: Sequence[float] | float = 0.0
    label: str = ""
    edge: float = 0.4  # points of the ground around a bar
    upright: bool = False

    def draw(self, axes: Axes, form: Form) -> None:
        look: dict[str, Any] = self.filling.drawn(form) | {"linewidth": self.edge, "label": self.label}
        draw = axes.bar if self.upright else axes.barh
        draw(self.places, self.lengths, self.thickness, self.starts, **look)


@dataclass(frozen=True)
class Whiskers:
    """Lines over ranges across lying bars, set off from these."""

    places: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    def draw(self, axes: Axes, form: Form) -> None:
        for place, *ends in zip(self.places, self.low, self.high, strict=True):
            for color, width, size in ((form.ground, 2.2, 5.5), (form.colors["ink"], 0.8, 4.5)):
                look: dict[str, Any] = {"color": color, "lw": width, "marker": "|", "ms": size, "mew": width}
                axes.plot(ends, [place, place], **look, solid_capstyle="butt")


@dataclass(frozen=True)
class Upright:
    """An upright line over a range at one place."""

    x: float
    low: float
    high: float
    hue: Hue

    def draw(self, axes: Axes, form: Form) -> None:
        axes.vlines([self.x], [self.low], [self.high], colors=form.colors[self.hue], lw=0.8)


@dataclass(frozen=True)
class Rules:
    """Straight lines through the whole panel, upright or, with `level`, across."""

    at: Sequence[float]
    hue: Hue = "grey"
    line: Any = ":"
    width: float | None = None
    label: str = UNNAMED  # of the first
    level: bool = False

    def draw(self, axes: Axes, form: Form) -> None:
        look: dict[str, Any] = {"color": form.colors[self.hue], "ls": self.line}
        look |= {} if self.width is None else {"lw": self.width}
        for index, place in enumerate(self.at):
            draw = axes.axhline if self.level else axes.axvline
            draw(place, **look, label=UNNAMED if index else self.label)


@dataclass(frozen=True)
class Spans:
    """Stretches of the x axis, over the whole height of the panel."""

    between: Sequence[tuple[float, float]]
    hue: Hue
    alpha: float = 0.2
    label: str = UNNAMED  # of the first

    def draw(self, axes: Axes, form: Form) -> None:
        look: dict[str, Any] = {"facecolor": form.colors[self.hue], "alpha": self.alpha, "lw": 0}
        for index, (start, end) in enumerate(self.between):
            axes.axvspan(start, end, **look, label=UNNAMED if index else self.label)


@dataclass(frozen=True)
class ColourMap:
    """A matrix of values from −1 to 1; `scale` names the scale of colours, drawn beside all panels."""

    values: Any  # (rows, columns), a NumPy array
    scale: str = ""

    def draw(self, axes: Axes, form: Form) -> None:
        image = axes.imshow(self.values, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.set_yticks([])
        if self.scale:
            bar = axes.figure.colorbar(image, ax=list(axes.figure.axes), shrink=0.6, ticks=[-1, 0, 1])
            bar.set_label(self.scale)


@dataclass(frozen=True)
class Panel:
    """Series on one pair of axes."""

    series: Sequence[Drawable]
    y_label: str = ""
    x_label: str = ""
    title: str = ""
    views: Sequence[View] = ()  # taken once the series are drawn
    right: bool = False  # the title and the x label end at the right: names take the left

    def draw(self, axes: Axes, form: Form) -> None:
        for series in self.series:
            series.draw(axes, form)
        for view in self.views:
            view(axes, form)

    def name(self, axes: Axes) -> None:
        """Labels and title; ticks of steps, once it is known which panels share them."""
        if self.y_label:
            axes.set_ylabel(self.y_label)
        if self.x_label:
            axes.set_xlabel(self.x_label, loc="right" if self.right else "center")
        if self.x_label == STEPS:
            axes.locator_params(axis="x", integer=True)
        if self.title:
            axes.set_title(self.title, loc="right" if self.right else "left")


def series_plot(
    name: str,
    title: str,
    panels: Sequence[Panel],
    heights: tuple[float, ...] = (2.1,),
    *,
    columns: int = 1,
    ticks: Literal["each", "last", "shared"] = "each",
) -> Plot:
    """Panels below one another, or `columns` of them in a row, in rows of so many inches.

    `ticks` says which panels have numbers at the x axis; where they are `shared` they have one x axis.
    """

    def draw(places: Sequence[Axes], form: Form) -> None:
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(places, panels, strict=False):
            panel.draw(axes, form)
            if ticks == "shared" and axes is not places[0]:
                axes.sharex(places[0])
            if ticks != "each" and axes is not places[-1]:
                axes.tick_params(labelbottom=False)
            panel.name(axes)

    return Plot(name, title, draw, heights, columns)
