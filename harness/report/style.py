"""How our plots look: readable in print, on a dark page (opaque white ground) and without colour vision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 150

# Okabe and Ito, "Color universal design", 2008; black is BF16's, yellow left out as too faint on white.
BLACK = "#000000"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

PARTS = {
    "compute_s": ("compute", "#0072B2", ""),
    "compression_s": ("compression", "#E69F00", "////"),
    "exposed_comm_s": ("exposed communication", "#D55E00", "...."),
    "other_s": ("other", "#BBBBBB", "\\\\\\\\"),
}
"""The parts of a step: name, colour, hatch."""

RC: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 9.0,
    "figure.titlesize": 9.5,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True)
class LineStyle:
    """One group's look; colour, dash and marker all differ between neighbours."""

    color: str
    line: Any
    marker: str


def line_styles(codecs: Sequence[str], baseline: str = "bf16") -> list[LineStyle]:
    """A style for each group, in order; the baseline is a solid black line with circles."""
    styles: list[LineStyle] = []
    others = 0
    for codec in codecs:
        if codec == baseline and BLACK not in [style.color for style in styles]:
            styles.append(LineStyle(BLACK, "-", MARKERS[0]))
            continue
        dash, marker = LINES[others % len(LINES)], MARKERS[(others + 1) % len(MARKERS)]
        styles.append(LineStyle(COLORS[others % len(COLORS)], dash, marker))
        others += 1
    return styles


@contextmanager
def drawing(path: Path, title: str, height: float = 3.6, panels: int = 1) -> Iterator[list[Axes]]:
    """The axes of a figure 7.5 inches wide, written to `path` as a PNG when the block ends.

    Needs no display and no global state. The legend, where there is more than one entry, is below the
    axes, so that it covers no data, and makes the figure that much higher than `height` inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(RC):
        figure = Figure(figsize=(7.5, height))
        FigureCanvasAgg(figure)
        axes = [figure.add_subplot(1, panels, 1 + index) for index in range(panels)]
        yield axes
        figure.suptitle(title, x=0.01, horizontalalignment="left")
        handles, names = axes[0].get_legend_handles_labels()
        if len(handles) > 1:
            columns = legend_columns(names)
            figure.set_figheight(height + 0.19 * math.ceil(len(names) / columns))
            figure.legend(handles, names, loc="outside lower center", ncols=columns)
        figure.savefig(path, dpi=DPI)


def legend_columns(names: Sequence[str]) -> int:
    """As many columns as fit: about 100 characters side by side, 11 of them taken by line and gaps."""
    if sum(11 + len(name) for name in names) <= 100:
        return len(names)
    return max(1, min(4, 100 // (11 + max(map(len, names)))))


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
