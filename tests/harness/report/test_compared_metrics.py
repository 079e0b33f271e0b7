"""Comparisons of runs that are judged by accuracy or Matthews correlation, and of both together."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradwire.harness.report.compare import compare

if TYPE_CHECKING:
    from conftest import SyntheticRuns

AXES = ["codec", "dataset"]


def write_both(runs: SyntheticRuns, of_cola: tuple[list[float], list[float]]) -> list[Path]:
    """Runs of two codecs on SST-2, judged by accuracy, and on CoLA, judged by Matthews correlation."""
    curves = {
        ("sst2", "accuracy"): ([0.5, 0.7, 0.8], [0.5, 0.75, 0.79]),
        ("cola", "matthews"): of_cola,
    }
    folders = []
    for (task, metric), by_codec in curves.items():
        for codec, curve in zip(("bf16", "dynamiq"), by_codec, strict=True):
            dataset = {"name": "glue", "configuration": task}
            folder = runs.write(codec, name=f"{codec}-{task}", dataset=dataset)
            runs.write_curve(folder, curve, metric=metric)
            folders.append(folder)
    return folders


def test_metrics_never_share_a_table_or_a_plot(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = write_both(runs, ([0.1, 0.2, 0.3], [0.1, 0.3, 0.29]))
    found = compare(folders, tmp_path / "out", AXES)
    results = [table for table in found.tables if table.title.startswith("Result")]
    assert [table.header[2] for table in results] == ["final accuracy", "final Matthews correlation"]
    for table, task in zip(results, ("sst2", "cola"), strict=True):
        assert [task in row[0] for row in table.rows] == [True, True]
    drawn = {path.name for path in found.files}
    assert {"metric-accuracy-wall-print.png", "metric-matthews-wall-print.png"} <= drawn
    # Each data set's targets come from its own BF16 run: 0.98 of 0.8 and of 0.3.
    targets = {row.label: row.targets[0].target for row in found.rows}
    assert sorted(set(targets.values())) == pytest.approx([0.98 * 0.3, 0.98 * 0.8])


def test_runs_of_different_tasks_are_refused_where_the_task_is_no_axis(
    runs: SyntheticRuns, tmp_path: Path
) -> None:
    folders = write_both(runs, ([0.1, 0.2, 0.3], [0.1, 0.3, 0.29]))
    with pytest.raises(ValueError, match=r"dataset.configuration \(cola in .*; sst2 in .*|sst2 in .*; cola"):
        compare(folders, tmp_path / "out", ["codec"])


@pytest.mark.parametrize("last", [0.0, -0.1])
def test_a_score_that_is_not_above_zero_sets_no_targets(
    last: float, runs: SyntheticRuns, tmp_path: Path
) -> None:
    """A multiple of it would be reached by a run that has learned nothing."""
    folders = write_both(runs, ([0.0, 0.0, last], [0.0, 0.1, 0.2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(folders, tmp_path / "out", AXES)
    rows = {row.label: row for row in found.rows}
    assert [bool(row.targets) for label, row in rows.items() if "cola" in label] == [False, False]
    assert [len(row.targets) for label, row in rows.items() if "sst2" in label] == [4, 4]
    (told,) = [note for note in found.notes if note.startswith("No targets from")]
    assert "cola" in told and f"median final metric is {last}" in told
