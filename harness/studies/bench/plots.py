"""Plots of the benchmark: nanoseconds per coordinate of the definition, of the kernels, and of a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import Form, Hue
from gradwire.harness.studies.bench.measure import DEFAULT
from gradwire.harness.studies.bench.rows import Row
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, MARGIN = 0.16, 0.55
"""The height of an operation, and of the axis below, in inches."""

MARKS: dict[str, tuple[Hue, str, float]] = {
    "float32": ("blue", "o", 0.16),
    "bfloat16": ("vermilion", "s", -0.16),
}
"""Hue, marker, and distance from the operation's line, so that equal figures of both can be seen."""


def plots(rows: Sequence[Row], heading: str) -> list[Plot]:
    """Draws one plot for each family and size, from the rows on one thread."""
    kinds: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.threads == 1:
            kinds.setdefault((row.operation.partition(".")[0], row.numel), []).append(row)
    return [_plot(own, family, numel, heading) for (family, numel), own in kinds.items()]


def _plot(rows: Sequence[Row], family: str, numel: int, heading: str) -> Plot:
    names = list(dict.fromkeys(row.operation for row in rows))
    place = {name: len(names) - 1 - index for index, name in enumerate(names)}

    def draw(panels: Sequence[Axes], form: Form) -> None:
        from matplotlib.ticker import FuncFormatter

        (axes,) = panels
        for dtype in dict.fromkeys(row.dtype for row in rows):
            own = [row for row in rows if row.dtype == dtype]
            _points(axes, form, dtype, [row for row in own if row.implementation == DEFAULT], place)
            _points(axes, form, dtype, [row for row in own if row.implementation in ("cpu", "cuda")], place)
        _copies(axes, form, rows, place)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_yticks(list(place.values()), list(place))
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.set_xlabel(METRICS["ns_per_coordinate"].heading)

    title = f"{heading} · {numel:,} coordinates"
    return Plot(f"{family}-{numel}", title, draw, (MARGIN + LINE * max(len(names), 4),))


def _points(axes: Axes, form: Form, dtype: str, rows: Sequence[Row], place: dict[str, int]) -> None:
    if not rows:
        return
    hue, marker, shift = MARKS[dtype]
    name = rows[0].implementation
    filled = form.colors[hue] if name != DEFAULT else form.ground
    known = [(row.ns_per_coordinate, place[row.operation]) for row in rows]
    axes.plot(
        [x for x, _ in known if x is not None],
        [y + shift for x, y in known if x is not None],
        linestyle="none",
        marker=marker,
        color=form.colors[hue],
        markerfacecolor=filled,
        label=f"{name}, {dtype}",
    )


def _copies(axes: Axes, form: Form, rows: Sequence[Row], place: dict[str, int]) -> None:
    """Marks where each operation would be if it moved its bytes as fast as a copy does."""
    bound: dict[str, float] = {}
    for row in rows:
        if row.dtype == rows[0].dtype and row.copy_bytes_per_s is not None:
            bound[row.operation] = 1e9 * row.bytes_per_coordinate / row.copy_bytes_per_s
    axes.plot(
        list(bound.values()),
        [place[name] for name in bound],
        linestyle="none",
        marker="|",
        markersize=7,
        color=form.colors["ink"],
        label=f"at a copy's bandwidth, {rows[0].dtype}",
    )
