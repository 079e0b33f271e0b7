"""A training run whose links change their rate: made as planned, recorded, followed by the steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import RUN, TINY, call

from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.star import BURST_BYTES

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"links cannot be shaped here: {REASON}")

RATE, SLOWER, FROM_S, TO_S = 200.0, 0.01, 0.3, 1.2


def test_the_steps_of_a_run_follow_the_rate(tmp_path: Path) -> None:
    changes = f"network.rate_changes=[[{FROM_S},{SLOWER}],[{TO_S},1]]"
    arguments = (*TINY, "train.steps=80", "codec=fp32", "cluster.workers=2", f"network.rate_mbit={RATE}")
    ran = call(tmp_path, RUN, *arguments, "network=shaped", changes, "plots=false", "hydra.run.dir=run")
    assert ran.returncode == 0, ran.stderr
    assert "emulated, 200 Mbit/s, shaped by the kernel, changing rates" in ran.stdout
    directory = tmp_path / "run"
    (network,) = json.loads((directory / "network.json").read_text())
    slow, fast = network["rate_changes"]
    assert [slow[key] for key in ("planned_s", "factor", "rate_mbit")] == [FROM_S, SLOWER, RATE * SLOWER]
    assert [fast[key] for key in ("planned_s", "factor", "rate_mbit")] == [TO_S, 1, RATE]
    assert slow["planned_s"] <= slow["made_s"] < fast["planned_s"] <= fast["made_s"]
    rows = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    ends = [row["train_time_s"] for row in rows]
    sent = rows[0]["bytes_sent"] / 2  # by each rank in a step
    carried = (TO_S - slow["made_s"]) * RATE * SLOWER * 1e6 / 8 + BURST_BYTES
    assert sum(slow["made_s"] < end < TO_S for end in ends) <= carried / sent + 1, (
        "what the links let through"
    )
    at_least_s = 8e-6 * sent / (RATE * SLOWER)
    for first, last in ((0.0, FROM_S), (fast["made_s"], ends[-1])):
        times = [row["step_time_s"] for row in rows if first < row["train_time_s"] <= last]
        if not times:
            pytest.skip("the machine is too busy for a step before and after the change")
        assert min(times) < at_least_s / 2
