"""A parallelism that is one file outside of the package does all that data parallelism does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pool import Workers
from safetensors.numpy import load_file
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.tasks import retime, timeline

SIZE = 3
LOCAL = ("parallel=local_sgd:every_2", f"cluster.workers={SIZE}", "codec=mxfp4", "train.steps=6")
OFTEN = ("eval.every=3", "train.log_every=1", "measure.trace=true", "measure.vnmse_every=1")
SIMULATED = ("cluster=virtual", "network=simulated", "network.rate_mbit=10")
SAME = ("step", "loss", "grad_norm", "skipped", "vnmse", "bytes_sent", "codec/mu")


def outcome(directory: Path) -> tuple[object, ...]:
    """The results that no world and no interruption may change."""
    run = load_run(directory)
    steps = [[row.get(key) for key in SAME] for row in run.steps]
    weights = load_file(directory / "checkpoint" / "model.safetensors")
    bits = {name: value.tobytes() for name, value in weights.items()}
    decisions = (directory / "decisions.jsonl").read_text().splitlines()[1:]
    return steps, [row["perplexity"] for row in run.evals], run.done.bytes_by_phase, bits, decisions


def at_network(run: Path, directory: Path, rate_mbit: float, *more: str) -> Run:
    task = ("task=retime", f"run={run}", "plots=false")
    config = validate_any(compose([*task, f"network.rate_mbit={rate_mbit}", *more]))
    assert retime.run(config, directory) == 0
    return load_run(directory)


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("local") / "virtual"
    train_all_virtually(tiny_run(*LOCAL, *OFTEN, *SIMULATED), str(directory))
    return directory


def test_only_every_second_step_sends(virtual: Path) -> None:
    steps = load_run(virtual).steps
    assert [row["bytes_sent"] > 0 for row in steps] == [False, True] * 3
    assert [row["vnmse"] is not None for row in steps] == [False, True] * 3
    assert all(row["exposed_comm_s"] > 0 for row in steps[1::2])
    assert len({row["loss"] for row in steps}) == 6


def test_real_equals_virtual_and_resumed_equals_undisturbed(
    virtual: Path, tmp_path: Path, workers: Workers
) -> None:
    """The run stops between two means, when weights differ."""
    config, run, directory = tiny_run(*LOCAL, *OFTEN), workers(SIZE), tmp_path / "real"
    assert run(train_rank, config, str(directory), None, 3) == [False] * SIZE
    checkpoint = opened(config, directory)
    assert run(train_rank, config, str(directory), checkpoint) == [True] * SIZE
    assert load_run(directory).done.resumed_after == [3]
    assert outcome(directory) == outcome(virtual)


def test_its_decisions_are_followed(virtual: Path, tmp_path: Path) -> None:
    followed = tiny_run(*LOCAL, *OFTEN, *SIMULATED, f"codec.decisions={virtual / 'decisions.jsonl'}")
    train_all_virtually(followed, str(tmp_path / "followed"))
    assert outcome(tmp_path / "followed") == outcome(virtual)


def test_its_trace_is_retimed_and_drawn(virtual: Path, tmp_path: Path) -> None:
    before, after = load_run(virtual), at_network(virtual, tmp_path / "retimed", 10)
    assert after.done.train_time_s == pytest.approx(before.done.train_time_s, rel=1e-4)
    slow = at_network(virtual, tmp_path / "slow", 1)
    longer = [
        own["step_time_s"] - row["step_time_s"] for own, row in zip(slow.steps, after.steps, strict=True)
    ]
    assert all(abs(each) < 1e-6 for each in longer[::2]) and all(each > 0.01 for each in longer[1::2])
    config = validate_any(compose(["task=timeline", f"run={virtual}", "timeline.step=3"]))
    assert timeline.run(config) == 0
    events = json.loads((virtual / "timeline" / "step3.json").read_text())["traceEvents"]
    assert "take the mean" in {event["name"] for event in events}
