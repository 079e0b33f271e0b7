"""No table or plot mixes measured, emulated and modelled times unlabelled: each says its network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from plot_checks import words

from gradwire.harness.record.runs import load_run
from gradwire.harness.report.compare import Comparison, compare
from gradwire.harness.report.figures import TITLE_CHARACTERS, render, wrapped_title
from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.plots import group_plots
from gradwire.harness.report.run_plots import run_plots
from gradwire.harness.report.style import PRINT
from gradwire.harness.report.tables import render_text
from gradwire.harness.tracking.tables import tables

if TYPE_CHECKING:
    from conftest import SyntheticRuns

NETWORKS: dict[str, dict[str, Any]] = {
    "measured (network as it is)": {"network": {"name": "none"}},
    "emulated, 200 Mbit/s, paced": {"network": {"name": "paced", "rate_mbit": 200.0}},
    "modelled, aqgb, 2.5 Gbit/s, multicast": {
        "network": {"name": "simulated", "preset": "aqgb", "rate_mbit": 2500.0, "multicast": True},
        "cluster": {"name": "virtual", "workers": 4},
    },
}
AXES = ["codec", "network", "cluster"]


def written(runs: SyntheticRuns, text: str, codec: str) -> Path:
    folder = runs.write(codec, 0, f"{codec}-{text[:8]}", **NETWORKS[text])
    if text.startswith("modelled"):
        runs.change_summary(folder, clock="simulated")
    return folder


def compared(folders: list[Path], output: Path, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.setattr("gradwire.harness.report.figures._write", lambda *_: iter(()))
    return compare(folders, output, axes=AXES)


@pytest.mark.parametrize("text", NETWORKS)
def test_what_shows_one_network_says_it(
    text: str, runs: SyntheticRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [written(runs, text, codec) for codec in ("bf16", "dynamiq")]
    comparison = compared(folders, tmp_path / "out", monkeypatch)
    assert len(comparison.tables) >= 3 and all(text in table.title for table in comparison.tables)
    assert f"Network: {text}." in comparison.notes
    assert {row.network for row in comparison.rows} == {text}
    assert text in (tmp_path / "out" / "table.csv").read_text().replace('"', "")
    found = [load_run(folder) for folder in folders]
    plots = [*group_plots(group_runs(found, AXES)), *run_plots(found[0])]
    assert len(plots) > 8 and all(f" · {text} · " in plot.title for plot in plots)
    shown = tables(found[0])
    for name in ("time_to_accuracy", "breakdown"):
        assert name not in shown or {row[-1] for row in shown[name]["rows"]} == {text}
    assert shown["breakdown"]["columns"][-1] == "network"


def test_what_mixes_networks_says_which_is_which(
    runs: SyntheticRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [written(runs, text, codec) for text in NETWORKS for codec in ("bf16", "dynamiq")]
    comparison = compared(folders, tmp_path / "out", monkeypatch)
    real = [table for table in comparison.tables if "wall clock" in table.title]
    other = [table for table in comparison.tables if "simulated clock" in table.title]
    assert len(real) == len(other) == len(comparison.tables) / 2
    measured, emulated, modelled = NETWORKS
    for table in real:
        assert table.header[:2] == ["run", "network"] and {row[1] for row in table.rows} == {
            measured,
            emulated,
        }
        assert f"({measured} and {emulated};" in table.title
        assert max(map(len, render_text(table).splitlines())) <= 140
    assert all(modelled in table.title and "network" not in table.header for table in other)
    for text in NETWORKS:
        assert [note.endswith(f": {text}.") for note in comparison.notes].count(True) == 1
    plots = group_plots(group_runs([load_run(folder) for folder in folders], AXES))
    for plot in plots:
        kinds = {text for text in NETWORKS if text in plot.title}
        assert kinds in ({measured, emulated}, {modelled}, set(NETWORKS)), plot.title


@pytest.mark.parametrize("text", ["emulated, 200 Mbit/s, paced", "modelled, " + "a_long_name " * 9])
def test_a_long_title_is_not_cut(text: str, runs: SyntheticRuns) -> None:
    """A part that is longer than a line is broken between words, and the picture has room for all lines."""
    title = f"dynamiq · gpt2 · wikitext · {text.strip()} · seed 0"
    lines = wrapped_title(title).split("\n")
    assert max(map(len, lines)) <= TITLE_CHARACTERS
    said = [word for word in " ".join(lines).split() if word != "·"]
    assert said == [word for word in title.split() if word != "·"]
    plot = run_plots(load_run(runs.write()))[0]
    figure = render(type(plot)(plot.name, title, plot.draw, plot.heights), PRINT)
    assert any(text.split()[1] in shown for shown in words(figure))
    (box,) = [own.get_window_extent() for own in figure.texts]
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 + 1
    assert box.y0 >= max(axes.get_window_extent().y1 for axes in figure.axes)
