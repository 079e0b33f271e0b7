"""`task=retime`: the same run on another clock, without training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from traced_runs import virtual_run

from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.tasks import retime
from gradwire.harness.timing.trace.files import RecordedSteps
from gradwire.harness.timing.trace.writer import cut_traces

TIMES = {"train_time_s", "step_time_s", "compute_s", "compression_s", "exposed_comm_s", "other_s"}
TIMES |= {"tokens_per_s", "comm_s", "overlap_s", "wait_s", "osf", "row"}


def retimed(run: Path, directory: Path, *overrides: str) -> Run:
    config = validate_any(compose(["task=retime", f"run={run}", *overrides]))
    assert retime.run(config, directory) == 0
    return load_run(directory)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        validate_any(compose(["task=retime", *overrides]))
    return str(raised.value)


def but_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def test_under_its_own_network_a_run_keeps_its_times(simulated: Path, tmp_path: Path) -> None:
    own = ["network.rate_mbit=50", "network.latency_s=0.001"]
    before, after = load_run(simulated), retimed(simulated, tmp_path / "same", *own)
    assert after.done.train_time_s == pytest.approx(before.done.train_time_s, rel=1e-5)
    for row, same in zip(before.steps, after.steps, strict=True):
        for key in ("step_time_s", "compute_s", "compression_s", "exposed_comm_s"):
            assert same[key] == pytest.approx(row[key], rel=1e-3, abs=2e-6)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("kind", ["simulated", "paced"])
def test_only_times_change(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Losses, metrics, errors, bytes: the same; real and simulated runs alike."""
    run: Path = request.getfixturevalue(kind)
    before, after = load_run(run), retimed(run, tmp_path / "slow", "network.rate_mbit=0.1")
    assert but_times(after.steps) == but_times(before.steps)
    assert but_times(after.evals) == but_times(before.evals)
    assert after.done.clock == "simulated"
    slower = after.done.rounds_per_second / before.done.rounds_per_second
    assert after.done.tokens_per_s == pytest.approx((before.done.tokens_per_s or 0) * slower)
    assert after.done.bytes_by_phase == before.done.bytes_by_phase
    assert after.done.final_metric == before.done.final_metric
    assert after.done.train_time_s > before.done.train_time_s
    assert after.steps[-1]["train_time_s"] == pytest.approx(sum(row["step_time_s"] for row in after.steps))
    assert after.evals[-1]["train_time_s"] == after.steps[-1]["train_time_s"]
    for row in after.steps:
        parts = [row[key] for key in ("compute_s", "compression_s", "exposed_comm_s", "other_s")]
        assert sum(parts) == pytest.approx(row["step_time_s"], rel=1e-9)
    assert after.config["network"]["rate_mbit"] == 0.1


@pytest.mark.usefixtures("undrawn")
def test_a_slower_network_costs_what_its_bytes_cost(simulated: Path, tmp_path: Path) -> None:
    """The network is so slow that only the busiest rank's bytes over the rate count."""
    rate = 0.1
    after = retimed(simulated, tmp_path / "slow", f"network.rate_mbit={rate}")
    for row in after.steps:
        least = row["bytes_sent"] / after.done.workers * 8 / (rate * 1e6)
        assert least <= row["step_time_s"] < 1.3 * least


@pytest.mark.usefixtures("undrawn")
def test_given_computation_and_free_codecs_leave_the_network_alone(simulated: Path, tmp_path: Path) -> None:
    given = ["network.compute_s=0.5", "network.codec_times=none", "network.rate_mbit=1e6"]
    after = retimed(simulated, tmp_path / "given", *given)
    for row in after.steps:
        assert row["compute_s"] == pytest.approx(0.5)
        assert row["compression_s"] == 0
        assert 0.5 < row["step_time_s"] < 0.501
    again = retimed(simulated, tmp_path / "again", *given)
    assert again.steps == after.steps


@pytest.mark.usefixtures("undrawn")
def test_the_result_is_a_run_like_any_other(simulated: Path, tmp_path: Path) -> None:
    """A retimed run can be retimed again and compared, and is not made twice."""
    first = retimed(simulated, tmp_path / "first", "network.rate_mbit=10")
    back = retimed(tmp_path / "first", tmp_path / "back", "network.rate_mbit=50", "network.latency_s=0.001")
    assert back.done.train_time_s == pytest.approx(load_run(simulated).done.train_time_s, rel=1e-5)
    found = retime.compare([first.folder, back.folder], tmp_path / "table", ())
    assert len(found.rows) == 2
    summary = (tmp_path / "first" / "summary.json").read_text()
    retimed(simulated, tmp_path / "first", "network.rate_mbit=10")
    assert (tmp_path / "first" / "summary.json").read_text() == summary


def test_another_run_of_the_same_name_has_times_of_its_own(simulated: Path, tmp_path: Path) -> None:
    def config(folder: Path) -> Any:
        return validate_any(compose(["task=retime", f"run={folder}"]))

    copy = tmp_path / simulated.name
    shutil.copytree(simulated, copy)
    summary = json.loads((simulated / "summary.json").read_text())

    def with_summary(text: str) -> str:
        (copy / "summary.json").write_text(text)
        mark_done(copy)
        return run_id(config(copy))

    changed = with_summary(json.dumps(summary, indent=2) + "\n")
    same = with_summary((simulated / "summary.json").read_text())
    assert same == run_id(config(simulated)), "where it lies does not matter"
    assert with_summary(json.dumps(summary | {"seed": 7})) != changed
    assert run_name(config(copy)).startswith(f"retime-{simulated.name}-")


@pytest.mark.parametrize(
    ("steps", "num_steps", "gap"),
    [
        (range(10), 10, None),
        ([1, 3, 5, 7, 9], 10, None),  # every second one is kept
        ([0, *range(2, 20)], 20, None),
        ([*range(18)], 20, None),
        ([*range(17)], 20, "the 3 steps from step 17 on"),
        ([*range(3, 20)], 20, "the 3 steps from step 0 on"),
        ([0, 1, *range(5, 20)], 20, "the 3 steps from step 2 on"),
    ],
)
def test_every_tenth_of_a_run_needs_a_trace(steps: Sequence[int], num_steps: int, gap: str | None) -> None:
    recorded = RecordedSteps(list(steps), None)
    if gap is None:
        retime._check_covered("x", recorded, num_steps)
    else:
        with pytest.raises(ValueError, match=rf"run=x keeps no trace of {gap} \(its trace ended there"):
            retime._check_covered("x", recorded, num_steps)


def test_what_cannot_be_retimed_is_refused(simulated: Path, tmp_path: Path) -> None:
    assert "run=nowhere: does not exist; use run=outputs/<run>" in refusal("run=nowhere")
    assert "network=shaped is measured" in refusal(f"run={simulated}", "network=shaped")
    untraced = virtual_run(tmp_path / "untraced", 2, "measure.trace=false", "cluster.ranks_per_node=1")
    nodes = ("network=simulated", "network.fabric=two_level", "network.intra_rate_mbit=1e4")
    told = refusal(f"run={untraced}", *nodes, "network.ranks_per_node=2")
    assert told.startswith("cluster.ranks_per_node=1 contradicts network.ranks_per_node=2")
    assert "keeps no trace; train it again with measure.trace=true" in refusal(f"run={untraced}")
    partly = tmp_path / "partly"
    shutil.copytree(simulated, partly)
    cut_traces(partly, 3)
    assert "keeps no trace of the 2 steps from step 3 on" in refusal(f"run={partly}")
    (untraced / "DONE").unlink()
    assert "run the same command again to finish it" in refusal(f"run={untraced}")
    assert "network.ranks_per_node=4" in refusal(f"run={simulated}", "network=sdp4bit_h800")
