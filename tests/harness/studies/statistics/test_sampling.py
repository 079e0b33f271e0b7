"""Sampling and windows of entropies: closed cases, and the task on a run with such a record."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_task
from gradwire.harness.record.directory import ENTROPIES
from gradwire.harness.record.entropies import MatrixName, RecordedEntropies, header
from gradwire.harness.report.figures import render
from gradwire.harness.report.style import PRINT
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.statistics.sampling import (
    MOST_POINTS,
    pearson,
    rate_fidelity,
    sampling,
    sampling_plots,
    step_sampling,
    thinned,
    window_fidelity,
)
from gradwire.harness.studies.statistics.study import SAMPLED, StatisticsTask
from gradwire.harness.studies.statistics.study import STUDY as STATISTICS
from gradwire.harness.timing.measure.metrics import METRICS

STEPS = 200
FALLING = -5 - torch.arange(STEPS, dtype=torch.float64) / STEPS
MATRICES = (MatrixName("h.0.w", 30, 100, 0), MatrixName("h.1.w", 10, 100, 1), MatrixName("emb", 5, 2, 1))


def recorded(curve: Tensor = FALLING) -> RecordedEntropies:
    """Two rates of which the second one is 0.01 nat off; the embedding is all zeros at one step."""
    both = torch.stack([curve, curve + 0.01])
    nats = torch.stack([both, both - 4.0, both * 0], dim=2).transpose(0, 1)
    nats[7, :, 2] = -math.inf
    return RecordedEntropies(MATRICES, (1.0, 0.25), tuple(range(len(curve))), nats, {"model": "toy"})


def test_the_curve_is_the_weighted_mean_of_matrices() -> None:
    found = sampling(recorded(), [0.5], 50, [1, 10, 150])
    assert found.curves[0] == pytest.approx((FALLING - 1).tolist())  # a quarter of the coordinates is 4 lower
    assert found.left_out == ["emb", "window of 150 steps"]
    assert [each.window for each in found.by_window] == [1, 10] and found.by_alpha[0].rate == 0.25


def test_rates_are_compared_with_the_largest() -> None:
    found = rate_fidelity(0.25, FALLING + 0.01, FALLING)
    assert found.correlation == pytest.approx(1)
    assert found.mean_error == pytest.approx(0.01) == found.largest_error
    assert rate_fidelity(0.25, FALLING * 0, FALLING).correlation is None


def test_every_so_many_steps_are_sampled() -> None:
    """A sample of a line, the first of every 1/α steps, is early by (1/α − 1)/2 of them."""
    for alpha, stride in ((0.5, 2), (0.1, 10), (1.0, 1)):
        found = step_sampling(FALLING, 1.0, alpha, 50)
        off = (stride - 1) / 2 / STEPS
        means = FALLING.view(-1, 50).mean(dim=1)
        assert found.changes == pytest.approx([off / abs(float(mean)) for mean in means], abs=1e-12)
        assert found.largest_error == pytest.approx(off, abs=1e-12)
        assert found.largest_change == max(found.changes)
    assert len(step_sampling(FALLING, 1.0, 0.5, 60).changes) == 3  # the last 20 steps make no window


def test_rare_samples_miss_what_is_brief() -> None:
    """The rarer the samples, the further a window's mean is off where entropy jumps about."""
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    changes = [step_sampling(-5 + noise, 1.0, alpha, 200).mean_change for alpha in (1.0, 0.5, 0.1, 0.02)]
    assert changes[0] == 0 and changes == sorted(changes)


def test_windows_flatten_the_curve() -> None:
    """A line in windows of w steps errs by (w² − 1)/12 squared steps."""
    for window in (1, 10, 50):
        found = window_fidelity(FALLING, window)
        assert found.mse == pytest.approx((window**2 - 1) / 12 / STEPS**2, abs=1e-12)
        assert found.delayed_mse == pytest.approx(found.mse + (window / STEPS) ** 2, rel=1e-9)
    assert window_fidelity(FALLING, 1).correlation == pytest.approx(1)
    correlations = [window_fidelity(FALLING.sin(), window).correlation for window in (1, 20, 100)]
    assert correlations == sorted(correlations, reverse=True)
    assert pearson(torch.arange(4.0), -torch.arange(4.0)) == pytest.approx(-1)


def test_a_record_of_zeros_is_refused() -> None:
    found = recorded(FALLING * 0 - math.inf)
    with pytest.raises(ValueError, match="no matrix whose gradient is never all zeros"):
        sampling(found, [0.5], 50, [1])


def write(folder: Path, found: RecordedEntropies) -> None:
    rows = [header(found.matrices, found.rates, found.about)]
    rows += [
        {"step": step, "nats": [["-inf" if math.isinf(value) else value for value in row] for row in nats]}
        for step, nats in zip(found.steps, found.nats.tolist(), strict=True)
    ]
    (folder / ENTROPIES).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_task_answers_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", recorded())
    given = ["statistics.window=40", "statistics.windows=[1,20]", "statistics.alphas=[0.25]", "plots=false"]
    config = validate_task(compose(["task=statistics", f"gradients={tmp_path / 'run'}", *given]))
    assert isinstance(config, StatisticsTask)
    assert STATISTICS.run(config, tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "run · entropies of 200 steps · 4,010 coordinates" in shown
    assert "Left out: emb." in shown
    content = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert content["sampling"]["by_window"][1]["window"] == 20
    page = STATISTICS.compare([tmp_path / "out"], tmp_path / "all", [])
    assert "toy-run" in page.text


def test_figures_have_metrics() -> None:
    found = sampling(recorded(), [0.5], 50, [1, 10])
    for table, axis, _, metrics in SAMPLED:
        for row in getattr(found, table):
            assert hasattr(row, axis) and all(hasattr(row, key) for key in metrics.values())
        assert {f"sampling.{metric}" for metric in metrics} <= METRICS.keys()


def test_plots_show_rates_steps_and_windows() -> None:
    found = sampling(recorded(), [0.5, 0.1], 50, [1, 10, 50])
    drawn = sampling_plots(found, "a run")
    assert [plot.name for plot in drawn] == ["sampling-rates", "sampling-steps", "windows"]
    rates, steps, windows = (render(plot, PRINT).axes[0] for plot in drawn)
    assert len(rates.lines) == 2 and len(steps.lines) == 2
    assert len(windows.lines) == 1 and len(windows.patches) == 2
    assert thinned(list(range(4 * MOST_POINTS))) == [4 * index + 1.5 for index in range(MOST_POINTS)]


def test_a_folder_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no saved steps and no entropies\.jsonl; give a run directory"):
        validate_task(compose(["task=statistics", f"gradients={tmp_path}"]))
