"""The drawer of series: the same data in every form, legends, ticks, and panels without data."""

from __future__ import annotations

import numpy as np
import pytest
from plot_checks import check_forms, legend, lines_by_label, series

from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.series import (
    STEPS,
    Area,
    Bars,
    ColourMap,
    Drawable,
    Panel,
    Rules,
    Series,
    Spans,
    Steps,
    Whiskers,
    histogram,
    series_plot,
)
from gradwire.harness.report.style import DARK, PRINT, Filling, LineStyle, plain
from gradwire.harness.report.views import column_names, from_zero, row_names, x_from

LINE = LineStyle("blue", "--", "s", hollow=True, turn=1)

KINDS: dict[str, Drawable] = {
    "line": Series([0, 1, 2], [1.0, 3.0, 2.0], LINE, "own", 2, low=[0.5, 2.0, 1.0], high=[2.0, 4.0, 3.0]),
    "points": Series.through([(0, 1.0), (1, 2.0)], LineStyle("ink", "none", "D"), "own", size=4, edge=0.8),
    "area": Area([0, 1], [0.0, 0.0], [1.0, 2.0], "sky", 1.0),
    "steps": Steps([0, 1, 2], [1.0, 2.0], plain("green", ":"), "own", width=1.4),
    "stack": Steps([0, 1, 2], [1.0, 2.0], Filling("own", "orange", "////"), "own", [0.5, 0.5]),
    "bars": Bars([0, 1], [1.0, 2.0], Filling("own", "grey", "xxxx"), 0.6, [0.0, 1.0], "own"),
    "columns": Bars([0, 1], [1.0, 2.0], Filling("", "purple"), 0.6, edge=0, upright=True),
    "whiskers": Whiskers([0, 1], [1.0, 2.0], [1.5, 4.0]),
    "rules": Rules([1.0, 2.0], "vermilion", "--", 0.9, "own"),
    "spans": Spans([(0.0, 1.0), (2.0, 3.0)], "sky", 0.3, "own"),
    "map": ColourMap(np.eye(3)),
}


def plot(*drawn: Drawable, panels: int = 1, **about: str) -> Plot:
    own = [Panel(drawn, "y", "x") for _ in range(panels)]
    return series_plot("plot", "a title", own, (1.6,) * panels, **about)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_alike_in_all_forms(kind: str) -> None:
    check_forms([plot(KINDS[kind])])
    assert any(series(render(plot(KINDS[kind]), PRINT))) or kind == "map"


def test_a_form_has_its_own_colours() -> None:
    for form in (PRINT, DARK):
        line = lines_by_label(render(plot(KINDS["line"]), form).axes[0])["own"]
        assert line.get_color() == form.colors["blue"] and line.get_markerfacecolor() == form.ground
        assert line.get_markevery() == (1, 2)


def test_several_rules_or_spans_are_one_entry_of_the_legend() -> None:
    more = Series([0, 3], [0.0, 1.0], plain("ink"), "line")
    for kind in ("rules", "spans"):
        assert legend(render(plot(KINDS[kind], more), PRINT)) == ["own", "line"]
    assert legend(render(plot(Rules([1.0]), more), PRINT)) == [], "a single entry needs no legend"


def test_panels_share_their_axis_or_its_numbers() -> None:
    def numbered(ticks: str) -> list[bool]:
        axes = render(plot(KINDS["line"], panels=2, ticks=ticks), PRINT).axes
        return [any(label.get_visible() for label in each.get_xticklabels()) for each in axes]

    assert numbered("each") == [True, True] and numbered("last") == numbered("shared") == [False, True]


def test_steps_are_whole_numbers_and_places_without_a_panel_are_empty() -> None:
    panel = Panel([Series([1, 2], [0.0, 1.0], plain("ink"))], x_label=STEPS, views=[from_zero, x_from(1)])
    axes = render(series_plot("plot", "a title", [panel] * 3, (1.4, 1.4), columns=2), PRINT).axes
    assert [each.axison for each in axes] == [True, True, True, False]
    assert all(float(tick).is_integer() for tick in axes[0].get_xticks()) and axes[0].get_ylim()[0] == 0


def test_rows_and_columns_have_names() -> None:
    bars = Bars([0, 1, 2], [1.0, 2.0, float("nan")], Filling("", "blue"), 0.6, edge=0, upright=True)
    columns = Panel([bars], views=[column_names(["one", "two", "none"])])
    rows = Panel([KINDS["bars"]], views=[row_names([0, 1], ["one", "two"])])
    first, second = render(series_plot("plot", "a title", [columns, rows], (1.4, 1.4)), PRINT).axes
    assert [text.get_text() for text in first.get_xticklabels()] == ["one", "two", "none"]
    assert first.get_xlim()[1] < 2, "a bar without a length has no place at the end"
    assert [text.get_text() for text in second.get_yticklabels()] == ["one", "two"]


def test_a_histogram_leaves_empty_bins_out() -> None:
    found = histogram([0.25, 0.0, 0.5, 0.25], 2.0, plain("ink"), "own")
    assert (found.x, found.y) == ([-1.5, 0.5, 1.5], [0.25, 0.5, 0.25])
