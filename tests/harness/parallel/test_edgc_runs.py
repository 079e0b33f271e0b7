"""Runs with EDGC: the same in both worlds and after a resume; stages agree on ranks, by the clock or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pool import Workers
from recorded import outcome
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.codecs.decision_file import FILE
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.runs import load_run
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.allreduce.study import STUDY as ALLREDUCE
from gradwire.harness.trainer.settings import RunConfig

EDGC = (
    *("codec=edgc", "codec.window=3", "codec.alpha=1", "codec.step_limit=1", "codec.warm_up_share=0"),
    *("train.steps=14", "train.log_every=1", "train.micro_batch=2", "train.accumulation=2", "eval.every=7"),
)
STAGES = (
    *("parallel=pipeline", "parallel.stages=2", "model.num_layers=2", "cluster.workers=4"),
    *("codec.max_rank=6", "codec.stage_offset=1.5", "codec.estimator=gaussian"),
)


def pipelined(*given: str) -> RunConfig:
    return tiny_run(*EDGC, *STAGES, "measure.check_hashes=true", *given)


def plans(directory: Path) -> list[dict[str, Any]]:
    """The plan that each step followed, from step 1 on."""
    return [json.loads(line) for line in (directory / FILE).read_text().splitlines()[1:]]


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("virtual")
    train_all_virtually(pipelined("cluster=virtual"), str(directory))
    return directory


def test_real_equals_virtual_and_resumed_equals_undisturbed(
    virtual: Path, workers: Workers, tmp_path: Path
) -> None:
    assert workers(4)(train_rank, pipelined(), str(tmp_path / "real"))
    assert outcome(tmp_path / "real") == outcome(virtual)
    assert plans(tmp_path / "real") == plans(virtual)
    config = pipelined("cluster=virtual")
    train_all_virtually(config, str(tmp_path / "resumed"), stop_after=8)
    assert opened(config, tmp_path / "resumed") is not None
    train_all_virtually(config, str(tmp_path / "resumed"))
    assert outcome(tmp_path / "resumed") == outcome(virtual)
    assert plans(tmp_path / "resumed") == plans(virtual)


def test_ranks_are_within_bounds_and_limits_in_every_stage(virtual: Path) -> None:
    steps = plans(virtual)
    compressed = [each for each in steps if each["compressing"]]
    assert 0 < len(compressed) < len(steps)
    assert len({tuple(each["rank"]) for each in compressed}) > 1
    for before, after in zip(compressed, compressed[1:], strict=False):
        assert all(abs(a - b) <= 1 for a, b in zip(after["rank"], before["rank"], strict=True))
        assert all(1 <= rank <= 6 for rank in after["rank"])
    assert set(compressed[0]["stage"]) == {0, 1}


def test_fewer_bytes_once_it_compresses_and_the_log_says_why(virtual: Path) -> None:
    rows = load_run(virtual).steps
    first = next(row for row in rows if row["codec/compressing"])
    assert rows[0]["wire_bits_per_coordinate"] > 2 * first["wire_bits_per_coordinate"]
    assert {"codec/rank_0", "codec/rank_1", "codec/entropy_0", "codec/entropy_1"} <= first.keys()
    assert "codec/rank_0" not in rows[0]


def test_the_clock_uses_defaults_for_values_not_given(tmp_path: Path) -> None:
    """The simulated clock's times give a line; a slow link makes compression worth its time."""
    given = ("codec.max_rank=null", "codec.stage_offset=null", "train.steps=18", "eval.every=9")
    clock = ("network=simulated", "network.rate_mbit=20", "network.compute_s=0.1", "network.codec_times=none")
    config = pipelined("cluster=virtual", *given, *clock)
    train_all_virtually(config, str(tmp_path / "run"))
    last = plans(tmp_path / "run")[-1]
    assert last["max_rank"] > 8 and 0 < last["model_error"] < 0.03
    micro_batches = 2  # they share the given time, and two thirds of it are backward
    assert last["backward_s"] == pytest.approx(0.1 * 2 / 3 / micro_batches)
    following = pipelined("cluster=virtual", *given, *clock, f"codec.decisions={tmp_path / 'run' / FILE}")
    train_all_virtually(following, str(tmp_path / "following"))
    assert [row["loss"] for row in load_run(tmp_path / "following").steps] == [
        row["loss"] for row in load_run(tmp_path / "run").steps
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["train.steps=100"], "codec.window=1000 is longer than the run of 100 steps"),
        (
            ["train.steps=null", "train.epochs=1"],
            "codec=edgc warms up for codec.warm_up_share of the steps, and train.steps=null",
        ),
        (["task=allreduce"], "codec=edgc: it compresses matrices, and there is one vector here"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config = validate_any(compose(["size=tiny", "codec=edgc", *given]))
        ALLREDUCE.run(config)
    assert words in str(raised.value) and "\n" not in str(raised.value)
