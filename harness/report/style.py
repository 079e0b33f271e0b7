"""The look of plots in print and on a dark page: colours, and lines and hatches that are distinguishable
without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from gradwire.harness.timing.measure.metrics import METRICS
from gradwire.harness.timing.measure.metrics import PARTS as METRIC_PARTS

Hue = Literal["ink", "blue", "vermilion", "green", "purple", "orange", "sky", "grey"]

HUES: tuple[Hue, ...] = ("blue", "vermilion", "green", "purple", "orange", "sky")
"""The hues of series in order; `ink` is the baseline's, `grey` stands for the rest."""


@dataclass(frozen=True, eq=False)
class Form:
    """One of the two forms of every plot; a hue stands for the same series in both."""

    name: str  # part of the name of the file
    suffixes: tuple[str, ...]  # the kinds of files, without dots
    ground: str
    grid: str
    colors: Mapping[Hue, str]


# Hues after Okabe and Ito, "Color universal design", 2008, darker or lighter: each has a contrast of at least
# 3 to its ground (WCAG 2.1, 1.4.11), and any two stay apart without one of the three kinds of cones.
PRINT = Form(
    name="print",
    suffixes=("svg", "png"),
    ground="#FFFFFF",
    grid="#DDDDDD",
    colors={
        "ink": "#000000",
        "blue": "#0056A0",
        "vermilion": "#B84300",
        "green": "#00875F",
        "purple": "#B8528F",
        "orange": "#C98500",
        "sky": "#3A9BD9",
        "grey": "#8C8C8C",
    },
)
DARK = Form(
    name="dark",
    suffixes=("png",),
    ground="#0D1117",
    grid="#30363D",
    colors={
        "ink": "#F0F6FC",
        "blue": "#4A90E2",
        "vermilion": "#E8632B",
        "green": "#2BB58B",
        "purple": "#D77FB4",
        "orange": "#F5BC42",
        "sky": "#8AD4FF",
        "grey": "#9198A1",
    },
)
FORMS = (PRINT, DARK)

LINES: tuple[Any, ...] = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")


@dataclass(frozen=True)
class LineStyle:
    """One series' look; hue, dash and marker all differ between neighbours.

    A hue that is used again has `hollow` markers, so that it differs at every point. `turn` is the index of
    the series: markers of overlapping lines alternate.
    """

    hue: Hue
    line: Any
    marker: str
    hollow: bool = False
    turn: int = 0

    def markers(self, every: int) -> tuple[int, int]:
        """The first point with a marker and the distance between markers, if one of `every` points has
        one.
        """
        return self.turn % every, every

    def drawn(self, form: Form) -> dict[str, Any]:
        """Matplotlib's settings for the series' line and markers."""
        color = form.colors[self.hue]
        face = form.ground if self.hollow else color
        return {"color": color, "ls": self.line, "marker": self.marker, "markerfacecolor": face}


def plain(hue: Hue, line: Any = "-") -> LineStyle:
    """A line without markers."""
    return LineStyle(hue, line, "None")


@dataclass(frozen=True)
class Filling:
    """The look of one part of a stack; hue and hatch both differ between neighbours."""

    label: str
    hue: Hue
    hatch: str = ""

    def drawn(self, form: Form) -> dict[str, Any]:
        """Matplotlib's settings for an area; hatch and edge are the ground showing through."""
        look: dict[str, Any] = {"facecolor": form.colors[self.hue], "hatch": self.hatch}
        return look | {"edgecolor": form.ground, "linewidth": 0.4}


# No hatch of dots, which take a quarter of a megabyte in a vector file.
_LOOKS: tuple[tuple[Hue, str], ...] = (
    ("blue", ""),
    ("orange", "////"),
    ("vermilion", "xxxx"),
    ("grey", "\\\\\\\\"),
    ("green", "++++"),
    ("purple", "----"),
)
PARTS = {
    key: Filling(METRICS[key].label, *look) for key, look in zip(METRIC_PARTS, cycle(_LOOKS), strict=False)
}
"""The parts of a step, by their key in rows and summaries."""

PHASES = {
    "reduce_scatter": Filling("reduce-scatter", "blue", ""),
    "all_gather": Filling("all-gather", "sky", "////"),
    "metadata": Filling("metadata", "vermilion", "xxxx"),
    "weights": Filling("weights", "green", "...."),
}
"""The phases that bytes are counted under, by their key in summaries."""


def line_styles(codecs: Sequence[str], baseline: str = "bf16") -> list[LineStyle]:
    """A style for each group, in order; the baseline is a solid line in the text's colour with circles."""
    styles: list[LineStyle] = []
    others = 0
    for codec in codecs:
        if codec == baseline and "ink" not in [style.hue for style in styles]:
            styles.append(LineStyle("ink", "-", MARKERS[0]))
            continue
        # A hue that is used again gets another dash.
        dash = LINES[(others + others // len(HUES)) % len(LINES)]
        marker = MARKERS[(others + 1) % len(MARKERS)]
        hollow = others // len(HUES) % 2 == 1
        styles.append(LineStyle(HUES[others % len(HUES)], dash, marker, hollow, others + 1))
        others += 1
    return styles


def matplotlib_settings(form: Form) -> dict[Any, Any]:
    """Matplotlib's settings for a figure as wide as a column of text, with readable letters."""
    ink = form.colors["ink"]
    return {
        "figure.facecolor": form.ground,
        "axes.facecolor": form.ground,
        "savefig.facecolor": form.ground,
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": form.grid,
        "font.size": 8.0,
        "figure.titlesize": 8.0,
        "axes.titlesize": 8.0,
        "axes.titlelocation": "left",
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "legend.handlelength": 3.0,
        "legend.columnspacing": 1.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "lines.linewidth": 1.4,
        "lines.markersize": 3.5,
        # Letters as outlines, the same on every machine; names inside that stay the same.
        "svg.fonttype": "path",
        "svg.hashsalt": "gradwire",
    }


def phase_filling(phase: str) -> Filling:
    """The look of a phase of communication; one without a look of its own is grey."""
    return PHASES.get(phase, Filling(phase.replace("_", " "), "grey", ""))
