"""If computation and codecs take given times, the simulated clock is reproducible bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training_jobs import tiny_run, train_all_virtually

GIVEN = (
    *("train.steps=9", "train.log_every=1", "eval.every=3", "cluster.workers=3", "train.checkpoint_every=4"),
    *("network=simulated", "network.rate_mbit=5", "network.compute_s=0.25", "network.codec_times=none"),
    *("network.jitter=0.2", "network.background_jobs=1", "network.background_mb=0.05"),
)


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def test_a_resumed_run_has_the_same_clock_while_rates_change(tmp_path: Path) -> None:
    train_all_virtually(tiny_run(*GIVEN), str(tmp_path / "steady"))
    after_five = rows(tmp_path / "steady")[4]["train_time_s"] + 1e-6
    config = tiny_run(*GIVEN, f"network.rate_changes=[[{after_five},0.25]]")
    train_all_virtually(config, str(tmp_path / "whole"))
    for stop_after in (6, None):
        train_all_virtually(config, str(tmp_path / "parts"), stop_after)
    whole, parts, steady = (rows(tmp_path / name) for name in ("whole", "parts", "steady"))
    assert whole == parts
    times = [[row["step_time_s"] for row in run] for run in (whole, steady)]
    assert times[0][:5] == times[1][:5]
    assert all(slow > 1.2 * fast for slow, fast in zip(times[0][5:], times[1][5:], strict=True))
