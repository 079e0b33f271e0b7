"""A codec that decides by the clock, timed by `task=allreduce` on the real clock and the simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import clock_rounds_jobs as jobs
import pytest
from clock_codec import ClockDriven
from pool import Workers

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.allreduce import rounds
from gradwire.harness.studies.allreduce.study import STUDY as ALLREDUCE
from gradwire.harness.studies.allreduce.study import AllReduceTask


def settings(*overrides: str) -> AllReduceTask:
    """Those of an all-reduce by the codec."""
    small = ("allreduce.coordinates=2000", "allreduce.repeats=2", "kernels=default", "cluster.workers=2")
    config = cast(AllReduceTask, validate_any(compose(["task=allreduce", *small, *overrides])))
    return ALLREDUCE.resolve(replace(config, codec={"name": ClockDriven.name}))


def millionths(decisions: Sequence[Any]) -> list[int]:
    return [decision["millionths"] for decision in decisions]


def test_the_simulated_clock_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round takes as long where codec work takes no time, so that every decision is the same."""
    seen: list[Any] = []

    def end_codecs(*arguments: Any) -> Any:
        ended = end(*arguments)
        seen.append(ended[1])
        return ended

    end = rounds.end_codecs
    monkeypatch.setattr(rounds, "end_codecs", end_codecs)
    simulated = ("cluster=virtual", "network=simulated", "network.rate_mbit=8", "network.codec_times=none")
    assert ALLREDUCE.run(settings(*simulated), tmp_path) == 0
    none, *later = millionths(seen)
    assert none == 0, "nothing was seen before the first round"
    microseconds = 4 * 2000 + 8 * 2  # of each rank: the vector in float32 and two integers, a byte in each
    assert later == [2 * microseconds % 997] * 3


def test_real_workers_decide_alike_by_their_clocks(workers: Workers) -> None:
    first, second = workers(2)(jobs.decided, settings())
    assert first == second
    none, *later = millionths(first)
    assert none == 0
    assert len({*later}) > 1 and max(each["fraction"] for each in first) < 60e6, "a minute, of both ranks"


def test_times_that_are_not_recorded_are_refused() -> None:
    with pytest.raises(ConfigError, match="measure.trace=false cannot be used with codec=clock_driven"):
        settings("measure.trace=false")
    settings("measure.trace=false", "cluster=virtual")
