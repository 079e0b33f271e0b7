"""Reads off a figure what tests of plots compare, and checks its form and layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.style import FORMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox


def by_name(plots: Iterable[Plot]) -> dict[str, Plot]:
    return {plot.name: plot for plot in plots}


def series(figure: Figure) -> list[Any]:
    """All data drawn: points of lines, corners of bars and bands, without colours."""
    found = []
    for axes in figure.axes:
        found += [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
        found += [_corners(patch) for patch in axes.patches]
        found += [path.vertices.tolist() for band in axes.collections for path in band.get_paths()]
    return found


def places(figure: Figure) -> list[tuple[float, ...]]:
    """The positions of the panels in the figure."""
    return [axes.get_position().bounds for axes in figure.axes]


def words(figure: Figure) -> list[str]:
    """Every text that is shown."""
    return [text.get_text() for text in shown_texts(figure)]


def shown_texts(figure: Figure) -> list[Text]:
    """The texts that are drawn: not empty, not hidden, and no label of a tick outside the view."""
    from matplotlib.text import Text

    beyond = {id(label) for axes in figure.axes for label in _tick_labels(axes) if not _in_view(label, axes)}
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [
        text for text in found if text.get_visible() and text.get_text().strip() and id(text) not in beyond
    ]


def legend(figure: Figure) -> list[str]:
    """The entries of the figure's legend, in one line each."""
    return [text.get_text().replace("\n", " ") for box in figure.legends for text in box.get_texts()]


def lines_by_label(axes: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def row_names(axes: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in axes.get_yticklabels()]


def check_forms(plots: Sequence[Plot]) -> None:
    """All forms show the same data and words, and nothing is cut off or covers anything else."""
    assert plots
    for plot in plots:
        figures = [render(plot, form) for form in FORMS]
        first, *others = figures
        for other in others:
            assert series(other) == series(first), plot.name
            assert words(other) == words(first), plot.name
            assert places(other) == places(first), plot.name
        check_layout(first, plot.name)


def check_layout(figure: Figure, name: str) -> None:
    """Texts are inside the figure and apart from each other, panels and legend too."""
    figure.draw_without_rendering()  # a legend places its words when it is drawn
    width, height = figure.bbox.width, figure.bbox.height
    texts = [(text.get_text(), text.get_window_extent()) for text in shown_texts(figure)]
    for text, box in texts:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert inside, f"{name}: {text!r} at {box} in {width} × {height}"
    for (text, box), (other_text, other_box) in combinations(texts, 2):
        assert not _overlap(box, other_box), f"{name}: {text!r} and {other_text!r}"
    areas = [axes.get_tightbbox() for axes in figure.axes]
    areas += [box.get_window_extent() for box in figure.legends]
    assert not any(_overlap(*pair) for pair in combinations(areas, 2)), f"{name}: panels or legend"


def _corners(patch: Any) -> list[Any]:
    """The bounds of a bar, or the corners of an area of a stack, in units of the data."""
    from matplotlib.patches import Rectangle

    return (
        list(patch.get_bbox().bounds) if isinstance(patch, Rectangle) else patch.get_path().vertices.tolist()
    )


def _tick_labels(axes: Axes) -> list[Text]:
    return [*axes.get_xticklabels(), *axes.get_yticklabels()]


def _in_view(label: Text, axes: Axes) -> bool:
    """True if the tick of a label is between the ends of its axis."""
    across = label in axes.get_xticklabels()
    low, high = sorted(axes.get_xlim() if across else axes.get_ylim())
    return bool(low <= label.get_position()[0 if across else 1] <= high)


def _overlap(one: Bbox, other: Bbox) -> bool:
    """True if two boxes share more than a pixel."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width > 1 and height > 1
