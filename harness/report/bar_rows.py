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
from gradwire.harness.report.series import Bars, Drawable, Panel
from gradwire.harness.report.style import Filling, Form
from gradwire.harness.report.views import row_names

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

    def panel(
        self,
        series: Sequence[Drawable],
        lengths: Sequence[float],
        figures: Sequence[str],
        x_label: str,
        right: float | None = None,
    ) -> Panel:
        """The panel of `series` in these rows: names to the left, each row's figure behind what is drawn up
        to its length; the axis ends at `right`, or where all figures have room."""
        end = self.room(lengths, figures) if right is None else right

        def view(axes: Axes, form: Form) -> None:
            row_names(self.centers, self.names)(axes, form)
            axes.set_ylim(self.height, 0)
            axes.tick_params(axis="y", length=0)
            for center, length, text in zip(self.centers, lengths, figures, strict=True):
                look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7}
                axes.annotate(text, (length, center), (4, 0), **look)
            axes.set_xlim(0, end)
            axes.locator_params(axis="x", nbins=MAX_TICKS)

        return Panel(series, x_label=x_label, views=[view], right=True)

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
    return rows_of([group.words for group in groups])


def stacked(rows: Rows, stack: Stack) -> tuple[list[Bars], list[float]]:
    """Stacked bars, and their lengths."""
    bars, lengths = list[Bars](), [0.0] * len(rows.centers)
    for filling, widths in stack.items():
        bars.append(Bars(rows.centers, widths, filling, BAR_HEIGHT, lengths, filling.label))
        lengths = [before + width for before, width in zip(lengths, widths, strict=True)]
    return bars, lengths
