"""`task=statistics` from a file to tables, JSON and plots, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_task
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.report import figures
from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.style import FORMS, PRINT
from gradwire.harness.studies.statistics.collect import Statistics, collect
from gradwire.harness.studies.statistics.study import STUDY as STATISTICS
from gradwire.harness.studies.statistics.study import StatisticsTask
from gradwire.harness.studies.statistics.views import percent, plots, text
from gradwire.harness.studies.study import TABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYOUTS = [
    Layout(("weight", "bias"), ((128, 96), (96,)), (0, 128 * 96), 128 * 96 + 96),
    Layout.flat(5000),
]
NUMEL = sum(layout.numel for layout in LAYOUTS)


def gradients(workers: int = 3, numel: int = NUMEL) -> Tensor:
    """Heavy-tailed, alike on all workers."""
    generator = torch.Generator().manual_seed(0)
    magnitude = torch.exp(2 * torch.randn(-(-numel // 64), generator=generator)).repeat_interleave(64)[:numel]
    common = torch.randn(numel, generator=generator)
    return 1e-4 * magnitude * (common + torch.randn(workers, numel, generator=generator))


def settings(path: Path, **changed: Any) -> StatisticsTask:
    """The settings that the command line makes of these values of `statistics`."""
    values = [
        f"statistics.{name}={value}".replace(" ", "").replace("'", "") for name, value in changed.items()
    ]
    config = validate_task(compose(["task=statistics", f"gradients={path}", *values]))
    assert isinstance(config, StatisticsTask)
    return config


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three workers' gradients in two buckets, one of which says which parameters it holds."""
    path = tmp_path_factory.mktemp("saved") / "step-3.safetensors"
    write_gradients(path, gradients(), LAYOUTS, {"step": 3})
    return path


@pytest.fixture(scope="module")
def found() -> Statistics:
    return collect(gradients(), [Layout.flat(NUMEL)], [3, 4, 5, 6], seed=0)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are laid out once and not written: that takes most of the time."""

    def draw(shown: Sequence[Plot], folder: Path) -> None:
        for plot in shown:
            render(plot, PRINT)

    monkeypatch.setattr(figures, "write_plots", draw)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "write_plots", lambda shown, folder: None)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def test_from_a_file_to_a_directory(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables of at most 140 columns, JSON whose numbers are all finite, plots in every form; run again, it
    shows the tables and does nothing."""
    config, directory = settings(file), tmp_path / "run"
    assert STATISTICS.name(config) == "statistics-step-3"
    assert STATISTICS.run(config, directory) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith("step-3.safetensors · 3 workers") and lines[-1] == f"run: {directory}"
    assert max(map(len, lines[:-1])) <= 140
    assert "weight" in shown and "128 x 96" in shown

    content = json.loads((directory / STATISTICS.record.file).read_text(), parse_constant=pytest.fail)
    assert all(map(math.isfinite, numbers(content)))
    assert content["num_workers"] == 3 and content["about"] == {"step": 3}
    assert [each["name"] for each in content["entropy"]["matrices"]] == ["weight"]
    assert [each["bits"] for each in content["widths"]["allocations"]] == [3, 4, 5, 6]
    for curve in (content["widths"], *content["norms"]):
        assert len(curve["quantiles"]) == 101 and curve["quantiles"] == sorted(curve["quantiles"])
    assert content["bound"] == sorted(content["bound"], reverse=True)
    names = {path.name for path in (directory / "plots").iterdir()}
    assert names == {
        f"{name}-{form}"
        for name in ("norms", "widths", "smoothing")
        for form in ("print.svg", "print.png", "dark.png")
    }

    written = (directory / STATISTICS.record.file).stat().st_mtime_ns
    assert STATISTICS.run(config, directory) == 0
    again = capsys.readouterr().out
    assert again == f"already finished: {directory} (resume=never runs it again)\n" + shown
    assert (directory / STATISTICS.record.file).stat().st_mtime_ns == written


@pytest.mark.usefixtures("undrawn")
def test_the_same_file_gives_the_same_numbers(file: Path, tmp_path: Path) -> None:
    """The seed changes nothing but the shuffle."""
    contents = []
    for index, seed in enumerate((0, 0, 1)):
        STATISTICS.run(replace(settings(file), seed=seed), tmp_path / str(index))
        contents.append(json.loads((tmp_path / str(index) / STATISTICS.record.file).read_text()))
    assert contents[0] == contents[1]
    differing = {key for key in contents[0] if contents[0][key] != contents[2][key]}
    assert differing == {"seed", "norms"}


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("numel", [1, 300])
@pytest.mark.parametrize("workers", [1, 2])
def test_tiny_files(workers: int, numel: int, tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    np.savez(path, gradients=gradients(workers, numel).numpy())
    assert STATISTICS.run(settings(path), tmp_path / "run") == 0
    json.loads((tmp_path / "run" / STATISTICS.record.file).read_text(), parse_constant=pytest.fail)
    assert max(map(len, (tmp_path / "run" / TABLES).read_text().splitlines())) <= 140


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("value", [0.0, 1e-44, 1e38])
def test_extreme_gradients(value: float, tmp_path: Path) -> None:
    """Zeros, and the smallest and largest numbers, end in valid JSON, tables and plots."""
    path = tmp_path / "extreme.npz"
    np.savez(path, gradients=np.full((2, 1000), value, dtype=np.float32))
    assert STATISTICS.run(settings(path), tmp_path / "run") == 0
    content = json.loads((tmp_path / "run" / STATISTICS.record.file).read_text(), parse_constant=pytest.fail)
    assert content["workers"]["zeros"] == (value == 0)
    assert (content["bound"] is None) == (value == 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite(value: float, tmp_path: Path) -> None:
    """Refused in one line that says where; the directory keeps the reason."""
    values = gradients(2, 400)
    values[1, 37] = value
    path = tmp_path / "bad.npz"
    np.savez(path, gradients=values.numpy())
    with pytest.raises(
        ValueError, match=r"coordinate 37 of worker 1 is (nan|inf); give gradients that are finite"
    ) as error:
        STATISTICS.run(settings(path), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert "coordinate 37" in (tmp_path / "run" / "FAILED").read_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": [5, 2]}, r"statistics\.bits=2: choose bits from 2\.6875 to 8\.6875"),
        ({"bits": []}, r"statistics\.bits=\[\]: choose a list of at least one"),
        ({"bits": 5}, r"statistics\.bits=5: choose a list"),
        ({"bits": ["x"]}, r"statistics\.bits=\[x\]: choose a list"),
        ({"bucket_mb": 0}, r"statistics\.bucket_mb=0: choose a number from 0\.001 to"),
        ({"bucket_mb": "big"}, r"statistics\.bucket_mb=big: choose a number from 0\.001 to"),
    ],
)
def test_refusals(changed: dict[str, Any], message: str, file: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        settings(file, **changed)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^gradients=.*nothing\.npz: not found; give a \.safetensors or"):
        settings(tmp_path / "nothing.npz")


@pytest.mark.usefixtures("undrawn")
def test_small_buckets_change_the_groups(file: Path, tmp_path: Path) -> None:
    """`statistics.bucket_mb` cuts a file that names no buckets."""
    path = tmp_path / "flat.npz"
    np.savez(path, gradients=gradients(2, 1024).numpy())
    small = settings(path, bucket_mb=300 * 4 / 2**20)
    STATISTICS.run(small, tmp_path / "run")
    content = json.loads((tmp_path / "run" / STATISTICS.record.file).read_text())
    assert content["widths"]["super_groups"] == 4  # buckets of 256: 1024 in 4 equal ones of at most 300


def test_nothing_is_cut_off(found: Statistics) -> None:
    """Every word of every plot lies inside the picture, in both forms."""
    shown = plots(found, "step-3.safetensors · 3 workers · 17,384 coordinates")
    assert [plot.name for plot in shown] == ["norms", "smoothing", "widths"]
    for plot in shown:
        for form in FORMS:
            check_inside(render(plot, form))


def check_inside(figure: Figure) -> None:
    from matplotlib.text import Text

    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    ticks = {
        id(label) for axes in figure.axes for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]
    }
    for words in figure.findobj(Text):
        assert isinstance(words, Text)
        if words.get_visible() and words.get_text().strip() and id(words) not in ticks:
            box = words.get_window_extent()
            inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
            assert inside, f"{words.get_text()!r} at {box}"


def test_tables_without_matrices(found: Statistics) -> None:
    assert "largest matrices" not in text(found, "heading")


def test_percentages_of_headings() -> None:
    assert [percent(part) for part in (0, 0.001, 0.5, 0.999, 1)] == ["0", "<1", "50", ">99", "100"]


def test_a_sweeps_table_has_a_row_for_each_file(file: Path, tmp_path: Path) -> None:
    """The seeds of one file are one row, whose plots are the first one's."""
    folders = []
    for seed in (0, 1):
        config = replace(settings(file), seed=seed, plots=seed == 0)
        folders.append(tmp_path / f"seed{seed}")
        STATISTICS.run(config, folders[-1])
    page = STATISTICS.compare([*folders, tmp_path / "none"], tmp_path / "out", [])
    (table,) = page.tables
    assert len(table.rows) == 1 and "none: not finished, left out" in page.remarks
    found = json.loads((folders[0] / "statistics.json").read_text())
    (row,) = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    norms = {(each["size"], each["shuffled"]): each["below_10th"] for each in found["norms"]}
    assert row["256 as they are"] == norms[256, False] and row["seeds"] == 2
    assert row["workers.kurtosis"] == found["workers"]["kurtosis"]
    (plot,) = (tmp_path / "out").glob("norms-*-print.svg")
    assert plot.read_bytes() == (folders[0] / "plots" / "norms-print.svg").read_bytes()
