"""Plots exist, have the size they should and show something; nobody pays for matplotlib before that."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gradwire.harness.report.compare import compare
from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.plots import limit_view, plot_groups, title, zoom_view
from gradwire.harness.report.run_plots import plot_run
from gradwire.harness.report.runs import load_run
from gradwire.harness.report.style import drawing, line_styles

if TYPE_CHECKING:
    from conftest import SyntheticRuns


def pixels(path: Path) -> np.ndarray:
    """The picture, shape (height, width, 4), values in [0, 1]."""
    from matplotlib.image import imread

    return np.asarray(imread(path))


def check_picture(path: Path) -> None:
    image = pixels(path)
    assert image.shape[1] == 1125, "7.5 inches at 150 dots"
    assert image.shape[0] >= 200
    assert (image[..., 3] == 1).all(), "an opaque ground, for dark pages"
    inked = (image[..., :3] < 0.9).any(axis=-1)
    assert 0.01 < inked.mean() < 0.7
    edge = np.concatenate([inked[0], inked[-1], inked[:, 0], inked[:, -1]])
    assert not edge.any(), "something is cut off at the border"


def test_plots_of_a_comparison(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(codec, seed) for codec in ("bf16", "dynamiq", "thc") for seed in (0, 1)]
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    pictures = [path for path in comparison.files if path.suffix == ".png"]
    assert [path.name for path in pictures] == ["metric.png", "breakdown.png", "vnmse.png"]
    for path in pictures:
        check_picture(path)


def test_plots_of_one_run(runs: SyntheticRuns, tmp_path: Path) -> None:
    pictures = plot_run(load_run(runs.write("dynamiq")), tmp_path / "plots")
    assert [path.name for path in pictures] == ["loss.png", "breakdown.png", "vnmse.png"]
    for path in pictures:
        check_picture(path)


def test_what_was_not_measured_is_not_plotted(runs: SyntheticRuns, tmp_path: Path) -> None:
    folder = runs.write()
    (folder / "steps.jsonl").write_text('{"step": 0, "train_time_s": 1.0, "loss": "nan"}\n')
    run = load_run(folder)
    assert [path.name for path in plot_run(run, tmp_path / "one")] == ["loss.png"]
    assert [path.name for path in plot_groups(group_runs([run]), tmp_path / "all")] == [
        "metric.png",
        "breakdown.png",
    ]


def test_a_diverged_run_is_drawn_as_far_as_it_goes(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(), runs.write("mxfp4")]
    runs.write_curve(folders[1], [500.0, 1e30, math.inf, math.nan])
    for path in plot_groups(group_runs([load_run(folder) for folder in folders]), tmp_path / "plots"):
        check_picture(path)


def test_a_diverged_run_does_not_hide_the_others(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(), runs.write("mxfp4")]
    runs.write_curve(folders[0], [400.0, 50.0, 20.0])
    runs.write_curve(folders[1], [400.0, 300.0, 1e30])
    groups = group_runs([load_run(folder) for folder in folders])
    with drawing(tmp_path / "view.png", "", panels=2) as (whole, end):
        limit_view(whole, groups)
        zoom_view(end, groups)
        assert whole.get_ylim() == pytest.approx((16.0, 800.0))
        low, high = end.get_ylim()
        assert 15 < low < 20
        assert 21 < high < 30, "all targets, up to 20 x 1.05, are in view"


def test_the_title_says_what_the_groups_share(runs: SyntheticRuns) -> None:
    loaded = [load_run(runs.write()), load_run(runs.write(name="b", topology={"name": "butterfly"}))]
    assert title(group_runs(loaded[:1])) == "gpt2 · wikitext · ring · 4 workers · wall clock"
    assert title(group_runs(loaded)) == "gpt2 · wikitext · 4 workers · wall clock"


def test_groups_can_be_told_apart_without_colour() -> None:
    styles = line_styles(["bf16"] + [f"codec{index}" for index in range(11)])
    assert len({(style.color, str(style.line), style.marker) for style in styles}) == len(styles)
    assert len({(str(style.line), style.marker) for style in styles}) == len(styles)


@pytest.mark.parametrize("module", ["compare", "plots", "run_plots", "runs"])
def test_importing_loads_no_matplotlib(module: str) -> None:
    code = f"import gradwire.harness.report.{module}, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
