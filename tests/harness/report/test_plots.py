"""Plots of a comparison: their content, in both forms, for groups that are few, many, odd or failed."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from plot_checks import by_name, check_forms, legend, lines_by_label, places, row_names, words

from gradwire.harness.record.runs import load_run
from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.groups import Group, count_parameters, group_runs, title
from gradwire.harness.report.plots import group_plots, plot_groups
from gradwire.harness.report.style import DARK, PRINT

if TYPE_CHECKING:
    from conftest import SyntheticRuns

pytestmark = pytest.mark.filterwarnings("error")


def groups_of(*folders: Path) -> list[Group]:
    return group_runs([load_run(folder) for folder in folders], ["codec"])


def plots_of(*folders: Path) -> dict[str, Plot]:
    return by_name(group_plots(groups_of(*folders)))


@pytest.fixture
def three(runs: SyntheticRuns) -> dict[str, Plot]:
    """Three codecs, three seeds each."""
    return plots_of(*(runs.write(codec, seed) for codec in ("bf16", "dynamiq", "thc") for seed in (0, 1, 2)))


def test_every_plot_is_there_in_both_forms(runs: SyntheticRuns, tmp_path: Path) -> None:
    files = plot_groups(groups_of(runs.write(), runs.write("dynamiq")), tmp_path / "out")
    names = ["metric", "metric-end", "metric-steps", "tta", "breakdown", "vnmse", "bits"]
    forms = ("print.svg", "print.png", "print.pdf", "dark.png")
    assert [path.name for path in files] == [f"{name}-{form}" for name in names for form in forms]
    assert all(path.stat().st_size > 1000 for path in files)


def test_the_ratio_of_each_seed_and_the_changes_of_rate(runs: SyntheticRuns) -> None:
    network = {"name": "shaped", "rate_mbit": 200.0, "rate_changes": [[2, 0.25], [5, 1]]}
    folders = [runs.write("bf16", network=network)]
    for seed in (0, 1):
        folders.append(runs.write("dynamiq", seed, network=network))
        runs.write_steps(folders[-1], [{"codec/ratio": ratio} for ratio in (1.0, 0.5, 0.5, 0.125 + seed / 8)])
    plot = plots_of(*folders)["ratio"]
    check_forms([plot])
    axes = render(plot, PRINT).axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 4]
    assert [list(line.get_ydata()) for line in lines] == [[1.0, 0.5, 0.5, 0.125], [1.0, 0.5, 0.5, 0.25]]
    assert [list(line.get_xdata()) for line in lines] == [[1.0, 2.0, 3.0, 4.0]] * 2
    assert [line.get_xdata()[0] for line in axes.lines if line not in lines] == [2.0, 5.0]


def test_forms_agree_and_nothing_is_covered(three: dict[str, Plot]) -> None:
    check_forms(list(three.values()))


def test_a_form_takes_its_places_from_another(three: dict[str, Plot]) -> None:
    """Positions are computed once for all forms; computing them again gives the same."""
    for plot in three.values():
        own = render(plot, DARK)
        taken = render(plot, DARK, render(plot, PRINT))
        assert places(taken) == places(own)
        assert [text.get_position() for text in taken.texts] == [text.get_position() for text in own.texts]
        assert words(taken) == words(own)


def test_twelve_groups(runs: SyntheticRuns) -> None:
    codecs = ("bf16", "dynamiq", "mxfp8", "mxfp4", "thc", "omnireduce", "native", "powersgd")
    folders = [runs.write(codec, seed) for codec in codecs for seed in (0, 1)]
    for bits in (3, 4, 6, 7):
        folders.append(runs.write("dynamiq", name=f"{bits} bits", codec={"name": "dynamiq", "bits": bits}))
    plots = plots_of(*folders)
    check_forms(list(plots.values()))
    for name in ("metric", "metric-end", "metric-steps", "vnmse"):
        figure = render(plots[name], PRINT)
        assert len(legend(figure)) == 12
        looks = {
            (line.get_color(), line.get_marker(), line.get_markerfacecolor(), line.get_linestyle())
            for line in lines_by_label(figure.axes[0]).values()
        }
        faces = {look[:1] + look[2:3] for look in looks}
        assert (len(looks), len(faces)) == (12, 12), "colour and filling alone tell the twelve apart"
    for name in ("tta", "breakdown", "bits"):
        assert len(row_names(render(plots[name], PRINT).axes[0])) == 12


def test_long_names(runs: SyntheticRuns) -> None:
    long = {"name": "dynamiq", "non_uniform_quantization_of_groups": True}
    folders = [runs.write(), runs.write("dynamiq", name="a", codec=long | {"super_group_size": 256})]
    folders.append(
        runs.write("dynamiq", name="b", codec=long | {"super_group_size": 512, "rounding": "x" * 50})
    )
    plots = plots_of(*folders)
    check_forms(list(plots.values()))
    labels = [group.words for group in groups_of(*folders)]
    assert labels[1] == "DynamiQ, super group size 256"
    assert legend(render(plots["metric"], PRINT))[:2] == labels[:2]


def test_axes_legends_and_titles(three: dict[str, Plot]) -> None:
    """Units, the clock, the groups, and how many seeds there were."""
    figures = {name: render(plot, DARK) for name, plot in three.items()}
    labels = {name: (f.axes[-1].get_xlabel(), f.axes[-1].get_ylabel()) for name, f in figures.items()}
    assert labels == {
        "metric": ("training clock [s], wall", "evaluation perplexity"),
        "metric-end": ("training clock [s], wall", "evaluation perplexity"),
        "metric-steps": ("training step", "evaluation perplexity"),
        "tta": ("training clock [s], wall", ""),
        "breakdown": ("time of a step [ms], wall clock", ""),
        "vnmse": ("training step", "vNMSE"),
        "bits": ("bits on the wire per coordinate", ""),
    }
    for name, figure in figures.items():
        if name.startswith(("metric", "vnmse")):
            assert legend(figure) == ["BF16", "DynamiQ", "THC"]
        else:
            assert all(row_names(axes) == ["BF16", "DynamiQ", "THC"] for axes in figure.axes)
        assert any("shaped by the kernel 3 seeds: median" in plain(text) for text in words(figure))


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\n", " ")


def test_a_group_looks_the_same_in_all_plots(runs: SyntheticRuns) -> None:
    """A group looks the same even if two clocks divide the groups over several plots."""
    folders = [runs.write(codec) for codec in ("bf16", "mxfp8", "dynamiq", "thc")]
    for folder in (folders[1], folders[3]):
        runs.change_summary(folder, clock="simulated")
    looks: dict[str, set[Any]] = {}
    for name, plot in plots_of(*folders).items():
        if name.startswith(("metric", "vnmse")):
            for label, line in lines_by_label(render(plot, PRINT).axes[0]).items():
                looks.setdefault(label, set()).add(
                    (line.get_color(), line.get_marker(), line.get_linestyle())
                )
    assert len(looks) == 4
    assert all(len(found) == 1 for found in looks.values()), looks
    assert len(set.union(*looks.values())) == 4


def test_a_bar_has_the_colour_of_its_groups_line(three: dict[str, Plot]) -> None:
    from matplotlib.colors import to_hex

    lines = lines_by_label(render(three["metric"], PRINT).axes[0])
    bars = render(three["tta"], PRINT).axes[0].patches
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [
        to_hex(lines[name].get_color()) for name in ("BF16", "DynamiQ", "THC")
    ]


def test_the_line_is_the_median_and_the_band_the_range(runs: SyntheticRuns) -> None:
    folders = [runs.write("bf16", seed) for seed in (0, 1, 2)]
    for folder, values in zip(folders, ([90.0, 30.0], [70.0, 50.0], [80.0, 20.0]), strict=True):
        runs.write_curve(folder, values, every_s=10 if folder is folders[0] else 1)
    axes = render(plots_of(*folders)["metric"], PRINT).axes[0]
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_xydata().tolist() == [[1, 80], [2, 30]]
    corners = {tuple(point) for point in np.round(band.get_paths()[0].vertices, 9).tolist()}
    assert corners == {(1, 70), (1, 90), (2, 20), (2, 50)}


def test_against_steps_it_is_the_same_curve(runs: SyntheticRuns) -> None:
    folders = [runs.write("bf16", seed) for seed in (0, 1, 2)]
    for folder, values in zip(folders, ([90.0, 30.0], [70.0, 50.0], [80.0, 20.0]), strict=True):
        runs.write_curve(folder, values)
    (line,) = render(plots_of(*folders)["metric-steps"], PRINT).axes[0].lines
    assert line.get_xydata().tolist() == [[10, 80], [20, 30]]


def test_of_one_evaluation_each_seed_is_shown(runs: SyntheticRuns) -> None:
    folders = [runs.write("bf16", seed) for seed in (0, 1, 2)]
    for folder, value, second in zip(folders, (90.0, 70.0, 75.0), (1.0, 2.0, 4.0), strict=True):
        runs.write_curve(folder, [value], every_s=second)
    plot = plots_of(*folders)["metric"]
    check_forms([plot])
    axes = render(plot, PRINT).axes[0]
    seeds, median = axes.lines
    assert seeds.get_xydata().tolist() == [[1, 90], [2, 70], [4, 75]]
    assert median.get_xydata().tolist() == [[2, 75]]
    (reach,) = axes.collections
    assert reach.get_segments()[0].tolist() == [[2, 70], [2, 90]]
    assert plain(plot.title).endswith("3 seeds: median, range and each seed")


def test_one_seed_has_no_band(runs: SyntheticRuns) -> None:
    plots = plots_of(runs.write(), runs.write("dynamiq"))
    for name in ("metric", "vnmse"):
        check_forms([plots[name]])
        assert not render(plots[name], PRINT).axes[0].collections
    assert plain(plots["metric"].title).endswith("shaped by the kernel · 1 seed")


def test_bars_are_the_times_to_each_target(runs: SyntheticRuns) -> None:
    folders = {
        (codec, seed): runs.write(codec, seed) for codec in ("bf16", "thc", "mxfp4") for seed in (0, 1, 2)
    }
    for (codec, seed), folder in folders.items():
        last = {"bf16": 20.0, "thc": 20.0 if seed else 25.0, "mxfp4": 20.8 if seed == 0 else 25.0}[codec]
        runs.write_curve(folder, [40.0, 22.0, last], every_s=1.0 + seed)
    figure = render(plots_of(*folders.values())["tta"], PRINT)
    assert [axes.get_title(loc="right") for axes in figure.axes] == [
        "perplexity ≤ 21 (×1.05)",
        "perplexity ≤ 20.60 (×1.03)",
        "perplexity ≤ 20.20 (×1.01)",
        "perplexity ≤ 20.10 (×1.005)",
    ]
    loosest, *others = figure.axes
    assert [bar.get_width() for bar in loosest.patches] == [6, 9], "medians of 3, 6, 9 and of ∞, 6, 9"
    assert [text.get_text() for text in loosest.texts] == ["6", "9 (2/3)", "not reached (1/3)"]
    for axes in others:
        assert [text.get_text() for text in axes.texts] == ["6", "9 (2/3)", "not reached"]
        assert len(axes.patches) == 2, "a group that missed has no bar"


def test_a_failed_seed_is_a_miss(runs: SyntheticRuns) -> None:
    folders = [runs.write(codec, seed) for codec in ("bf16", "thc") for seed in (0, 1, 2)]
    for folder in folders:
        runs.write_curve(folder, [40.0, 20.0])
    runs.fail(folders[3], "killed")
    plots = plots_of(*folders)
    assert legend(render(plots["metric"], PRINT)) == ["BF16", "THC (3 seeds, 1 failed)"]
    assert [text.get_text() for text in render(plots["tta"], PRINT).axes[0].texts] == ["2", "2 (2/3)"]


def test_accuracies_rise(runs: SyntheticRuns) -> None:
    folders = [runs.write("bf16"), runs.write("dynamiq"), runs.write("thc")]
    noise = random.Random(5)
    for folder, best in zip(folders, (0.7, 0.71, 0.5), strict=True):
        curve = [best * (1 - math.exp(-index / 3)) + noise.uniform(0, 1e-3) for index in range(1, 20)]
        runs.write_curve(folder, curve, metric="accuracy")
    plots = plots_of(*folders)
    check_forms([plots["metric"], plots["metric-end"], plots["tta"]])
    whole, tta = render(plots["metric"], PRINT).axes[0], render(plots["tta"], PRINT)
    assert whole.get_yscale() == "linear"
    assert whole.get_ylim()[1] > 0.7
    assert tta.axes[0].get_title(loc="right").startswith("accuracy ≥ ")
    low, high = render(plots["metric-end"], PRINT).axes[0].get_ylim()
    assert 0.6 < low < 0.7 < high < 0.75, "the group that stays far behind is out of view"


def test_the_breakdown_adds_up(runs: SyntheticRuns) -> None:
    folders = [runs.write(codec, seed) for codec in ("bf16", "thc") for seed in (0, 1, 2)]
    groups = groups_of(*folders)
    figure = render(by_name(group_plots(groups))["breakdown"], PRINT)
    assert legend(figure) == ["compute", "compression", "exposed comm", "other"]
    for row, group in enumerate(groups):
        bars = figure.axes[0].patches[row::2]
        times = sorted(1e3 / run.done.rounds_per_second for run in group.runs)
        assert sum(bar.get_width() for bar in bars) == pytest.approx(times[1]), "the seed in the middle"
        assert [bar.get_hatch() for bar in bars] == ["", "////", "xxxx", "\\\\\\\\"], "not by colour alone"


def test_seeds_that_differ_have_a_range(runs: SyntheticRuns) -> None:
    folders = [runs.write(codec, seed) for codec in ("bf16", "thc") for seed in (0, 1, 2)]
    for folder, bits in zip(folders, (16, 16, 16, 4, 8, 5), strict=True):
        runs.change_summary(folder, wire_bits_per_coordinate=float(bits))
    lines = render(plots_of(*folders)["bits"], PRINT).axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[4, 8]] * 2, "one line on a wider one"
    lines = render(plots_of(*folders)["breakdown"], PRINT).axes[0].lines
    for line, own in zip(lines[::2], (folders[:3], folders[3:]), strict=True):
        times = [1e3 / load_run(folder).done.rounds_per_second for folder in own]
        assert list(line.get_xdata()) == pytest.approx([min(times), max(times)])


def test_without_spans_a_step_is_not_split(runs: SyntheticRuns) -> None:
    folders = [runs.write(), runs.write("native")]
    runs.change_summary(folders[1], compute_s=None, compression_s=None, exposed_comm_s=None, other_s=None)
    figure = render(plots_of(*folders)["breakdown"], PRINT)
    assert legend(figure)[-1] == "parts not recorded"
    whole = [bar.get_width() for bar in figure.axes[0].patches if bar.get_hatch() == "++++"]
    assert whole == [0, pytest.approx(1332, rel=0.05)]
    assert "breakdown" not in plots_of(folders[1])


def test_bits_by_phase(runs: SyntheticRuns) -> None:
    folders = [runs.write(), runs.write("dynamiq"), runs.write("native")]
    phases = {"metadata": 100, "reduce_scatter": 500, "all_gather": 400, "weights": 0, "a_new_phase": 1000}
    runs.change_summary(folders[1], bytes_by_phase=phases, wire_bits_per_coordinate=4.0)
    runs.change_summary(folders[2], wire_bits_per_coordinate=None)
    figure = render(plots_of(*folders)["bits"], PRINT)
    assert legend(figure) == ["reduce-scatter", "all-gather", "metadata", "a new phase"]
    dynamiq = [bar.get_width() for bar in figure.axes[0].patches[1::3]]
    assert dynamiq == pytest.approx([1.0, 0.8, 0.2, 2.0])
    assert [text.get_text() for text in figure.axes[0].texts] == ["16", "4", "not counted"]


def test_one_worker_sends_nothing(runs: SyntheticRuns) -> None:
    folder = runs.write()
    nothing = {"bytes_sent_per_rank": [0], "bytes_by_phase": {"metadata": 0}}
    runs.change_summary(folder, workers=1, wire_bits_per_coordinate=None, **nothing)
    assert "bits" not in plots_of(folder)


def test_what_was_not_measured_is_not_plotted(runs: SyntheticRuns) -> None:
    folder = runs.write()
    runs.write_steps(folder, [{"loss": "nan"}])
    assert list(plots_of(folder)) == ["metric", "metric-end", "metric-steps", "tta", "breakdown", "bits"]


def test_zero_error_is_noted_on_a_logarithmic_axis(runs: SyntheticRuns) -> None:
    folders = [runs.write(), runs.write("dynamiq"), runs.write("native")]
    runs.write_steps(folders[0], [{"vnmse": 0.0}, {"vnmse": "inf"}])
    runs.write_steps(folders[2], [{}])
    plots = plots_of(*folders)
    check_forms([plots["vnmse"]])
    assert legend(render(plots["vnmse"], PRINT)) == ["BF16: exact", "DynamiQ", "native: not measured"]


def test_a_diverged_seed_leaves_the_view(runs: SyntheticRuns) -> None:
    folders = [runs.write("bf16"), runs.write("mxfp4", 0), runs.write("mxfp4", 1), runs.write("mxfp4", 2)]
    runs.write_curve(folders[0], [400.0, 50.0, 20.0])
    for folder in folders[1:3]:
        runs.write_curve(folder, [400.0, 90.0, 60.0])
    runs.write_curve(folders[3], [400.0, 1e30, math.nan])
    plots = plots_of(*folders)
    check_forms([plots["metric"], plots["metric-end"], plots["tta"]])
    figure = render(plots["metric"], PRINT)
    (band,) = figure.axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].max() > figure.axes[0].get_ylim()[1]
    assert figure.axes[0].get_ylim() == (pytest.approx(17, abs=1.1), 800)
    assert legend(figure) == ["BF16 (1 seed)", "MXFP4 (3 seeds, 1 diverged)"]


def test_a_diverged_group_does_not_hide_the_others(runs: SyntheticRuns) -> None:
    folders = [runs.write(), runs.write("mxfp4")]
    runs.write_curve(folders[0], [400.0, 50.0, 20.0])
    runs.write_curve(folders[1], [400.0, 300.0, 1e30])
    plots = plots_of(*folders)
    check_forms([plots["metric"], plots["metric-end"]])
    assert render(plots["metric"], PRINT).axes[0].get_ylim()[1] == 800
    low, high = render(plots["metric-end"], PRINT).axes[0].get_ylim()
    assert 15 < low < 20
    assert 21 < high < 30, "all targets, up to 20 x 1.05, are in view"


def test_nothing_finite_is_no_plot(runs: SyntheticRuns) -> None:
    folder = runs.write()
    runs.write_curve(folder, [math.inf, math.nan])
    assert list(plots_of(folder)) == ["breakdown", "vnmse", "bits"]


def test_the_title_says_how_large_the_model_is(runs: SyntheticRuns) -> None:
    """A shrunken model of a million parameters is not labelled as the model it is named after."""
    tiny = [runs.write(codec, size={"name": "tiny"}) for codec in ("bf16", "dynamiq")]
    for folder in tiny:
        runs.change_summary(folder, num_coordinates=1_148_160)
    shared = "wikitext · ring · 4 workers · emulated, 200 Mbit/s, shaped by the kernel · 1 seed"
    assert title(groups_of(*tiny)) == f"GPT-2, size tiny, 1.15M parameters · {shared}"
    runs.change_summary(tiny[1], num_coordinates=1_000_000)
    assert title(groups_of(*tiny)) == f"GPT-2, size tiny · {shared}"
    small = runs.write(name="small", size={"name": "small"}, model={"name": "gpt2", "num_layers": 1})
    assert title(groups_of(tiny[0], small)) == f"GPT-2 · {shared}"
    check_forms(group_plots(groups_of(*tiny)))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1"),
        (912, "912"),
        (999, "999"),
        (1000, "1k"),
        (10**6, "1M"),
        (10**9, "1B"),
        (29_000, "29k"),
        (940_800, "941k"),
        (999_999, "1M"),
        (14_380_000, "14.4M"),
    ]
    + [(124_439_808, "124M"), (1_235_814_400, "1.24B"), (12_900_000_000, "12.9B")],
)
def test_parameters_are_counted_as_names_of_models_do(count: int, text: str) -> None:
    assert count_parameters(count) == f"{text} parameters"


def test_the_title_says_what_the_groups_share(runs: SyntheticRuns) -> None:
    folders = [runs.write(), runs.write("dynamiq", topology={"name": "butterfly"}), runs.write("bf16", 1)]
    assert (
        title(groups_of(folders[0]))
        == "BF16 · GPT-2 · wikitext · ring · 4 workers · emulated, 200 Mbit/s, shaped by the kernel · 1 seed"
    )
    assert (
        title(groups_of(*folders), "median")
        == "GPT-2 · wikitext · 4 workers · emulated, 200 Mbit/s, shaped by the kernel · 1 to 2 seeds: median"
    )
