"""`measure.save_gradients_at`: gradients of chosen steps, ready for a replay, and nothing else changes.

Nor does it with `measure.entropy_every`, which every run here has that saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pool import Workers
from recorded import loads
from training_jobs import tiny_run, train_all_virtually, train_rank

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import ENTROPIES
from gradwire.harness.record.gradients import read_gradients
from gradwire.harness.record.identity import run_id
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.replay.study import STUDY as REPLAY

SETTINGS = (
    *("cluster.workers=3", "codec=dynamiq", "measure.save_gradients_at=[1,2]", "measure.entropy_every=1"),
    "measure.entropy_rates=[1.0,0.25]",
)


def losses(directory: Path) -> list[tuple[float, float | None]]:
    rows = [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    return [(row["loss"], row.get("vnmse")) for row in rows]


def test_both_worlds_save_the_same_gradients(tmp_path: Path, workers: Workers) -> None:
    train_all_virtually(tiny_run(*SETTINGS, "cluster=virtual"), str(tmp_path / "virtual"))
    workers(3)(train_rank, tiny_run(*SETTINGS), str(tmp_path / "real"))
    for step in (1, 2):
        files = [tmp_path / world / "gradients" / f"step{step}.safetensors" for world in ("real", "virtual")]
        real, virtual = map(read_gradients, files)
        assert torch.equal(real.values, virtual.values)
        assert real.buckets == virtual.buckets
        assert len(real.buckets) >= 3
        assert real.workers == 3
        assert not torch.equal(real.values[0], real.values[1])
    found = [(tmp_path / world / ENTROPIES).read_text() for world in ("real", "virtual")]
    assert found[0] == found[1] and found[0].count("\n") == 1 + 4
    assert sorted(path.name for path in (tmp_path / "real" / "gradients").iterdir()) == [
        "step1.safetensors",
        "step2.safetensors",
    ]


def test_saving_changes_nothing_else(tmp_path: Path) -> None:
    train_all_virtually(tiny_run(*SETTINGS, "cluster=virtual"), str(tmp_path / "saving"))
    train_all_virtually(tiny_run(*SETTINGS[:2], "cluster=virtual"), str(tmp_path / "plain"))
    assert losses(tmp_path / "saving") == losses(tmp_path / "plain")


def test_a_replay_repeats_the_runs_error(tmp_path: Path) -> None:
    """Gradients, buckets, seed and codec are those of the run; the step differs, hence the random numbers."""
    saving = (*SETTINGS[:2], "cluster=virtual", "measure.save_gradients_at=[0]")
    train_all_virtually(tiny_run(*saving), str(tmp_path / "run"))
    file = tmp_path / "run" / "gradients" / "step0.safetensors"
    config = validate_any(compose(["task=replay", f"gradients={file}", "replay.repeats=1"]))
    assert REPLAY.run(config, tmp_path / "replay") == 0
    summary = json.loads((tmp_path / "replay" / "summary.json").read_text())
    assert summary["vnmse_mean"] == pytest.approx(losses(tmp_path / "run")[0][1], rel=1e-6)
    assert summary["gradients"]["model"] == "gpt2"
    assert summary["gradients"]["run"] == run_id(tiny_run(*saving))


def test_ranges_of_steps_are_those_steps() -> None:
    """The run and its id are the same however they are written."""
    ranges = tiny_run("measure.save_gradients_at=[3,0-2,1]")
    listed = tiny_run("measure.save_gradients_at=[3,0,1,2]")
    assert ranges == listed and ranges.measure.save_gradients_at == [3, 0, 1, 2]
    assert run_id(ranges) == run_id(listed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[2-1]", r"=\[2-1\]: choose a list, each a whole number or a range such as 100-109 from 0 to"),
        ("0-2", r"=0-2: .*; did you mean measure\.save_gradients_at=\[0-2\]\?"),
        ("[0-99999999]", r"=\[0-99999999\]: has 100000000 steps; choose at most 10000"),
        ("[2-5]", r"=\[2, 3, 4, 5\]: the run has the steps 0 to 3, and not 4, 5"),
    ],
)
def test_ranges_that_cannot_be_kept_are_refused(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"measure\.save_gradients_at{said}"):
        tiny_run(f"measure.save_gradients_at={given}")


def test_steps_beyond_the_run_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"measure\.save_gradients_at=\[1, 4\]: .* steps 0 to 3, and not 4"):
        tiny_run("measure.save_gradients_at=[1,4]")
