"""Writes plots to files: the same drawing for print and for a dark page."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.harness.files.reading import printable
from gradwire.harness.report.style import FORMS, PRINT, Form, matplotlib_settings
from gradwire.harness.report.vector import compact
from gradwire.harness.runtime.progress import tracked

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 3.5
"""Inches: a column of a two-column paper."""
DPI = 200
MAX_TICKS = 5
LINE_HEIGHT = 0.15
TITLE_CHARACTERS, LEGEND_CHARACTERS = 54, 58
HANDLE_CHARACTERS, GAP_CHARACTERS = 7, 3

# Equal data make equal files: no time of writing, no version of the writer.
METADATA = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Plot:
    """The contents of one picture; `draw` is called once for each form, with the panels row by row."""

    name: str  # of the files, without the form
    title: str
    draw: Callable[[Sequence[Axes], Form], None]
    heights: tuple[float, ...] = (2.1,)  # inches, one for each row of panels; title and legend come on top
    columns: int = 1  # panels of a row


def write_plots(
    plots: Sequence[Plot | None], folder: Path, *, pdf: bool = False, vector_alone: bool = False
) -> list[Path]:
    """Writes each plot in every form, `<name>-print.svg`, `<name>-dark.png` …; returns the files.

    None stands for a plot without data.

    `pdf` also writes `<name>-print.pdf`, for comparisons that go into papers; `vector_alone` writes the SVG
    and nothing else. Plots are by-products: one that cannot be drawn or written is only reported in a line.
    """
    written = list[Path]()
    drawn = [plot for plot in plots if plot is not None]
    for plot in tracked(drawn, f"plots in {folder.name}", "plot", lambda plot: plot.name):
        with noted(f"plot {plot.name} in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            for path in _write(plot, folder, _files(pdf, vector_alone)):
                written.append(path)
    return written


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Converts an error in the block to one line that says that there is no `what`, and why."""
    try:
        yield
    except Exception as error:  # of matplotlib, of its fonts, of the disk
        reason = printable(f"{type(error).__name__}: {error}")
        print(f"note: no {what} ({reason}); all else is complete", file=sys.stderr, flush=True)


def render(plot: Plot, form: Form, like: Figure | None = None) -> Figure:
    """A plot in one form, laid out; needs no display and leaves no setting changed.

    The legend, where there is more than one entry, is below the axes, so that it covers no data. `like` is
    the same plot in another form, whose panels are in the same places: these are computed only once.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _settings(form):
        figure = Figure(figsize=(WIDTH, sum(plot.heights)), dpi=DPI)
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(plot.heights), plot.columns, height_ratios=plot.heights, squeeze=False)
        for axes in figure.axes:
            # The number of ticks must not depend on the layout, which depends on the ticks.
            axes.locator_params(axis="x", nbins=MAX_TICKS)
        plot.draw(list(grid.flat), form)
        title = wrapped_title(plot.title)
        figure.suptitle(title, x=0.01, horizontalalignment="left")
        lines = title.count("\n") + 1 + _add_legend(figure)
        figure.set_figheight(sum(plot.heights) + LINE_HEIGHT * lines)
        if like is None:
            _lay_out(figure)
        else:
            _lay_out_like(figure, like)
    return figure


def _files(pdf: bool, vector_alone: bool) -> dict[Form, tuple[str, ...]]:
    """The suffixes of a plot's files by form."""
    if vector_alone:
        return {PRINT: ("svg",)}
    return {form: (*form.suffixes, *(["pdf"] if pdf and form is PRINT else [])) for form in FORMS}


def _write(plot: Plot, folder: Path, files: Mapping[Form, Sequence[str]]) -> Iterator[Path]:
    figure = None
    for form, suffixes in files.items():
        figure = render(plot, form, figure)
        with _settings(form):
            for suffix in suffixes:
                path = folder / f"{plot.name}-{form.name}.{suffix}"
                try:
                    figure.savefig(path, metadata=METADATA[suffix])
                    if suffix == "svg":
                        path.write_text(compact(path.read_text()))
                except Exception:
                    with suppress(OSError):  # not half of one
                        path.unlink(missing_ok=True)
                    raise
                yield path


@contextmanager
def _settings(form: Form) -> Iterator[None]:
    """Applies this module's settings on top of matplotlib's defaults, ignoring the user's; undone at the
    end.
    """
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(matplotlib_settings(form))
        yield


def _lay_out(figure: Figure) -> None:
    """Lays the figure out once. With a layout engine, matplotlib would lay it out again for each of its
    files."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    ConstrainedLayoutEngine().execute(figure)
    for axes in figure.axes:
        # Rounded, because the solver's last bits vary.
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))


def _lay_out_like(figure: Figure, other: Figure) -> None:
    """Copies the layout of a figure that differs only in its colours."""
    for axes, placed in zip(figure.axes, other.axes, strict=True):
        axes.set_position(placed.get_position().bounds)
    for text, like in zip(figure.texts, other.texts, strict=True):
        text.set_position(like.get_position())


def _add_legend(figure: Figure) -> int:
    """A legend of all panels' series; returns how many lines high it is."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    if len(entries) < 2:
        return 0
    names = [textwrap.fill(name, LEGEND_CHARACTERS - HANDLE_CHARACTERS) for name in entries]
    columns = legend_columns(names)
    figure.legend(list(entries.values()), names, loc="outside lower center", ncols=columns)
    deepest = max(1 + name.count("\n") for name in names)
    return deepest * math.ceil(len(names) / columns)


def legend_columns(names: Sequence[str]) -> int:
    """The number of columns that fit side by side, split as matplotlib does."""
    from numpy import array_split

    for columns in range(len(names), 1, -1):
        widths = [max(map(len, column)) for column in array_split(list(names), columns)]
        needed = sum(HANDLE_CHARACTERS + width for width in widths) + GAP_CHARACTERS * (columns - 1)
        if needed <= LEGEND_CHARACTERS:
            return columns
    return 1


def wrapped_title(title: str) -> str:
    """Lines that fit the width, broken between parts where these are not too long themselves."""
    parts = [
        part.replace(" ", "\u00a0") if len(part) <= TITLE_CHARACTERS else part for part in title.split(" · ")
    ]
    lines = textwrap.wrap("\u00a0· ".join(parts), TITLE_CHARACTERS, break_on_hyphens=False)
    return "\n".join(line.removesuffix("\u00a0·") for line in lines)
