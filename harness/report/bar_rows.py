"""Horizontal bars with a row for each group: names, stacked parts, ranges over seeds, and figures after
them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gradwire.harness.report.figures import WIDTH
from gradwire.harness.report.groups import Group
from gradwire.harness.report.style import Filling, Form

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME_CHARACTERS, LONGEST_WORD = 22, 34
AXIS_HEIGHT, ROW_HEIGHT, LINE_HEIGHT, BAR_HEIGHT = 0.6, 0.18, 0.12, 0.12
"""Inches of the space below the bars, of a row, of each further line of a row's name, and of a bar."""
NAME_WIDTH, FIGURE_WIDTH, MARGIN = 0.06, 0.056, 0.12
"""Inches of an average character in a row's name and in the figure after a bar, and of the margin."""

MAX_TICKS = 4

Stack = Mapping[Filling, Sequence[float]]
"""The length of each part in every row."""


@dataclass(frozen=True)
class Rows:
    """Positions of rows: the y axis is in inches, so that a row can be as high as a long name needs."""

    names: list[str]  # in lines
    centers: list[float]
    height: float

    def finish(self, axes: Axes, lengths: Sequence[float], figures: Sequence[str], right: float) -> None:
        """Adds names on the left and each row's figure after the drawing; the axis ends at `right`."""
        axes.set_yticks(self.centers, self.names)
        axes.set_ylim(self.height, 0)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        for center, length, text in zip(self.centers, lengths, figures, strict=True):
            look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7}
            axes.annotate(text, (length, center), (4, 0), **look)
        axes.set_xlim(0, right)
        axes.locator_params(axis="x", nbins=MAX_TICKS)

    def room(self, lengths: Sequence[float], figures: Sequence[str]) -> float:
        """The end of an axis that leaves room for every row's figure."""
        longest = max(len(line) for name in self.names for line in name.split("\n"))
        width = WIDTH - MARGIN - NAME_WIDTH * longest
        shares = [min(0.7, (MARGIN + FIGURE_WIDTH * len(text)) / width) for text in figures]
        return max(length / (1 - share) for length, share in zip(lengths, shares, strict=True)) or 1.0


def rows_of(names: Sequence[str]) -> Rows:
    """Rows from top to bottom, long names in several lines."""
    longest = max((len(word) for name in names for word in name.split()), default=0)
    width = max(NAME_CHARACTERS, min(longest, LONGEST_WORD))
    wrapped = [textwrap.fill(name, width) for name in names]
    heights = [ROW_HEIGHT + LINE_HEIGHT * name.count("\n") for name in wrapped]
    ends = list(accumulate(heights))
    centers = [end - height / 2 for end, height in zip(ends, heights, strict=True)]
    return Rows(wrapped, centers, ends[-1])


def group_rows(groups: Sequence[Group]) -> Rows:
    return rows_of([group.label for group in groups])


def draw_stack(axes: Axes, rows: Rows, stack: Stack, form: Form) -> list[float]:
    """Stacked bars; returns their lengths."""
    lengths = [0.0] * len(rows.centers)
    for filling, widths in stack.items():
        axes.barh(rows.centers, widths, BAR_HEIGHT, lengths, **filled(filling, form), label=filling.label)
        lengths = [before + width for before, width in zip(lengths, widths, strict=True)]
    return lengths


def draw_range(axes: Axes, center: float, low: float, high: float, form: Form) -> None:
    """A line over the seeds' range, visible on any bar below it."""
    for color, width, size in ((form.ground, 2.2, 5.5), (form.colors["ink"], 0.8, 4.5)):
        look: dict[str, Any] = {"color": color, "lw": width, "marker": "|", "ms": size, "mew": width}
        axes.plot([low, high], [center, center], **look, solid_capstyle="butt")


def filled(filling: Filling, form: Form) -> dict[str, Any]:
    """Colour and hatch of an area; hatch and edge are the ground showing through."""
    look: dict[str, Any] = {"facecolor": form.colors[filling.hue], "hatch": filling.hatch}
    return look | {"edgecolor": form.ground, "linewidth": 0.4}
