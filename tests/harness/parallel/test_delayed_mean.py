"""Local SGD whose means arrive a step late: steps that leave a message in flight, in every world."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from given_times import MarkedBy
from pool import Workers
from test_local_sgd import SAME, at_network, outcome
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.timing.trace.blocks import rewrite
from gradwire.harness.timing.trace.chrome import chrome_events
from gradwire.harness.timing.trace.files import trace_file
from gradwire.harness.timing.trace.step import Await

SIZE = 3
DELAYED = ("parallel=local_sgd:delayed_2", f"cluster.workers={SIZE}", "codec=mxfp8", "train.steps=6")
OFTEN = ("eval.every=3", "train.log_every=1", "measure.trace=true", "measure.vnmse_every=1")
NETWORK = ("network.codec_times=none", "network.rate_changes=[[0.03,0.5]]")
SIMULATED = ("cluster=virtual", "network=simulated", "network.rate_mbit=10", *NETWORK)
SENT_AFTER = 2
"""Steps after which a mean is on its way."""


@pytest.fixture(scope="module", autouse=True)
def computing_takes_as_long_each_time() -> Iterator[None]:
    """In the virtual world every look at the clock comes a 1024th of a second after the one before."""
    ticks = count()
    with pytest.MonkeyPatch.context() as patch:
        clock = MarkedBy(lambda: next(ticks) / 1024)
        patch.setattr("gradwire.harness.comm.world.virtual.make_work_clock", lambda device: clock)
        yield


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("delayed") / "virtual"
    train_all_virtually(tiny_run(*DELAYED, *OFTEN, *SIMULATED), str(directory))
    return directory


def rows(directory: Path) -> list[dict[str, Any]]:
    return [dict(row) for row in load_run(directory).steps]


def test_a_step_counts_what_the_one_before_has_sent(virtual: Path) -> None:
    """Bytes count where they were started, the time they take where it passes."""
    steps = rows(virtual)
    assert [row["bytes_sent"] > 0 for row in steps] == [False, True] * 3
    assert [row["exposed_comm_s"] > 0.01 for row in steps] == [False, False, True, False, True, False]
    assert [row["vnmse"] is not None for row in steps] == [False, False, True, False, True, False]
    parts = ("compute_s", "compression_s", "exposed_comm_s", "other_s")
    assert all(sum(row[part] for part in parts) == pytest.approx(row["step_time_s"]) for row in steps)


def test_lengths_add_up(virtual: Path) -> None:
    run, total = load_run(virtual), 0.0
    for row in run.steps:
        total += row["step_time_s"]
        assert row["train_time_s"] == total
    assert run.done.train_time_s == total


def test_real_equals_virtual_though_interrupted_in_flight(
    virtual: Path, tmp_path: Path, workers: Workers
) -> None:
    """The second attempt records its steps 3 by 3, so that one mean crosses from a step to the next."""
    paced = (*DELAYED, *OFTEN, "network=paced", "network.rate_mbit=5")
    config, run, directory = tiny_run(*paced), workers(SIZE), tmp_path / "real"
    assert run(train_rank, config, str(directory), None, SENT_AFTER) == [False] * SIZE
    config = tiny_run(*paced, "train.log_every=3")
    checkpoint = opened(config, directory)
    assert run(train_rank, config, str(directory), checkpoint) == [True] * SIZE
    assert load_run(directory).done.resumed_after == [SENT_AFTER]
    assert "bytes_sent" in SAME and outcome(directory) == outcome(virtual)
    assert [row["comm_s"] > 0 for row in rows(directory)] == [False, True, False, True, True, True]
    assert rows(directory)[4]["exposed_comm_s"] > 0.01
    for number, trace in timed_steps(directory):
        awaited = [one.steps_back for one in trace[0].computation if isinstance(one, Await)]
        assert awaited == ([1] if number in (2, 4) else [])


def test_an_interruption_changes_no_time(virtual: Path, tmp_path: Path) -> None:
    config, directory = tiny_run(*DELAYED, *OFTEN, *SIMULATED), tmp_path / "parts"
    for stop_after in (SENT_AFTER, None):
        train_all_virtually(config, str(directory), stop_after)
    assert load_run(directory).done.resumed_after == [SENT_AFTER]
    assert rows(directory) == rows(virtual)


def test_it_is_retimed_as_it_went(virtual: Path, tmp_path: Path) -> None:
    same = at_network(virtual, tmp_path / "same", 10, *NETWORK)
    for row, before in zip(same.steps, rows(virtual), strict=True):
        for key in ("train_time_s", "step_time_s", "compute_s", "exposed_comm_s", "wait_s", "comm_s"):
            assert row[key] == pytest.approx(before[key], abs=1e-6), key


def test_a_step_is_drawn_with_what_was_in_flight(virtual: Path) -> None:
    (_, alone), whole = next(timed_steps(virtual, [2])), dict(timed_steps(virtual))
    assert alone[0].carried and alone == whole[2] != whole[4]
    bars = [event for event in chrome_events(alone) if event["ph"] == "X"]
    earlier = [bar for bar in bars if bar["name"].endswith("of an earlier step")]
    assert {bar["pid"] for bar in earlier} == {1, 2, 3} and min(bar["ts"] for bar in bars) >= 0


def test_without_the_traces_of_all_steps_it_is_refused(virtual: Path, tmp_path: Path) -> None:
    run = shutil.copytree(virtual, tmp_path / "run")
    for rank in range(SIZE):
        rewrite(trace_file(run, rank), lambda step: step != 3)
    problem = (
        r"^\S+ has no step 3, and steps of this run leave messages in flight[^\n]* measure.trace_every=1$"
    )
    with pytest.raises(ValueError, match=problem):
        at_network(run, tmp_path / "retimed", 10)
