"""The bandwidth that ranks use over time, and its plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from traced_runs import SIMULATED, virtual_run

from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.report.bandwidth_plot import bandwidth_comparison, bandwidth_plot
from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.style import FORMS, PRINT
from gradwire.harness.timing.trace.bandwidth import bandwidth_over, bin_width
from gradwire.harness.timing.trace.step import Post, RankTrace, StepTrace, TaskTrace, Wait


def one_message(num_bytes: int) -> StepTrace:
    """Rank 0 sends for half of a second, from 0.25 s on; rank 1, which ends last, half as much."""

    def own(rank: int, end: float) -> RankTrace:
        operations = (Post(0.25, "reduce_scatter", ((1 - rank, num_bytes >> rank),), ()), Wait(0, 0.25, 0.75))
        return RankTrace.synchronous((0.25,), (TaskTrace(0, 1, 0.25, operations),), 0.1, end)

    return {0: own(0, 0.9), 1: own(1, 1.0)}


def test_steps_follow_one_another_and_bytes_are_kept() -> None:
    found = bandwidth_over([one_message(1000), one_message(2000)])
    assert (found.bin_s, found.starts, found.end) == (0.01, [0.0, 1.0], 2.0)
    assert len(found.first) == 200
    assert found.first[30:32] == pytest.approx([2000, 2000])
    assert found.first[130] == pytest.approx(4000)
    assert sum(found.first) * 0.01 == pytest.approx(3000)
    assert sum(found.mean) * 0.01 == pytest.approx((3000 + 1500) / 2)
    ends = [at for interval in found.computing for at in interval]
    assert ends == pytest.approx([0.0, 0.25, 0.8, 0.9, 1.0, 1.25, 1.8, 1.9])
    assert found.edges[-1] == 2.0


@pytest.mark.parametrize(
    ("lengths", "width"),
    [
        ([1.0, 2.0], 0.01),
        ([0.2], 0.01),
        ([0.1, 0.3], 0.005),
        ([0.09], 0.002),
        ([0.001], 0.00005),
        ([3.0, 3.0], 0.02),
        ([600.0], 2.0),
    ],
)
def test_bins_suit_the_steps(lengths: list[float], width: float) -> None:
    assert bin_width(lengths) == pytest.approx(width)


@pytest.mark.parametrize("kind", ["paced", "simulated"])
def test_a_runs_bytes_are_under_the_curve(kind: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(kind)
    rows = read_rows(directory / "steps.jsonl")
    steps = [trace for _, trace in timed_steps(directory)]
    found = bandwidth_over(steps)
    widths = [b - a for a, b in zip(found.edges, found.edges[1:], strict=False)]
    carried = sum(rate * width for rate, width in zip(found.mean, widths, strict=True)) * len(steps[0])
    assert carried == pytest.approx(sum(row["bytes_sent"] for row in rows), rel=1e-6)
    if kind == "simulated":
        assert max(found.first) <= 50e6 / 8 * (1 + 1e-9), "more than the link carries"


def plotted(directory: Path) -> Plot | None:
    return bandwidth_plot(load_run(directory), "a run")


def test_the_plot_shows_the_same_in_every_form(simulated: Path) -> None:
    plot = plotted(simulated)
    assert plot is not None
    figures = [render(plot, form) for form in FORMS]
    (axes,) = figures[0].axes
    assert axes.get_ylabel() == "sent [MB/s]"
    assert axes.get_xlabel().startswith("time in steps 2 to 4 [ms]; bins of ")
    entries = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert entries == ["rank 0 computes", "next step", "mean of 4 ranks", "rank 0", "link, 50 Mbit/s"]
    first, *others = [[len(axes.patches), len(axes.lines)] for figure in figures for axes in figure.axes]
    assert all(other == first for other in others)
    assert list(np.asarray(axes.lines[-1].get_ydata())) == pytest.approx([6.25, 6.25])
    assert axes.get_ylim()[1] > 6.25


def test_links_without_a_rate_are_not_shown(tmp_path: Path) -> None:
    plot = plotted(virtual_run(tmp_path / "run", 2))
    assert plot is not None
    entries = [text.get_text() for text in render(plot, PRINT).legends[0].get_texts()]
    assert entries == ["rank 0 computes", "next step", "mean of 2 ranks", "rank 0"]


def test_a_comparison_has_a_panel_for_each_group_on_the_same_axes(simulated: Path, tmp_path: Path) -> None:
    other = virtual_run(tmp_path / "other", 4, *SIMULATED, "codec=bf16")
    unlimited = virtual_run(tmp_path / "unlimited", 4, "codec=fp32")
    groups = group_runs([load_run(each) for each in (simulated, other, unlimited)], ["codec", "network"])
    plot = bandwidth_comparison(groups, "bandwidth")
    assert plot is not None
    first, second = render(plot, PRINT).axes
    assert [axes.get_title(loc="left").split(",")[0] for axes in (first, second)] == ["BF16", "DynamiQ"]
    assert first.get_xlim() == second.get_xlim() and first.get_ylim() == second.get_ylim()
    assert bandwidth_comparison(groups[:1], "alone") is None


def test_no_plot_without_bytes_or_trace(tmp_path: Path) -> None:
    assert plotted(virtual_run(tmp_path / "one", 1)) is None
    assert plotted(virtual_run(tmp_path / "none", 2, *SIMULATED, "measure.trace=false")) is None
