"""A small random checkpoint, and a folder with all benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import DOCUMENTS, Records, hub_records, write_files
from random_checkpoints import save_random

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.studies.score.benchmarks import BENCHMARKS
from gradwire.harness.studies.score.study import STUDY as SCORE

Score = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("checkpoints") / "small")


@pytest.fixture(scope="session")
def records() -> dict[str, Records]:
    """The documents of every benchmark, as the hub has them."""
    return {name: hub_records(name, DOCUMENTS) for name in BENCHMARKS}


@pytest.fixture(scope="session")
def data(records: dict[str, Records], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as their authors publish them."""
    folder = tmp_path_factory.mktemp("benchmarks")
    write_files(folder, records)
    return folder


@pytest.fixture
def scored(checkpoint: Path, data: Path, tmp_path: Path) -> Score:
    """Runs `task=score` on the checkpoint in a folder of its own; returns what `scores.json` holds."""

    def run(*overrides: str, folder: str = "out") -> dict[str, Any]:
        usual = {"checkpoint": str(checkpoint), "score.data": str(data)}
        given = dict(override.split("=", 1) for override in overrides)
        asked = [f"{key}={value}" for key, value in (usual | given).items()]
        config = validate_any(compose(["task=score", *asked]))
        assert SCORE.run(config, tmp_path / folder) == 0
        found: dict[str, Any] = json.loads((tmp_path / folder / "scores.json").read_text())
        return found

    return run
