"""Tables of metrics, as text and Markdown; the formatting of figures; pages of tables with their remarks."""

from __future__ import annotations

import csv
import html
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.record.directory import is_done
from gradwire.harness.record.seal import check_done
from gradwire.harness.timing.measure.metric import PLAIN, FigureFormat, Spread
from gradwire.harness.timing.measure.metrics import METRICS

TEXT_WIDTH = 140
_GAP = "  "
_MISSING = "–"
NOT_REACHED = "not reached"
NAME_WIDTH = 26
"""Characters of a name's column after the first, where its words allow that."""

MOST_CELL = 2000
"""Characters of a cell or a remark."""


@dataclass(frozen=True)
class Table:
    """The first `names` columns name the row; the others hold figures."""

    title: str
    header: list[str]
    rows: list[list[str]]
    names: int = 1


@dataclass(frozen=True)
class Column:
    """A column of figures: a metric, with any differences from its entry in METRICS."""

    metric: str
    at: str = ""  # the key of its figures in a row, where that is not the metric's
    label: str = ""
    shown: FigureFormat | None = None

    @property
    def heading(self) -> str:
        metric = METRICS[self.metric]
        return replace(metric, label=self.label or metric.label, shown=self.shown or metric.shown).heading

    def cell(self, figures: Mapping[str, Spread | float | None]) -> str:
        return figure(figures.get(self.at or self.metric), self.shown or METRICS[self.metric].shown)


Line = tuple[Sequence[str], Mapping[str, Spread | float | None]]
"""The names of a row, one cell each, and its figures by key."""


def figures_table(
    title: str, names: Sequence[str], lines: Iterable[Line], columns: Iterable[Column | str]
) -> Table:
    """A table with a column for each of `columns`, given by keys of METRICS or as `Column`."""
    chosen = [Column(column) if isinstance(column, str) else column for column in columns]
    rows = [[*name, *(column.cell(figures) for column in chosen)] for name, figures in lines]
    return Table(title, [*names, *(column.heading for column in chosen)], rows)


def number(value: float | None, digits: int = 4) -> str:
    """`digits` significant digits, without an exponent if that is readable; ∞ for a miss."""
    if value is None:
        return _MISSING
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if value == int(value) and "." in text else text


def figure(value: Spread | float | None, shown: FigureFormat = PLAIN) -> str:
    """A figure in the format of METRICS; a spread as median and range, or only the median if there is no
    range."""
    if not isinstance(value, Spread):
        return _written(value, shown)
    middle, low, high = (_written(part, shown) for part in (value.median, value.low, value.high))
    return middle if low == high else f"{middle} ({low}–{high})"


def _written(value: float | None, shown: FigureFormat) -> str:
    if value is None or shown.decimals is None:
        return number(None if value is None else value * shown.factor, shown.digits)
    return f"{value * shown.factor:.{shown.decimals}f}"


def render_text(table: Table, width: int = TEXT_WIDTH) -> str:
    """Aligned columns at most `width` wide: long names and header cells continue on the next line."""
    header, *rows = [list(map(plain, row)) for row in (table.header, *table.rows)]
    table = Table(plain(table.title), header, rows, table.names)
    figures = [_column_width(table, index) for index in range(1, len(table.header))]
    rest = width - sum(figures) - len(_GAP) * len(figures)
    longest = max(len(row[0]) for row in [table.header, *table.rows])
    widths = [max(min(longest, rest), 12), *figures]
    lines = _wrapped(table.header, widths, table.names)
    body = [line for row in table.rows for line in _wrapped(row, widths, table.names)]
    rule = _GAP.join("-" * column for column in widths)
    return "\n".join([render_remark(table.title, width), *lines, rule, *body])


def render_remark(remark: str, width: int = TEXT_WIDTH) -> str:
    """A sentence in lines at most `width` wide; a path stays in one piece."""
    return textwrap.fill(
        plain(remark), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def render_markdown(table: Table) -> str:
    """A pipe table under its title."""
    header, *rows = [list(map(escaped, row)) for row in (table.header, *table.rows)]
    lines = [header, ["---"] * table.names + ["--:"] * (len(header) - table.names), *rows]
    cells = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([f"### {escaped(table.title)}", "", *cells])


_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escaped(text: str) -> str:
    """Returns `text`, which may come from elsewhere, on one line, as Markdown and HTML show it.

    It cannot make markup, elements or links: labels of runs and reasons of failures are as untrusted as the
    run directories they were read from.
    """
    shown = html.escape(plain(text), quote=False)
    shown = _MARKUP.sub(lambda match: f"\\{match[0]}", shown)
    return shown.replace("://", "&#58;//").replace("www.", "www&#46;")


def plain(text: str) -> str:
    """`text` for a terminal: on one line, without characters that drive it."""
    return printable(text, MOST_CELL)


def _column_width(table: Table, index: int) -> int:
    """The width for every figure and for the header in two lines; for a name's column, for its words."""
    words = table.header[index].split()
    if index < table.names:
        cells = [row[index] for row in [table.header, *table.rows]]
        longest_word = max(len(word) for cell in cells for word in [*cell.split(), ""])
        return max(longest_word, min(NAME_WIDTH, max(map(len, cells))))
    width = max(len(text) for text in [*words, *(row[index] for row in table.rows)])
    while len(textwrap.wrap(table.header[index], width)) > 2:
        width += 1
    return width


def _wrapped(row: Sequence[str], widths: Sequence[int], names: int) -> list[str]:
    """The lines of one row: `names` names to the left, figures to the right, on the first line they need."""
    cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    lines = []
    for level in range(height):
        parts = [cell[level] if level < len(cell) else "" for cell in cells]
        placed = [
            part.ljust(width) if column < names else part.rjust(width)
            for column, (part, width) in enumerate(zip(parts, widths, strict=True))
        ]
        lines.append(_GAP.join(placed).rstrip())
    return lines


@dataclass(frozen=True)
class Page:
    """Tables, with remarks on their interpretation."""

    tables: list[Table]
    remarks: list[str]

    @property
    def text(self) -> str:
        """The page for a terminal: at most 140 columns, except for longer paths."""
        return "\n\n".join([*map(render_text, self.tables), "\n".join(map(render_remark, self.remarks))])

    @property
    def markdown(self) -> str:
        remarks = "\n".join(f"- {escaped(line)}" for line in self.remarks)
        return "\n\n".join([*map(render_markdown, self.tables), "### Notes", remarks]) + "\n"

    def with_remark(self, remark: str) -> Page:
        """The page with one more remark, before the others."""
        return Page(self.tables, [remark, *self.remarks])

    def write_markdown(self, output: Path) -> Path:
        """Writes table.md to the folder `output`; returns it."""
        path = output / "table.md"
        path.write_text(self.markdown)
        return path

    def write(
        self, output: Path, lines: Sequence[Mapping[str, Any]], content: Mapping[str, Any]
    ) -> list[Path]:
        """Writes table.md, table.csv with a column for each key of `lines`, and table.json with `content`.

        Creates `output` if necessary; returns the files.
        """
        output.mkdir(parents=True, exist_ok=True)
        files = [self.write_markdown(output), output / "table.csv", output / "table.json"]
        with files[1].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
            writer.writeheader()
            writer.writerows(lines)
        files[2].write_text(dumps(content, indent=2) + "\n")
        return files


def finished(folders: Sequence[Path], kind: str = "run") -> tuple[list[Path], list[str]]:
    """The folders whose run is done and unchanged, and a line for each other one. Raises ValueError if none
    is.

    `kind` is the word for them in the error.
    """
    done, left_out = list[Path](), list[str]()
    for folder in folders:
        if not is_done(folder):
            left_out.append(f"{folder.name}: not finished, left out")
            continue
        try:
            check_done(folder)
            done.append(folder)
        except UnusableFileError as error:
            left_out.append(f"{folder.name}: left out, {error}")
    if not done:
        raise ValueError(f"nothing to compare, no {kind} is done: {'; '.join(left_out) or 'no folder given'}")
    return done, left_out
