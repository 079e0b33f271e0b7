"""Profiles for the clock of a virtual cluster are calibrated once, kept, and used again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_graph import EmulatedGraph
from recorded import outcome
from training_jobs import tiny_run, train_all_virtually

from gradwire.harness.comm.transport.captured_rounds import SETTLING, CapturedRounds
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import PROFILE, PROFILES
from gradwire.harness.record.profiles import codec_id, own_profile
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.tasks import retime
from gradwire.harness.timing.trace.step import step_end
from gradwire.harness.trainer.calibration import STEPS, request_profile
from gradwire.harness.trainer.settings import RunConfig

SHORT = ("cluster=virtual", "cluster.workers=2", "train.steps=3", "train.log_every=1", "eval.every=3")


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def said(directory: Path) -> Any:
    return json.loads((directory / "summary.json").read_text())["profile"]


def in_sweep(config: RunConfig, directory: Path, stop_after: int | None = None) -> None:
    """Trains as a cell of the sweep whose folder is next to `directory`."""
    request_profile(directory, directory.parent / PROFILES)
    train_all_virtually(config, str(directory), stop_after)


PARALLELISMS = {
    "ddp": ("codec=powersgd",),  # it keeps residuals
    "sharded": ("parallel=sharded", "codec=all_to_all", "parallel.weights=qwd", "parallel.weight_group=32"),
    "blocks": ("parallel=blocks", "parallel.num_blocks=2", "codec=bf16", "parallel.bucket_cap_mb=25"),
    "pipeline": ("parallel=pipeline", "codec=optimus_cc", "model.num_layers=2", "train.accumulation=2"),
}


@pytest.mark.parametrize("name", PARALLELISMS)
def test_calibrating_changes_nothing_but_times(name: str, tmp_path: Path) -> None:
    config = tiny_run(*SHORT, *PARALLELISMS[name])
    train_all_virtually(config, str(tmp_path / "alone"))
    in_sweep(config, tmp_path / "first")
    assert outcome(tmp_path / "first") == outcome(tmp_path / "alone")
    assert said(tmp_path / "alone") is None and not (tmp_path / "alone" / PROFILE).exists()
    assert said(tmp_path / "first")["computation"] and said(tmp_path / "first")["codec"]
    times = [row["compute_s"] for row in rows(tmp_path / "first")]
    assert times[1:] == pytest.approx([times[1]] * (len(times) - 1), rel=1e-9)
    timed = [step_end(trace) for _, trace in timed_steps(tmp_path / "first")]
    assert timed == pytest.approx([row["step_time_s"] for row in rows(tmp_path / "first")], rel=1e-9)


def test_a_sweeps_runs_share_one_profile_and_an_interrupted_one_takes_it_again(tmp_path: Path) -> None:
    other = tiny_run(*SHORT, "codec=bf16", "seed=1")
    config = tiny_run(*SHORT, "codec=dynamiq", "train.steps=5", "train.checkpoint_every=2")
    in_sweep(other, tmp_path / "other")
    in_sweep(config, tmp_path / "whole")
    assert said(tmp_path / "whole")["computation"] == said(tmp_path / "other")["computation"]
    assert said(tmp_path / "whole")["codec"] != said(tmp_path / "other")["codec"]
    assert len(list((tmp_path / PROFILES).glob("computation-*.json"))) == 1
    assert len(list((tmp_path / PROFILES).glob("codec-*.json"))) == 2
    for stop_after in (3, None):
        in_sweep(config, tmp_path / "parts", stop_after)
        shutil.rmtree(tmp_path / PROFILES, ignore_errors=True)  # the run has its own copy
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_a_given_profile_makes_clocks_equal(tmp_path: Path) -> None:
    in_sweep(tiny_run(*SHORT), tmp_path / "first")
    config = tiny_run(*SHORT, f"network.compute=file:{tmp_path / 'first'}")
    for name in ("one", "two"):
        train_all_virtually(config, str(tmp_path / name))
    assert rows(tmp_path / "one") == rows(tmp_path / "two") == rows(tmp_path / "first")
    assert said(tmp_path / "one")["unknown"] == 0
    assert said(tmp_path / "one")["source"].endswith(PROFILE)


def test_retiming_counts_the_runs_own_profile_or_the_given_one(tmp_path: Path) -> None:
    network = ("network=simulated", "network.rate_mbit=1000")
    config = tiny_run(*SHORT, *network)
    in_sweep(config, tmp_path / "first")
    train_all_virtually(config, str(tmp_path / "alone"))
    given = f"network.compute=file:{tmp_path / 'first'}"
    for run, more in (("first", ()), ("alone", (given,))):
        directory = tmp_path / f"retimed-{run}"
        asked = ["task=retime", f"run={tmp_path / run}", "plots=false", *network, *more]
        task = validate_any(compose(asked))
        assert isinstance(task, retime.RetimeTask) and retime.run(task, directory) == 0
        times = [row["step_time_s"] for row in rows(directory)]
        assert times == pytest.approx([row["step_time_s"] for row in rows(tmp_path / "first")], rel=1e-9)
        assert said(directory)["computation"] == said(tmp_path / "first")["computation"]
    assert said(tmp_path / "alone") is None


def test_codec_work_is_the_same_for_all_seeds_and_networks() -> None:
    first, *same = (
        codec_id(tiny_run(*SHORT, *more).mapping())
        for more in ((), ("seed=3",), ("network=simulated",), ("train.lr=0.1", "overlap.enabled=false"))
    )
    assert set(same) == {first}
    for more in ("codec.bits=3", "topology=butterfly", "parallel.bucket_cap_mb=1", "train.micro_batch=4"):
        assert codec_id(tiny_run(*SHORT, more).mapping()) != first


def test_codec_work_of_captured_rounds_is_another() -> None:
    """Rounds are captured on GPUs, unless gradients or hashes pass through the host."""

    def on(device: str, **given: Any) -> str:
        settings = tiny_run(*SHORT, "measure.check_hashes=false").mapping()
        settings["cluster"]["device"] = device
        for key, value in given.items():
            group, _, field = key.partition("__")
            settings[group][field] = value
        return codec_id(settings)

    step_by_step, captured = on("cuda", kernels__graphs="never"), on("cuda", kernels__graphs="auto")
    assert captured != step_by_step and on("cuda", kernels__graphs="always") == captured
    for given in ({"measure__check_hashes": True}, {"cluster__gradients": "disk"}):
        assert on("cuda", kernels__graphs="auto", **given) == step_by_step
    assert on("cpu", kernels__graphs="auto") == on("cpu", kernels__graphs="never")


def test_a_profile_of_captured_rounds_has_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps before the capture are made besides those that count."""
    made = list[CapturedRounds]()

    def make(graphs: str, device: torch.device) -> CapturedRounds:
        made.append(CapturedRounds(EmulatedGraph, device, required=False))
        return made[-1]

    monkeypatch.setattr("gradwire.harness.trainer.parts.make_captured_rounds", make)
    in_sweep(tiny_run(*SHORT, "codec=bf16", "measure.check_hashes=false"), tmp_path / "run")
    profile = own_profile(tmp_path / "run")
    assert profile is not None and profile.codecs[0].origin.steps == STEPS
    buckets = len({piece.coordinates for piece in profile.codecs[0].pieces})
    assert made[0].launches == buckets * (STEPS + 3 - SETTLING)


def test_a_damaged_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / PROFILE).write_text('{"computations": [{"id": 3}]}')
    with pytest.raises(ValueError, match=r"profile.json: .*id is 3, not text"):
        own_profile(tmp_path)
