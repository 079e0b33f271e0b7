"""The format of figures and tables."""

from __future__ import annotations

import math

import pytest

from gradwire.harness.report.tables import Page, Table, escaped, figure, number, render_markdown, render_text
from gradwire.harness.timing.measure.metric import FigureFormat, Spread


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "nan"),
        (0.0, "0"),
        (16.0, "16"),
        (1358.4, "1358"),
        (123456.7, "123457"),
        (1000.0, "1000"),
        (120.0, "120"),
        (12.3449, "12.34"),
        (0.012345, "0.01235"),
        (2.0e-6, "2.000e-06"),
        (-3.14159, "-3.142"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_figure_shows_its_range_only_if_there_is_one() -> None:
    assert figure(Spread(0.002, 0.0015, math.inf), FigureFormat(factor=1e3)) == "2 (1.500–∞)"
    assert figure(Spread(2.5, 2.5, 2.5)) == "2.500"
    assert figure(0.7449, FigureFormat("%", 100, decimals=0)) == "74"
    assert figure(None) == "–"


def test_long_names_wrap_and_lose_nothing() -> None:
    name = "dynamiq bits=5 group=256 super_group=16, butterfly, shaped rate_mbit=200 latency_s=0.001"
    table = Table("T", ["run", "a long header of some words"], [[name, "1.5"], ["bf16", "22.25"]])
    text = render_text(table, width=60)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 60
    rule = next(line for line in lines if line.startswith("-"))
    first_column = [line[: rule.index(" ")].strip() for line in lines[lines.index(rule) + 1 :]]
    assert " ".join(first_column) == f"{name} bf16"
    ends = {len(line) for line in lines if line.endswith(("1.5", "22.25"))}
    assert len(ends) == 1, "figures are aligned at their right"


def test_markdown_has_as_many_cells_in_every_line() -> None:
    text = render_markdown(Table("T", ["run", "x"], [["a|b", "1"], ["c", "2"]]))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {3}
    assert "a\\|b" in text


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"),
        ("[here](javascript:alert(1))", "\\[here\\](javascript:alert(1))"),
        ("a | b\nc", "a \\| b c"),
        ("`code` *bold* __init__ ~no~", "\\`code\\` \\*bold\\* \\_\\_init\\_\\_ \\~no\\~"),
        ("bucket_cap_mb=25 & more", "bucket_cap_mb=25 &amp; more"),
        ("https://x www.x", "https&#58;//x www&#46;x"),
        ("\x1b[31m\u202e", "\\\\x1b\\[31m\\\\u202e"),
    ],
)
def test_foreign_text_in_a_cell_makes_no_markup(foreign: str, shown: str) -> None:
    assert escaped(foreign) == shown
    page = Page([Table(foreign, ["run", foreign], [[foreign, "1"]])], [foreign]).markdown
    assert page.count(shown) == 4
    assert foreign not in page
    assert "\x1b" not in render_text(Table("title", ["run"], [[foreign]]))
