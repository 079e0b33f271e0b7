"""Whole training runs on pool workers and in the virtual cluster."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import DictConfig

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train, train_virtual

TINY = (
    "size=tiny",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.intermediate_size=64",
    "model.vocab_size=512",
    "dataset.sequence_length=32",
    "model.dropout=0.1",
    "train.steps=4",
    "train.warmup_steps=1",
    "train.micro_batch=2",
    "train.log_every=3",
    "eval.every=2",
    "eval.max_sequences=20",
    "eval.micro_batch=4",
    "measure.vnmse_every=2",
    "measure.check_hashes=true",
    "parallel.bucket_cap_mb=0.05",
)
"""A run of a second: several buckets, dropout, every hash compared."""


def tiny_run(*overrides: str) -> DictConfig:
    return validate(compose([*TINY, *overrides]))


def train_rank(rank: int, size: int, config: DictConfig, directory: str) -> None:
    """One rank of a real run, in the pool's process group."""
    train(config, Path(directory), torch.device("cpu"), writes=rank == 0)


def train_all_virtually(config: DictConfig, directory: str) -> None:
    train_virtual(config, Path(directory))
