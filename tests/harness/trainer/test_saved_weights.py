"""`measure.save_weights_at`: model and main weights of chosen steps, and their statistics."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from pool import Workers
from training_jobs import tiny_run, train_all_virtually, train_rank

from gradwire.codecs.interface import Layout
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.saved_weights import SavedWeights, holds_weights, read_weights, write_weights
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.statistics.study import STUDY as STATISTICS
from gradwire.harness.studies.statistics.weights import weight_statistics, weights_plots

SHARDED = ("parallel=sharded", "parallel.model_dtype=bfloat16", "codec=dynamiq", "cluster.workers=3")
SAVING = (*SHARDED, "measure.save_weights_at=[1,2]")


def saved(directory: Path) -> list[SavedWeights]:
    return [read_weights(directory / "weights" / f"step{step}.safetensors") for step in (1, 2)]


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("weights") / "virtual"
    train_all_virtually(tiny_run(*SAVING, "cluster=virtual"), str(directory))
    return directory


def test_a_step_begins_with_what_the_one_before_has_led_to(virtual: Path) -> None:
    """Exact weights: the model is the main weights of before, rounded; shards are not consecutive here."""
    first, second = saved(virtual)
    assert torch.equal(second.model, first.main.bfloat16().float())
    assert bool((first.differences != 0).any()) and not torch.equal(first.main, second.main)


def test_both_worlds_save_the_same_weights(virtual: Path, tmp_path: Path, workers: Workers) -> None:
    workers(3)(train_rank, tiny_run(*SAVING), str(tmp_path / "real"))
    for real, other in zip(saved(tmp_path / "real"), saved(virtual), strict=True):
        assert torch.equal(real.model, other.model) and torch.equal(real.main, other.main)
        assert real.buckets == other.buckets and real.about == other.about


def test_saving_changes_nothing_else(virtual: Path, tmp_path: Path) -> None:
    train_all_virtually(tiny_run(*SHARDED, "cluster=virtual"), str(tmp_path / "plain"))
    rows = [
        [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]
        for folder in (virtual, tmp_path / "plain")
    ]
    assert rows[0] == rows[1]


def test_its_statistics_are_tables_and_figures(virtual: Path, tmp_path: Path) -> None:
    file = virtual / "weights" / "step2.safetensors"
    config = validate_any(compose(["task=statistics", f"gradients={file}", "plots=false"]))
    assert STATISTICS.run(config, tmp_path / "found") == 0
    found = json.loads((tmp_path / "found" / "statistics.json").read_text())
    assert found["about"]["step"] == 2 and 0 < found["differences"]["norm_ratio"] < 1
    assert "differences" in (tmp_path / "found" / "tables.txt").read_text()


def test_errors_by_hand() -> None:
    """One group with peak 7, so that a step is 1: 3.25 loses a quarter, -0.5 rounds to an even 0."""
    model = torch.tensor([7.0, 3.25, -0.5, 0.0])
    file = SavedWeights(model, 2 * model, (Layout.flat(4),), {})
    found = weight_statistics(file)
    norm = float(model.norm())
    assert found.weights.error == pytest.approx(math.hypot(0.25, 0.5) / norm)
    assert found.weights.zeros == 0.5 and found.weights.largest == 7
    assert found.norm_ratio == 1 and found.differences.over_weights == pytest.approx(found.weights.error)
    assert sum(found.weights.histogram) == pytest.approx(1)
    assert [plot.name for plot in weights_plots(found, "by hand")] == ["weights"]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step1.safetensors"
    write_weights(path, torch.ones(4), torch.ones(4), [Layout.flat(4)], {"step": 1})
    assert holds_weights(path) and not holds_weights(tmp_path / "none.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="weights=.*damaged: its contents differ from their digest"):
        read_weights(path)


@pytest.mark.parametrize(
    "overrides",
    [(), (*SHARDED, "parallel.weights=qwd", "parallel.main=algorithm4")],
    ids=["ddp", "algorithm4"],
)
def test_without_main_weights_it_is_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"save_weights_at=\[1\] needs main weights"):
        tiny_run(*overrides, "measure.save_weights_at=[1]")


def test_steps_beyond_the_run_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"measure\.save_weights_at=\[1, 4\]: .* steps 0 to 3, and not 4"):
        tiny_run(*SHARDED, "measure.save_weights_at=[1,4]")
