"""A file of gradients, and replays of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.studies.replay.study import STUDY as REPLAY

NUMEL = 5000

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Gradients of six workers, coordinates of different magnitude."""
    generator = torch.Generator().manual_seed(0)
    magnitude = torch.exp(2 * torch.randn(NUMEL, generator=generator))
    values = magnitude * (1 + torch.randn(6, NUMEL, generator=generator))
    np.savez(tmp_path / "own.npz", gradients=values.numpy())
    return tmp_path / "own.npz"


@pytest.fixture
def run(file: Path, tmp_path: Path) -> Run:
    """Runs a replay in a folder of its own and returns its summary."""

    def start(*overrides: str, folder: str = "out") -> dict[str, Any]:
        config = validate_any(compose(["task=replay", f"gradients={file}", *overrides]))
        assert REPLAY.run(config, tmp_path / folder) == 0
        found: dict[str, Any] = json.loads((tmp_path / folder / "summary.json").read_text())
        return found

    return start
