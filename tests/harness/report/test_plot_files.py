"""Files of plots: equal for equal data, whatever the settings around; and the looks of the two forms."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gradwire.harness.record.runs import load_run
from gradwire.harness.report.figures import WIDTH, Plot, write_plots
from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.plots import plot_groups
from gradwire.harness.report.run_plots import plot_run, run_plots
from gradwire.harness.report.style import DARK, FORMS, HUES, PARTS, PHASES, PRINT, Form, line_styles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import SyntheticRuns
    from matplotlib.axes import Axes


def contents(files: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files}


def test_equal_data_make_equal_files(runs: SyntheticRuns, tmp_path: Path) -> None:
    """Another process makes equal files, too, without a display, a window system or pyplot."""
    run = load_run(runs.write("dynamiq"))
    files = contents(plot_groups(group_runs([run]), tmp_path / "here"))
    code = f"""
import sys
from gradwire.harness.report import compare, groups, plots, run_plots
from gradwire.harness.record import runs
assert "matplotlib" not in sys.modules, "nobody pays for matplotlib before there is something to plot"
run = runs.load_run({str(run.folder)!r})
plots.plot_groups(groups.group_runs([run]), {str(tmp_path / "there")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    environment = os.environ | {"PYTHONHASHSEED": "7", "MPLBACKEND": "tkagg", "DISPLAY": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert contents(sorted((tmp_path / "there").iterdir())) == dict(sorted(files.items()))


def test_the_users_settings_neither_matter_nor_change(runs: SyntheticRuns, tmp_path: Path) -> None:
    from matplotlib import rc_context, rcParams

    plots = run_plots(load_run(runs.write()))[-2:]
    before = dict(rcParams)
    files = contents(write_plots(plots, tmp_path / "plain"))
    assert dict(rcParams) == before
    with rc_context({"font.size": 30.0, "lines.linestyle": ":", "savefig.dpi": 30, "axes.grid": False}):
        changed = dict(rcParams)
        assert contents(write_plots(plots, tmp_path / "changed")) == files
        assert dict(rcParams) == changed


def test_a_plot_that_fails_costs_a_line_and_leaves_settings_as_they_were(
    runs: SyntheticRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib import rcParams

    def fail(panels: Sequence[Axes], form: Form) -> None:
        raise ValueError("nothing to see")

    before = dict(rcParams)
    (plot,) = [plot for plot in run_plots(load_run(runs.write())) if plot.name == "bytes"]
    files = write_plots([Plot("none", "", fail), plot], tmp_path)
    assert files and {path.name.split("-")[0] for path in files} == {"bytes"}, "the others are there"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"note: no plot none in {tmp_path} (ValueError: nothing to see); all else is complete"
    assert dict(rcParams) == before


def test_a_full_disk_and_a_folder_that_is_none_cost_plots_alone(
    runs: SyntheticRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    def full(figure: Figure, path: Path, **options: object) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    run = load_run(runs.write())
    (tmp_path / "file").touch()
    assert write_plots(run_plots(run)[:1], tmp_path / "file") == []
    monkeypatch.setattr(Figure, "savefig", full)
    assert write_plots(run_plots(run)[:1], tmp_path / "plots") == []
    assert list((tmp_path / "plots").iterdir()) == []
    exists, disk = capsys.readouterr().err.splitlines()
    assert "file (FileExistsError: " in exists and "No space left on device" in disk
    (tmp_path / "link").symlink_to(tmp_path / "plots")
    assert plot_run(run, tmp_path / "link") == []
    assert "is a link, which is not followed" in capsys.readouterr().err


def test_the_grounds_are_white_and_dark(runs: SyntheticRuns, tmp_path: Path) -> None:
    """Opaque, so that each form can be read on any page, and as wide as a column."""
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    plots = [plot for plot in run_plots(load_run(runs.write())) if plot.name == "breakdown"]
    files = {path.name: path for path in write_plots(plots, tmp_path)}
    for form in FORMS:
        image = np.asarray(imread(files[f"breakdown-{form.name}.png"]))
        assert image.shape[1] == WIDTH * 200
        assert image.shape[2] == 3 or (image[..., 3] == 1).all()
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])[:, :3]
        assert np.allclose(edge, to_rgb(form.ground), atol=1 / 255), "nothing is cut off at the border"
    assert contrast(PRINT.ground, "#FFFFFF") == 1
    assert contrast(DARK.ground, "#000000") < 1.2


def test_the_vector_file_is_as_wide_as_a_column(runs: SyntheticRuns, tmp_path: Path) -> None:
    files = write_plots(run_plots(load_run(runs.write()))[-1:], tmp_path)
    svg = next(path for path in files if path.suffix == ".svg").read_text()
    width = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)
    assert width is not None
    assert float(width[1]) == pytest.approx(72 * WIDTH)
    assert "<text" not in svg, "letters are outlines, the same on every machine"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_colour_stands_out_from_its_ground(form: Form) -> None:
    assert contrast(form.colors["ink"], form.ground) > 15
    assert min(contrast(color, form.ground) for color in form.colors.values()) >= 3
    assert len(set(form.colors.values())) == len(form.colors)


def test_both_forms_have_the_same_hues() -> None:
    assert PRINT.colors.keys() == DARK.colors.keys() >= set(HUES)


def test_groups_are_distinguishable_without_colour() -> None:
    styles = line_styles(["bf16"] + [f"codec{index}" for index in range(11)])
    assert len({(str(style.line), style.marker) for style in styles}) == 12
    assert len({(style.hue, str(style.line)) for style in styles}) == 12
    assert styles[0].hue == "ink"
    assert all(one.marker != other.marker for one, other in pairwise(styles))


@pytest.mark.parametrize("fillings", [PARTS, PHASES], ids=["parts", "phases"])
def test_parts_of_a_stack_are_distinguishable_without_colour(fillings: dict[str, object]) -> None:
    assert len({filling.hatch for filling in fillings.values()}) == len(fillings)  # type: ignore[attr-defined]
    assert len({filling.hue for filling in fillings.values()}) == len(fillings)  # type: ignore[attr-defined]


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.1: 1 for equal colours, 21 for black and white."""
    bright, faint = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (faint + 0.05)


def luminance(color: str) -> float:
    from matplotlib.colors import to_rgb

    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
