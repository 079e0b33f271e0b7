"""Changes of gradients over training: each analysis, on gradients made for it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gradwire.codecs.edgc.quantification import compression_errors
from gradwire.codecs.interface import Layout
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_task
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.record.identity import run_id
from gradwire.harness.report.figures import render
from gradwire.harness.report.style import FORMS
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.statistics.evolution import Evolution, collect
from gradwire.harness.studies.statistics.evolution_analyses import (
    Matrix,
    correlations,
    layer_of,
    mean_absolute,
    read_series,
    shown_layers,
)
from gradwire.harness.studies.statistics.evolution_views import plots, some_steps, tables
from gradwire.harness.studies.statistics.low_rank_errors import (
    error_change,
    low_rank,
    power_error,
    random_over_theory,
    rank_of,
)
from gradwire.harness.studies.statistics.study import STUDY as STATISTICS
from gradwire.harness.studies.statistics.study import StatisticsTask

NAMES = ("emb.weight", "h.0.fc.weight", "h.0.fc.bias", "h.1.fc.weight", "h.2.fc.weight")
SHAPES = ((40, 24), (32, 64), (32,), (64, 32), (32, 4, 16))
SIZES = [math.prod(shape) for shape in SHAPES]
LAYOUTS = [
    Layout(NAMES[:2], SHAPES[:2], (0, SIZES[0]), sum(SIZES[:2])),
    Layout(NAMES[2:], SHAPES[2:], (0, 32, 32 + SIZES[3]), sum(SIZES[2:])),
]
STEPS = {0: 1.0, 5: 0.5, 20: 0.25}
"""Steps and the σ of their gradients."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory: two workers, three steps, all coordinates independent, σ halved from step to step."""
    folder = tmp_path_factory.mktemp("run")
    for step, sigma in STEPS.items():
        values = sigma * normal(2, sum(SIZES), seed=1)
        about = {"step": step, "model": "toy"}
        write_gradients(folder / "gradients" / f"step{step}.safetensors", values, LAYOUTS, about)
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> Evolution:
    return collect(read_series(run), [1 / 16, 1 / 4], seed=0)


def test_entropy_follows_sigma(found: Evolution) -> None:
    assert found.steps == list(STEPS) and len(found.entropies) == 4  # a bias is no matrix
    for curve in found.entropies:
        assert curve.nats == pytest.approx([curve.nats[0] - k * math.log(2) for k in range(3)], abs=1e-9)
    assert found.figures["entropy_change"] == pytest.approx(-2 * math.log(2), abs=1e-9)


def test_distributions_narrow_in_units_of_the_first_step(found: Evolution) -> None:
    assert found.layers == [0, 1, 2] and len(found.distributions) == 9
    first, second, third = (each for each in found.distributions if each.layer == 1)
    assert (
        first.sigma == pytest.approx(1, rel=0.05) and first.unit == second.unit == third.unit == first.sigma
    )
    assert third.sigma == pytest.approx(first.sigma / 4) and third.reach == pytest.approx(first.reach / 4)
    assert 3 < first.reach / first.sigma < 3.7
    middle = len(first.histogram) // 2
    assert third.histogram[middle] > 3 * first.histogram[middle]
    assert sum(first.histogram) + first.outside == pytest.approx(1)
    assert found.figures["sigma_ratio"] == pytest.approx(0.25)


def test_independent_entries_correlate_as_random_numbers_do(found: Evolution) -> None:
    figures = found.figures
    for key in ("correlation_first", "correlation_last"):
        assert figures[key] == pytest.approx(figures["correlation_random"], rel=0.1)
    assert [shown.title for shown in found.maps] == [
        *("random numbers", "layer 0, step 5", "layer 1, step 5", "layer 0, step 20")
    ]


def test_rows_that_are_alike_correlate() -> None:
    common = normal(1, 400)
    rows = common * torch.tensor([1.0, -2.0, 0.5])[:, None] + 3
    assert mean_absolute(correlations(rows)) == pytest.approx(1, abs=1e-5)
    assert correlations(rows)[0, 1] == pytest.approx(-1, abs=1e-5)
    assert torch.equal(correlations(rows), correlations(rows.T))  # the shorter side has the variables
    expected = torch.corrcoef(normal(5, 90).double())
    torch.testing.assert_close(correlations(normal(5, 90)), expected)
    for constant in (7.0, 0.0):  # does not vary
        rows[1] = constant
        assert correlations(rows).shape == (2, 2) and mean_absolute(correlations(rows[1:2])) is None


def test_independent_entries_lose_what_theory_expects(found: Evolution) -> None:
    for each in found.errors:
        assert each.best == pytest.approx(each.theory, rel=0.1)
        assert each.best <= each.power <= each.norm
    assert found.figures["best_over_theory"] == pytest.approx(1, abs=0.05)
    assert found.figures["error_change"] == pytest.approx(0.25, rel=1e-6)
    assert found.figures["layer_agreement"] == pytest.approx(1, abs=1e-6)


def test_a_matrix_of_low_rank_loses_less() -> None:
    """σ·g(r) is for independent entries: what has rank 2 is kept whole by rank 2."""
    whole = normal(20, 2) @ normal(2, 60, seed=1)
    one, two = low_rank(Matrix("h.3.w", whole.expand(3, 20, 60)), 7, [0.05, 0.1], seed=0)
    assert (one.rank, two.rank, one.layer) == (1, 2, 3)
    assert two.best < 1e-5 * two.norm and two.power < 1e-5 * two.norm
    assert 0 < one.best <= one.power < one.theory
    sigma = float(whole.double().square().mean().sqrt())
    assert one.theory == pytest.approx(sigma * float(compression_errors(20, 60)[1]))
    singular = torch.linalg.svdvals(whole.double())
    assert one.best == pytest.approx(float(singular[1]), rel=1e-6)


def test_random_numbers_lose_more_than_theory_says() -> None:
    """σ·g(r) is the least error; PowerSGD, with few rounds, stays above it."""
    for rank in (2, 6):
        found = random_over_theory((40, 120), rank, seed=3)
        assert 0.99 < found < 1.25 and found == random_over_theory((40, 120), rank, seed=3)
    assert random_over_theory((40, 120), 6, seed=3) > 1


def test_more_rounds_of_power_iteration_come_nearer() -> None:
    matrix = normal(30, 80).double() * torch.logspace(0, -3, 30, dtype=torch.float64)[:, None]
    errors = [power_error(matrix, 3, 0, rounds) for rounds in (1, 2, 12)]
    best = float(torch.linalg.svdvals(matrix)[3:].square().sum().sqrt())
    assert errors[0] > errors[1] > errors[2] and errors[2] == pytest.approx(best, rel=1e-3)


def test_gradients_of_zeros_have_no_figures(tmp_path: Path) -> None:
    for step in (1, 2):
        write_gradients(tmp_path / f"step{step}.safetensors", torch.zeros(1, sum(SIZES)), LAYOUTS)
    empty = collect(read_series(tmp_path), [0.1], seed=0)
    told = {key for key, value in empty.figures.items() if value is not None}
    assert told == {"correlation_random", "random_over_theory"}, "random numbers are not zeros"
    assert (
        error_change(empty.errors) is None and [table.title for table in tables(empty)][0] == "Over training"
    )
    assert [plot.name for plot in plots(empty, "zeros")] == ["entropy", "distributions"]
    for plot in plots(empty, "zeros"):
        render(plot, FORMS[0])


def test_names_say_layers() -> None:
    assert layer_of("transformer.h.11.attn.c_attn.weight") == 11
    assert layer_of("transformer.wte.weight") is None
    assert shown_layers(range(24)) == [0, 6, 12, 18] and shown_layers([0, 1]) == [0, 1]
    assert rank_of(1 / 64, (1024, 4096)) == 16 and rank_of(1 / 64, (4096, 8)) == 1
    assert some_steps(range(11)) == [0, 2, 4, 6, 8, 10]


def settings(folder: Path, *values: str) -> StatisticsTask:
    config = validate_task(compose(["task=statistics", f"gradients={folder}", *values]))
    assert isinstance(config, StatisticsTask)
    return config


def test_the_task_describes_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(run, "plots=false", "statistics.rank_shares=[0.125]")
    assert STATISTICS.name(config) == f"statistics-run-{run.name}"
    assert STATISTICS.run(config, tmp_path / "one") == 0
    shown = capsys.readouterr().out
    assert f"{run.name} · 3 saved steps" in shown and "layer 2, rank 4, PowerSGD" in shown
    content = json.loads((tmp_path / "one" / "statistics.json").read_text())
    assert content["steps"] == [0, 5, 20] and content["about"]["model"] == "toy"
    assert content["evolution"]["sigma_ratio"] == pytest.approx(0.25) and "maps" not in content
    before = run_id(config)
    (run / "plots").mkdir()
    (run / "plots" / "later.svg").touch()
    assert run_id(config) == before  # nothing that is described
    page = STATISTICS.compare([tmp_path / "one"], tmp_path / "all", [])
    (table,) = page.tables
    assert [row[0] for row in table.rows] == ["toy-run"] and "layers' agreement" in table.header


def test_plots_show_every_analysis(found: Evolution) -> None:
    shown = plots(found, "a run")
    assert [plot.name for plot in shown] == ["entropy", "distributions", "correlations", "compression-error"]
    panels = {plot.name: render(plot, FORMS[0]).axes for plot in shown}
    assert [len(axes.lines) for axes in panels["distributions"]] == [3, 3, 3]
    assert len(panels["entropy"][0].lines) == 5  # all matrices, three layers, the embedding
    assert [len(axes.images) for axes in panels["correlations"][:4]] == [1, 1, 1, 1]
    assert [len(axes.lines) for axes in panels["compression-error"]] == [6, 6, 6]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, r"this folder has no saved steps and no entropies\.jsonl; give a run directory with two"),
        ({3: LAYOUTS}, "this folder has 1 saved step and no"),
    ],
)
def test_a_folder_without_a_series_is_refused(
    files: dict[int, list[Layout]], problem: str, tmp_path: Path
) -> None:
    for step, layouts in files.items():
        write_gradients(tmp_path / f"step{step}.safetensors", normal(1, sum(SIZES)), layouts)
    with pytest.raises(ConfigError, match=problem):
        settings(tmp_path)


def test_steps_of_different_models_are_refused(tmp_path: Path) -> None:
    write_gradients(tmp_path / "step1.safetensors", normal(1, sum(SIZES)), LAYOUTS)
    write_gradients(
        tmp_path / "step2.safetensors", normal(1, SIZES[0]), [Layout(NAMES[:1], SHAPES[:1], (0,), SIZES[0])]
    )
    with pytest.raises(ValueError, match=r"step2.* has other parameters than an earlier step"):
        list(read_series(tmp_path))
    write_gradients(tmp_path / "step1.safetensors", normal(1, 9), [Layout.flat(9)])
    with pytest.raises(ValueError, match=r"step1.* names no matrices"):
        list(read_series(tmp_path))
