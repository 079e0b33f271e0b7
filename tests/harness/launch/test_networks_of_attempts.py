"""`network.json` has an entry for each attempt that `run.json` lists, and for no other run's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_jobs import tiny_run

from gradwire.harness.launch import shaped_network as shaped
from gradwire.harness.network.settings import ShapedConfig
from gradwire.harness.record.attempts import NETWORKS, read_networks
from gradwire.harness.record.writer import begin_record, continue_record
from gradwire.harness.trainer.settings import RunConfig


class Links:
    """A fake network; what its links carry differs from one to the next."""

    made = 0
    congestion_control = "reno"

    def __init__(self, ranks: int, limits: object) -> None:
        Links.made += 1

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure_goodput(self) -> float:
        return 90.0 + Links.made

    def start_background(self, jobs: int, megabytes: float) -> None:
        pass

    def stop_background(self) -> list[float]:
        return [10.0 * Links.made]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(Links, "made", 0)
    monkeypatch.setattr(shaped, "ShapedNetwork", Links)
    config = tiny_run()
    return replace(config, network=ShapedConfig(background_jobs=1))


def attempt(settings: RunConfig, directory: Path) -> list[dict[str, Any]]:
    """The rows of the file while the ranks are at work."""
    with shaped.shaped_network(settings.network, settings.cluster.size, directory):
        return read_networks(directory)


def test_a_resumed_run_keeps_what_each_attempt_found(settings: RunConfig, tmp_path: Path) -> None:
    begin_record(tmp_path, settings)
    (first,) = attempt(settings, tmp_path)
    assert first["background_goodput_mbit"] == [], "not known before the end"
    continue_record(tmp_path, settings, 6, {})
    with (
        pytest.raises(KeyboardInterrupt),
        shaped.shaped_network(settings.network, settings.cluster.size, tmp_path),
    ):
        raise KeyboardInterrupt
    found = read_networks(tmp_path)
    assert [one["from_step"] for one in found] == [0, 6]
    assert [one["goodput_mbit"] for one in found] == [91, 92]
    assert [one["background_goodput_mbit"] for one in found] == [[10], [20]]


def test_a_run_that_starts_over_forgets_the_others(settings: RunConfig, tmp_path: Path) -> None:
    begin_record(tmp_path, settings)
    attempt(settings, tmp_path)
    begin_record(tmp_path, settings)
    assert read_networks(tmp_path) == []
    assert [one["goodput_mbit"] for one in attempt(settings, tmp_path)] == [92]


def test_a_file_that_cannot_be_read_is_named(settings: RunConfig, tmp_path: Path) -> None:
    begin_record(tmp_path, settings)
    (tmp_path / NETWORKS).write_text("[")
    with pytest.raises(ValueError, match=rf"{NETWORKS}: is not JSON .*; resume=never starts over$"):
        attempt(settings, tmp_path)
    assert Links.made == 0
