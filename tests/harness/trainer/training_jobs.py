"""Whole training runs on pool workers and in the virtual cluster."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import DictConfig
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train, train_virtual

TINY = (
    *TINY_MODEL,
    "model.dropout=0.1",
    "train.steps=4",
    "train.log_every=3",
    "eval.max_sequences=20",
    "eval.micro_batch=4",
    "measure.check_hashes=true",
)
"""A run of a second: several buckets, dropout, every hash compared."""


def tiny_run(*overrides: str) -> DictConfig:
    return validate(compose([*TINY, *overrides]))


def train_rank(rank: int, size: int, config: DictConfig, directory: str) -> None:
    """One rank of a real run, in the pool's process group."""
    train(config, Path(directory), torch.device("cpu"), writes=rank == 0)


def train_all_virtually(config: DictConfig, directory: str) -> None:
    train_virtual(config, Path(directory))
