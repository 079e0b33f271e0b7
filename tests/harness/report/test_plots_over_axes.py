"""Plots of errors and metrics over the number of workers and over the bits of a codec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from plot_checks import by_name, check_forms, lines_by_label

from gradwire.harness.record.runs import load_run
from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.plots import group_plots
from gradwire.harness.report.style import PRINT

if TYPE_CHECKING:
    from conftest import SyntheticRuns

pytestmark = pytest.mark.filterwarnings("error")


def over(*folders: Path) -> dict[str, Plot]:
    return by_name(group_plots(group_runs([load_run(folder) for folder in folders], ["codec"])))


def scaled(runs: SyntheticRuns, codec: str, workers: int, seed: int, **codec_settings: Any) -> Path:
    """A run of so many workers, whose error grows with them."""
    own = {"name": codec, **codec_settings}
    folder = runs.write(
        codec,
        seed,
        name=f"{codec}-{workers}-{seed}",
        codec=own,
        cluster={"name": "local", "workers": workers, "timeout_s": 60},
    )
    change = {"workers": workers, "bytes_sent_per_rank": [1000] * workers, "vnmse_mean": 1e-3 * workers}
    runs.change_summary(folder, **change)
    return folder


def test_error_and_metric_over_the_workers(runs: SyntheticRuns) -> None:
    """A line for each codec; THC's bits follow from the workers and make no second line."""
    folders = []
    for workers in (2, 4, 8):
        for seed in (0, 1):
            folders.append(scaled(runs, "bf16", workers, seed))
            folders.append(scaled(runs, "dynamiq", workers, seed, bits=5))
            folders.append(scaled(runs, "thc", workers, seed, bits="auto" if workers < 8 else 12))
    plots = by_name(group_plots(group_runs([load_run(each) for each in folders], ["codec", "cluster"])))
    check_forms([plots["over-workers"]])
    error, metric = render(plots["over-workers"], PRINT).axes
    assert list(lines_by_label(error)) == ["BF16", "DynamiQ", "THC"]
    for line in lines_by_label(error).values():
        assert np.allclose(line.get_xydata(), [[2, 2e-3], [4, 4e-3], [8, 8e-3]])
    assert lines_by_label(metric)["BF16"].get_ydata().tolist() == [1, 1, 1], "paired with BF16's own seeds"
    ratios = lines_by_label(metric)["THC"].get_ydata()
    assert all(ratio > 1 for ratio in ratios), "THC harms the final perplexity of these runs"
    assert "over-bits" not in plots


def test_error_over_the_bits(runs: SyntheticRuns) -> None:
    """Two values of an axis are no line."""
    for bits in (3, 4, 5):
        folder = runs.write("dynamiq", name=f"{bits}", codec={"name": "dynamiq", "bits": bits})
        runs.change_summary(folder, vnmse_mean=10.0**-bits)
    folders = sorted(runs.root.iterdir())
    assert "over-bits" not in over(*folders[:2])
    plot = over(runs.write("bf16"), *folders)["over-bits"]
    error, metric, step = render(plot, PRINT).axes
    assert np.allclose(lines_by_label(error)["DynamiQ"].get_ydata(), [1e-3, 1e-4, 1e-5])
    assert len(lines_by_label(metric)) == 1 and len(lines_by_label(step)) == 1
