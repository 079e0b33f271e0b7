"""Training with captured rounds: the losses of training without, in every parallelism that allows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pool import Workers
from recorded import loads
from training_jobs import tiny_run, train_rank, train_rank_captured

from gradwire.harness.record.runs import load_run
from gradwire.harness.tasks.train import captured_in_words

OWN = ("measure.check_hashes=false", "train.steps=6", "train.log_every=3", "codec=fp32", "cluster.workers=2")


def rows(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("parallel", "buckets"),
    [
        (("parallel=ddp",), 1),
        (("parallel=sharded",), 2),
        (("parallel=sharded", "parallel.weights=qwd"), 2),
        (("parallel=sharded", "parallel.weights=qwd", "parallel.main=algorithm4"), 2),
        (("parallel=blocks", "parallel.bucket_cap_mb=25", "parallel.num_blocks=3"), 1),
    ],
    ids=str,
)
def test_losses_are_those_of_training_step_by_step(
    parallel: tuple[str, ...], buckets: int, workers: Workers, tmp_path: Path
) -> None:
    config = tiny_run(*OWN, *parallel)
    plain, captured = tmp_path / "plain", tmp_path / "captured"
    workers(2)(train_rank, config, str(plain))
    workers(2)(train_rank_captured, config, str(captured))
    for own, other in zip(rows(captured), rows(plain), strict=True):
        assert own["loss"] == other["loss"] and own["grad_norm"] == other["grad_norm"]
        assert own["bytes_sent"] == other["bytes_sent"]
    assert load_run(plain).done.captured is None
    found = load_run(captured).done.captured
    assert found is not None and found["captured"] >= buckets and found["spans_every"] == 2
    known = [row["compression_s"] is not None for row in rows(captured)]
    assert known[:2] == [True, True], "rounds before the capture are timed as they are"
    assert all(row["compression_s"] is not None for row in rows(captured)[3::2]), "marks in every second step"
    assert any(not each for each in known), "others are not known"
    assert load_run(captured).done.has_breakdown


def test_what_was_captured_in_words() -> None:
    about: dict[str, Any] = {"buckets": 12, "captured": 11, "refused": {"moves": 1}}
    about |= {"spans_every": 15, "marks_share": 0.293, "marks": 900}
    assert captured_in_words(about) == (
        "captured: 11 of 12 buckets (1: moves), timed in one step of 15, where that adds 29.3%"
    )
    about |= {"captured": 12, "refused": {}, "spans_every": None, "marks_share": None}
    assert captured_in_words(about) == "captured: 12 of 12 buckets"
