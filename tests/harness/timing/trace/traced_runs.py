"""Short runs whose traces are tested: real ones on pool workers, virtual ones here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pool import Workers
from tiny import TINY_MODEL

from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train, train_virtual
from gradwire.harness.trainer.settings import RunConfig

TRACED = (
    *TINY_MODEL,
    "train.steps=5",
    "train.log_every=2",
    "eval.every=5",
    "eval.max_sequences=4",
    "measure.vnmse_every=3",
)
SIMULATED = ("network=simulated", "network.rate_mbit=50", "network.latency_s=0.001")


def traced_config(*overrides: str) -> RunConfig:
    return validate(compose([*TRACED, *overrides]))


def real_run(directory: Path, size: int, workers: Workers, *overrides: str) -> Path:
    """A run on `size` processes."""
    config = traced_config(f"cluster.workers={size}", *overrides)
    _open(config, directory)
    workers(size)(_train_rank, config, str(directory))
    return directory


def virtual_run(directory: Path, size: int, *overrides: str) -> Path:
    """A run of `size` virtual workers, on a simulated network unless overridden."""
    config = traced_config("cluster=virtual", f"cluster.workers={size}", *overrides)
    _open(config, directory)
    train_virtual(config, directory, None, lambda: False)
    return directory


def _open(config: RunConfig, directory: Path) -> None:
    directory.mkdir(parents=True)
    open_run(config, directory)


def _train_rank(rank: int, size: int, config: Any, directory: str) -> None:
    train(config, Path(directory), torch.device("cpu"), None, lambda: False)
