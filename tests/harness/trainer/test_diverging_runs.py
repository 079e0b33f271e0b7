"""Steps that are skipped, and runs that end because training cannot continue."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pool import Workers
from recorded import loads
from training_jobs import (
    opened,
    spoiled,
    tiny_run,
    train_all_virtually,
    train_rank_skipping,
    train_rank_to_the_reason,
)

from gradwire.codecs.wrappers.feedback import ErrorFeedback
from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.launch.launch import run_here
from gradwire.harness.record.directory import DivergedError, divergence_in, is_done, mark_failed
from gradwire.harness.report.compare import compare
from gradwire.harness.trainer.early_end import Divergence, skipped_at_the_end

BEYOND = ("train.lr=1e30", "train.warmup_steps=0", "eval.every=100", "measure.vnmse_every=0")
"""Settings whose first update makes weights with gradients that are not finite."""


def steps_of(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def comparable(directory: Path) -> tuple[list[dict[str, Any]], bytes]:
    """The rows without times, and the weights."""
    keys = ("step", "loss", "grad_norm", "skipped", "bytes_sent")
    weights = (directory / "checkpoint" / "model.safetensors").read_bytes()
    return [{key: row[key] for key in keys} for row in steps_of(directory)], weights


def test_a_skipped_step_is_counted_and_passed_to_the_codec(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both worlds agree; with error feedback, later steps show that the codec skipped the step."""
    overrides = ("codec=mxfp4", "codec.ef=true", "cluster.workers=2", "train.log_every=1")
    with spoiled(1):
        train_all_virtually(tiny_run(*overrides, "cluster=virtual"), str(tmp_path / "virtual"))
    workers(2)(train_rank_skipping, tiny_run(*overrides), str(tmp_path / "real"), 1)
    assert comparable(tmp_path / "real") == comparable(tmp_path / "virtual")
    for world in ("real", "virtual"):
        assert [row["skipped"] for row in steps_of(tmp_path / world)] == [False, True, False, False]
        assert json.loads((tmp_path / world / "summary.json").read_text())["skipped_steps"] == 1
    monkeypatch.setattr(ErrorFeedback, "skip_step", ErrorFeedback.end_step)
    with spoiled(1):
        train_all_virtually(tiny_run(*overrides, "cluster=virtual"), str(tmp_path / "untold"))
    assert comparable(tmp_path / "untold") != comparable(tmp_path / "virtual")


@pytest.mark.parametrize(("skipped", "done"), [(0, 2), (2, 4)])
def test_more_skipped_steps_than_allowed_end_a_run(skipped: int, done: int, tmp_path: Path) -> None:
    """All rows are there, the good checkpoint stays, and the same command is refused."""
    settings = ("cluster=virtual", "cluster.workers=2", "train.steps=9", "train.checkpoint_every=1")
    config = tiny_run(*settings, *BEYOND, f"train.max_skipped={skipped}")
    directory = tmp_path / "run"
    with pytest.raises(DivergedError) as raised:
        run_here(config, directory)
    reason = (directory / "FAILED").read_text()
    assert str(raised.value) + "\n" == reason and not is_done(directory)
    assert reason.startswith(f"diverged after step {done}: gradients not finite, steps skipped in a row: ")
    assert reason.endswith(f"{skipped + 1} (train.max_skipped={skipped})\n")
    assert [row["skipped"] for row in steps_of(directory)] == [False] + [True] * (skipped + 1)
    assert [path.name[-1] for path in checkpoints(directory)] == ["1"]
    with pytest.raises(
        ValueError, match=r"diverged after step .*, and would again; .* resume=force$"
    ) as refused:
        run_here(config, directory)
    assert "\n" not in str(refused.value)
    assert (directory / "FAILED").read_text() == reason
    assert opened(replace(config, resume="force"), directory) == checkpoints(directory)[0]


def test_ranks_diverge_together(tmp_path: Path, workers: Workers) -> None:
    """Real runs end for the same reason as virtual ones."""
    for more, reason in (
        (("train.max_skipped=1",), "gradients not finite, steps skipped in a row: 2 (train.max_skipped=1)"),
        (("eval.every=2",), "perplexity nan, loss nan"),
    ):
        overrides = ("cluster.workers=2", *BEYOND, *more)
        reasons = workers(2)(train_rank_to_the_reason, tiny_run(*overrides), str(tmp_path / more[0]))
        with pytest.raises(DivergedError) as raised:
            train_all_virtually(tiny_run(*overrides, "cluster=virtual"), str(tmp_path / f"virtual{more[0]}"))
        assert {*reasons, str(raised.value)} == {reasons[0]}
        assert reasons[0].endswith(reason)


def test_an_evaluation_that_overflows_ends_a_run_and_its_cell_is_a_miss(tmp_path: Path) -> None:
    """Its row is kept, and a comparison with a finished run says that it diverged."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    settings = ("cluster=virtual", "cluster.workers=2", "codec=bf16", "train.steps=2")
    with spoiled(1):
        run_here(tiny_run(*settings), good)
    with pytest.raises(DivergedError, match=r"^diverged after step 2: perplexity nan, loss nan$"):
        run_here(tiny_run(*settings, *BEYOND), bad)
    (row,) = [loads(line) for line in (bad / "evals.jsonl").read_text().splitlines()]
    assert math.isnan(row["perplexity"]) and row["step"] == 2
    compared = compare([good, bad], tmp_path / "table", axes=["train", "eval", "measure"])
    done, missed = compared.rows
    skipped = done.figures["skipped_steps"]
    assert skipped is not None and skipped.high == 1
    assert (missed.seeds, missed.failed_seeds, missed.diverged_seeds) == ([], [0], [0])
    assert all(math.isinf(target.train_time_s.median) for target in missed.targets)
    (table, *_) = compared.tables
    assert table.header[:4] == ["run", "seeds", "final perplexity", "steps skipped"]
    assert [line[1:4] for line in table.rows] == [
        ["1", table.rows[0][2], "1"],
        ["1 (1 diverged)", "diverged", "–"],
    ]
    assert any("failed, counted as a miss: diverged after step 2" in line for line in compared.left_out)


def test_a_stop_amid_skipped_steps_forgets_nothing(tmp_path: Path) -> None:
    """The checkpoint that it saves takes no good one's place, and the count continues."""
    settings = ("cluster=virtual", "cluster.workers=2", "train.steps=9", "train.log_every=1")
    config = tiny_run(
        *settings, *BEYOND, "train.max_skipped=3", "train.checkpoint_every=1", "train.keep_checkpoints=1"
    )
    directory = tmp_path / "run"
    train_all_virtually(config, str(directory), stop_after=3)
    assert [path.name[-1] for path in checkpoints(directory)] == ["3", "1"]
    assert not is_done(directory)
    with pytest.raises(DivergedError, match=r"^diverged after step 5: .* skipped in a row: 4 "):
        train_all_virtually(config, str(directory))


def test_what_diverges() -> None:
    watched = Divergence(max_skipped=1)
    for done, skipped in enumerate([True, False, True, False], start=1):
        watched.see_step(done, skipped)
    watched.see_evaluation(4, {"loss": 3.0, "perplexity": 20.0}, "perplexity")
    watched.raise_if_found()
    for done in (5, 6):
        watched.see_step(done, True)
    watched.see_evaluation(6, {"loss": 900.0, "perplexity": math.inf}, "perplexity")
    with pytest.raises(DivergedError, match=r"^diverged after step 6: gradients not finite, .*: 2 \(train"):
        watched.raise_if_found()
    assert skipped_at_the_end([{"skipped": flag} for flag in (True, False, True, True)]) == 2
    assert skipped_at_the_end([]) == 0
    overflowing = Divergence(max_skipped=0)
    overflowing.see_evaluation(7, {"loss": 900.0, "perplexity": math.inf}, "perplexity")
    assert overflowing.reason == "diverged after step 7: perplexity inf, loss 900"


def test_only_a_run_that_diverged_is_one(tmp_path: Path) -> None:
    assert divergence_in(tmp_path) is None
    for text, found in (("rank 0 failed: RuntimeError: diverged", False), ("diverged after step 3: x", True)):
        mark_failed(tmp_path, text)
        assert divergence_in(tmp_path) == (text if found else None)
    (tmp_path / "FAILED").write_bytes(b"\xff" * 10_000_000)
    assert divergence_in(tmp_path) is None
