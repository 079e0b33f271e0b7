"""Runs whose ranks share a device: here it is the CPU, and messages pass through host memory all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pool import Workers
from recorded import outcome
from training_jobs import tiny_run, train_all_virtually, train_rank

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.network.configured import NO_NETWORK
from gradwire.harness.record.runs import load_run
from gradwire.harness.runtime.errors import ConfigError


@pytest.mark.parametrize(
    "overrides", [("codec=fp32",), ("codec=dynamiq",), ("parallel=sharded", "codec=fp32")]
)
def test_they_train_as_virtual_ranks_do_and_say_what_they_are(
    overrides: tuple[str, ...], workers: Workers, tmp_path: Path
) -> None:
    config = tiny_run("cluster.workers=2", *overrides)
    train_all_virtually(
        tiny_run("cluster=virtual", "cluster.workers=2", *overrides), str(tmp_path / "virtual")
    )
    shared = replace(config, cluster=replace(config.cluster, share_device=True))
    run = tmp_path / "shared"
    workers(2)(train_rank, shared, str(run))
    assert outcome(run) == outcome(tmp_path / "virtual")
    found = load_run(run)
    assert (found.kind, found.network, found.shares_device) == ("emulated", NO_NETWORK, True)
    assert json.loads((run / "summary.json").read_text())["kind"] == "emulated"
    with pytest.raises(ConfigError, match="its ranks shared a device.*cluster=virtual"):
        validate_any(compose(["task=retime", f"run={run}", "network.rate_mbit=10"]))
