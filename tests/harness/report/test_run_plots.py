"""Plots of one run, with and without everything that a run can have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from plot_checks import by_name, check_forms, legend, lines_by_label, row_names, words

from gradwire.harness.record.runs import load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.run_plots import plot_run, run_plots
from gradwire.harness.report.style import DARK, PRINT

if TYPE_CHECKING:
    from conftest import SyntheticRuns

pytestmark = pytest.mark.filterwarnings("error")


def plots_of(folder: Path) -> dict[str, Plot]:
    return by_name(run_plots(load_run(folder)))


def change_steps(folder: Path, change: Any) -> list[dict[str, Any]]:
    """Applies `change` to every row of the record; returns the rows."""
    path = folder / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mark_done(folder)
    return rows


def test_every_plot_is_there_in_both_forms(runs: SyntheticRuns, tmp_path: Path) -> None:
    files = plot_run(load_run(runs.write("dynamiq")), tmp_path / "plots")
    names = ["metric", "training", "breakdown", "vnmse", "bytes"]
    assert [path.name for path in files] == [
        f"{name}-{form}" for name in names for form in ("print.svg", "print.png", "dark.png")
    ]
    assert all(path.stat().st_size > 1000 for path in files)


def test_forms_agree_and_nothing_is_covered(runs: SyntheticRuns) -> None:
    folder = runs.write("dynamiq")
    change_steps(folder, lambda row: row.update({"codec/mu": 2.0 ** -row["step"]}))
    check_forms(list(plots_of(folder).values()))


def test_axes_say_what_and_in_which_unit(runs: SyntheticRuns) -> None:
    plots = plots_of(runs.write("dynamiq"))

    def labels(name: str) -> list[tuple[str, str]]:
        return [(axes.get_xlabel(), axes.get_ylabel()) for axes in render(plots[name], DARK).axes]

    assert labels("metric") == [
        ("training clock [s], wall", "evaluation perplexity"),
        ("training step", "evaluation perplexity"),
    ]
    assert labels("training") == [
        ("", "loss [nats]"),
        ("", "learning rate"),
        ("training step", "gradient norm"),
    ]
    assert labels("breakdown") == [("training step", "time of a step [ms]")]
    assert labels("vnmse") == [("training step", "vNMSE")]
    assert labels("bytes") == [("sent per step and rank [MB = 10⁶ bytes]", "")]


def test_every_plot_says_the_codec_the_network_and_the_seed(runs: SyntheticRuns) -> None:
    plots = plots_of(runs.write("thc", 3))
    assert {plot.title for plot in plots.values()} == {
        "THC · GPT-2 · wikitext · ring · 4 workers · emulated, 200 Mbit/s, shaped by the kernel · seed 3"
    }
    lines = words(render(plots["bytes"], PRINT))
    said = "THC · GPT-2 · wikitext · ring · 4 workers\nemulated, 200 Mbit/s, shaped by the kernel · seed 3"
    assert said in [text.replace("\u00a0", " ") for text in lines]


def test_the_metric_over_time_and_steps(runs: SyntheticRuns) -> None:
    folder = runs.write()
    runs.write_curve(folder, [40.0, 30.0, 20.0], every_s=2.5)
    clock, step = render(plots_of(folder)["metric"], PRINT).axes
    assert clock.lines[0].get_xydata().tolist() == [[2.5, 40], [5, 30], [7.5, 20]]
    assert step.lines[0].get_xydata().tolist() == [[10, 40], [20, 30], [30, 20]]


def test_the_breakdown_leaves_measured_steps_out(runs: SyntheticRuns) -> None:
    folder = runs.write("thc")
    rows = change_steps(folder, lambda row: row.update(compute_s=9.0) if row["measured"] else None)
    run = load_run(folder)
    figure = render(plots_of(folder)["breakdown"], PRINT)
    compute, compression, *_ = figure.axes[0].patches
    tops, edges, _ = compute.get_data()
    assert edges[0] == 1
    assert edges[-1] == 200
    assert tops.max() < 1e3
    timed = [row for row in rows if not row["measured"]][: math.ceil(180 / 60)]
    assert tops[0] == pytest.approx(1e3 * fmean(row["compute_s"] for row in timed))
    assert compression.get_data().baseline.tolist() == tops.tolist(), "parts are stacked"
    assert legend(figure) == [
        f"compute: {1e3 * run.done.figures['compute_s']:.0f} ms",
        f"compression: {1e3 * run.done.figures['compression_s']:.0f} ms",
        f"exposed comm: {1e3 * run.done.figures['exposed_comm_s']:.0f} ms",
        f"other: {1e3 * run.done.figures['other_s']:.1f} ms",
    ]


def test_the_breakdown_of_a_run_measured_throughout(runs: SyntheticRuns) -> None:
    """Measured steps count if there are no others, as in the summary."""
    folder = runs.write()
    change_steps(folder, lambda row: row.update(measured=True))
    (edges,) = {
        tuple(patch.get_data().edges[[0, -1]])
        for patch in render(plots_of(folder)["breakdown"], PRINT).axes[0].patches
    }
    assert edges == (0, 200)


def test_bytes_by_phase(runs: SyntheticRuns) -> None:
    folder = runs.write("dynamiq")
    phases = {"metadata": 80_000_000, "reduce_scatter": 480_000_000, "all_gather": 240_000_000, "weights": 0}
    runs.write_steps(folder, [{} for _ in range(100)])
    runs.change_summary(folder, bytes_by_phase=phases)
    axes = render(plots_of(folder)["bytes"], PRINT).axes[0]
    assert row_names(axes) == ["metadata", "reduce-scatter", "all-gather"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.2, 1.2, 0.6])
    assert [text.get_text() for text in axes.texts] == ["0.200 (10.0%)", "1.20 (60.0%)", "0.600 (30.0%)"]
    assert len({bar.get_hatch() for bar in axes.patches}) == 3, "not by colour alone"


def test_one_worker_sends_nothing_and_nothing_is_split(runs: SyntheticRuns) -> None:
    folder = runs.write()
    nothing = {"bytes_sent_per_rank": [0], "bytes_by_phase": {"metadata": 0}}
    runs.change_summary(folder, workers=1, wire_bits_per_coordinate=None, compute_s=None, **nothing)
    change_steps(folder, lambda row: row.pop("vnmse", None))
    assert list(plots_of(folder)) == ["metric", "training"]


def test_without_spans_there_is_no_breakdown(runs: SyntheticRuns) -> None:
    folder = runs.write()
    change_steps(folder, lambda row: row.pop("compute_s"))
    assert "breakdown" not in plots_of(folder)


def test_what_is_not_finite_is_counted(runs: SyntheticRuns) -> None:
    folder = runs.write()
    runs.write_curve(folder, [40.0, math.inf, math.nan])
    change_steps(folder, lambda row: row.update(loss="nan") if row["step"] >= 150 else None)
    plots = plots_of(folder)
    check_forms([plots["metric"], plots["training"]])
    assert render(plots["metric"], PRINT).axes[0].get_title(loc="left") == "not finite at 2 of 3 evaluations"
    top = render(plots["training"], PRINT).axes[0]
    assert top.get_title(loc="left") == "training loss not finite at 50 of 200 steps"
    assert lines_by_label(top)["training"].get_xdata()[-1] == 149


def test_a_record_that_is_nearly_empty(runs: SyntheticRuns) -> None:
    folder = runs.write()
    runs.write_steps(folder, [{"loss": "nan"}])
    (folder / "evals.jsonl").write_text("")
    mark_done(folder)
    plots = plots_of(folder)
    assert list(plots) == ["training", "bytes"]
    check_forms(list(plots.values()))


def test_what_the_codec_logs_is_in_one_panel(runs: SyntheticRuns) -> None:
    folder = runs.write("mxfp8")

    def log(row: dict[str, Any]) -> None:
        row["codec/mu"] = 1.0 / (1 + row["step"])
        if row["step"] % 2:
            row["codec/overflows"] = row["step"]

    change_steps(folder, log)
    (axes,) = render(plots_of(folder)["codec"], PRINT).axes
    lines = lines_by_label(axes)
    assert list(lines) == ["mu", "overflows"]
    assert lines["overflows"].get_xydata().tolist() == [[step, step] for step in range(1, 200, 2)]
    assert len({line.get_marker() for line in lines.values()}) == 2
    assert "codec" not in plots_of(runs.write("bf16"))


def test_many_series_of_a_codec(runs: SyntheticRuns) -> None:
    folder = runs.write("powersgd")
    change_steps(folder, lambda row: row.update({f"codec/rank {layer}": layer for layer in range(40)}))
    plot = plots_of(folder)["codec"]
    check_forms([plot])
    assert len(legend(render(plot, PRINT))) == 12
    assert "the first 12 of 40 series" in words(render(plot, PRINT))
