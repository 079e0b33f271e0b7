"""`measure.entropy_every`: the entropy of every matrix at chosen steps, and nothing else changes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

import pytest
import torch
from training_jobs import tiny_run, train_all_virtually

from gradwire.harness.comm.world.interface import World
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.parallel.interface import Parallelism
from gradwire.harness.record.directory import ENTROPIES
from gradwire.harness.record.entropies import MatrixName, header, mean_nats, read_entropies
from gradwire.harness.record.gradients import read_gradients
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.statistics.measures import matrix_entropies
from gradwire.harness.trainer.measured_steps import EntropyRecorder

SETTINGS = ("cluster.workers=2", "codec=fp32", "cluster=virtual")
ONE = header([MatrixName("w", 1, 2, 0)], [1.0], {})
EVERY = ("measure.entropy_every=2", "measure.entropy_rates=[1.0,0.25]", "measure.save_gradients_at=[2]")


def test_they_are_those_of_the_gradients(tmp_path: Path) -> None:
    train_all_virtually(tiny_run(*SETTINGS, *EVERY), str(tmp_path))
    found = read_entropies(tmp_path)
    assert found.steps == (0, 2) and found.rates == (1.0, 0.25) and found.about["model"] == "gpt2"
    saved = read_gradients(tmp_path / "gradients" / "step2.safetensors")
    expected = matrix_entropies(saved.values, saved.buckets)
    assert [each.name for each in found.matrices] == [each.name for each in expected]
    assert [(each.rows, each.columns) for each in found.matrices] == [each.shape for each in expected]
    whole, quarter = found.nats[1]
    assert whole.tolist() == pytest.approx([each.nats for each in expected], abs=1e-6)
    assert not torch.equal(whole, quarter)
    assert quarter.tolist() == pytest.approx(whole.tolist(), abs=0.5)


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        (("parallel=pipeline", "model.num_layers=2", "parallel.stages=2", "train.accumulation=2"), {0, 1}),
        (("parallel=sharded",), {0}),
    ],
)
def test_every_parallelism_records(given: tuple[str, ...], stages: set[int], tmp_path: Path) -> None:
    config = tiny_run("cluster.workers=4", "cluster=virtual", *given, "measure.entropy_every=1")
    train_all_virtually(config, str(tmp_path))
    found = read_entropies(tmp_path)
    assert {each.stage for each in found.matrices} == stages
    names = [each.name for each in found.matrices]
    assert len(set(names)) == len(names) and ("lm_head.weight" in names) == (stages == {0, 1})
    assert found.nats.shape == (len(found.steps), 1, len(names)) and bool(found.nats.isfinite().all())


@pytest.mark.parametrize(
    "given", [("parallel=pipeline", "parallel.stages=2", "cluster.workers=2"), ("parallel=sharded",)], ids=str
)
def test_they_are_those_of_one_worker(given: tuple[str, ...], tmp_path: Path) -> None:
    """In the first step, whose weights are the same: the gradient is the mean over as many micro-batches,
    before it is clipped."""
    common = ("cluster=virtual", "cluster.workers=1", "model.num_layers=2", "train.accumulation=2")
    for name, own in (("ours", given), ("ddp", ())):
        exact = ("model.dropout=0", "model.tie_embeddings=false", "codec=fp32", "train.clip_norm=0.5")
        config = tiny_run(*common, *exact, *own, "measure.entropy_every=4")
        train_all_virtually(config, str(tmp_path / name))
    ours, theirs = (
        dict(zip((each.name for each in found.matrices), found.nats[0, 0].tolist(), strict=True))
        for found in (read_entropies(tmp_path / name) for name in ("ours", "ddp"))
    )
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_rows_continue_after_a_header(tmp_path: Path) -> None:
    """A resumed attempt adds rows to those that a checkpoint relies on."""
    matrices = [MatrixName("w", 2, 3, 0), MatrixName("v", 4, 5, 1)]
    for step in (0, 1):
        writer = RunWriter(tmp_path)
        rows = [{"step": step, "nats": [[-1.5, -math.inf]]}]
        writer.add_entropies(lambda: header(matrices, [0.5], {"model": "toy"}), rows)
        assert ENTROPIES in writer.flush()
    found = read_entropies(tmp_path)
    assert found.steps == (0, 1) and found.matrices == tuple(matrices) and found.matrices[1].numel == 20
    assert found.nats.tolist() == [[[-1.5, -math.inf]]] * 2


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "is not a record of entropies"),
        ([{"step": 1, "nats": [[0.0]]}], "is not a record of entropies"),
        ([header([], [1.0], {})], "has rows with other columns"),
        ([ONE, {"step": 0, "nats": [[1.0, 2.0]]}], "other columns"),
        ([ONE, {"step": 3, "nats": [[1.0]]}, {"step": 3, "nats": [[1.0]]}], "steps that do not ascend"),
    ],
)
def test_other_files_are_refused(rows: list[dict[str, object]], problem: str, tmp_path: Path) -> None:
    (tmp_path / ENTROPIES).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UnusableFileError, match=problem):
        read_entropies(tmp_path)


def test_a_parallelism_that_shows_no_gradients_is_refused() -> None:
    silent = cast(Parallelism, object())
    with pytest.raises(
        ValueError, match=r"measure\.entropy_every=5: parallel=silent keeps no worker's gradients"
    ):
        EntropyRecorder(cast(World, None), silent, "silent", 5, [1.0])
    assert not EntropyRecorder(cast(World, None), silent, "silent", 0, [1.0]).due(0)


def test_workers_average() -> None:
    assert mean_nats([1.0, 2.0]) == 1.5 and mean_nats([1.0, -math.inf]) == -math.inf


@pytest.mark.parametrize(
    "given", ["measure.entropy_every=-1", "measure.entropy_rates=[0.0]", "measure.entropy_rates=[]"]
)
def test_what_cannot_be_recorded_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=given.split("=")[0]):
        tiny_run(given)
