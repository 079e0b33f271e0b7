"""Whole training runs on pool workers and in the virtual cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_graph import RerunGraph, post_unless_capturing
from tiny import TINY_MODEL
from torch import nn

from gradwire.codecs.plugins import allow, is_plugin
from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.process import ProcessChannel
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train, train_virtual
from gradwire.harness.parallel.update import Updater
from gradwire.harness.record.directory import DivergedError
from gradwire.harness.trainer import parts
from gradwire.harness.trainer.settings import RunConfig

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


def tiny_run(*overrides: str) -> RunConfig:
    return validate(compose([*TINY, *overrides]))


class StopAfter:
    """A request to stop that is there from the `count`-th question on; None: never."""

    def __init__(self, count: int | None) -> None:
        self._count = count

    def __call__(self) -> bool:
        if self._count is not None:
            self._count -= 1
        return self._count is not None and self._count <= 0


def opened(config: RunConfig, directory: Path) -> Path | None:
    """Prepares `directory` for an attempt; returns the checkpoint that it resumes from."""
    directory.mkdir(parents=True, exist_ok=True)
    return open_run(config, directory).checkpoint


def train_rank(
    rank: int,
    size: int,
    config: RunConfig,
    directory: str,
    checkpoint: Path | None = None,
    stop_after: int | None = None,
) -> bool:
    """One rank of a real run, in the pool's process group; only the last rank gets the request to stop.

    Without a checkpoint rank 0 begins a new record.
    """
    if is_plugin("parallel", config.parallel.name):
        allow(config.parallel.name)  # the pool's workers may have started before the test named it
    if rank == 0 and checkpoint is None:
        opened(config, Path(directory))
    stop = StopAfter(stop_after if rank == size - 1 else None)
    return train(config, Path(directory), torch.device("cpu"), checkpoint, stop)


def train_rank_captured(rank: int, size: int, config: RunConfig, directory: str) -> bool:
    """`train_rank` with captured rounds on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessChannel, "_post", post_unless_capturing)
        patch.setattr(
            parts,
            "make_captured_rounds",
            lambda graphs, device: CapturedRounds(RerunGraph, device, required=False),
        )
        return train_rank(rank, size, config, directory)


def train_rank_to_the_reason(rank: int, size: int, config: RunConfig, directory: str) -> str:
    """`train_rank` of a run that diverges; returns the reason."""
    with pytest.raises(DivergedError) as raised:
        train_rank(rank, size, config, directory)
    return str(raised.value)


def train_rank_skipping(rank: int, size: int, config: RunConfig, directory: str, step: int) -> bool:
    """`train_rank` of a run whose step `step` has an infinite gradient after synchronization."""
    with spoiled(step):
        return train_rank(rank, size, config, directory)


@contextmanager
def spoiled(step: int) -> Iterator[None]:
    """The update of this step of the runs in this block finds an infinite gradient."""
    apply, calls = Updater.apply, count()

    def spoiling(self: Updater, learning_rate: float, norm: float | None = None) -> torch.Tensor:
        if next(calls) == step:
            first = next(p for group in self.optimizer.param_groups for p in group["params"])
            assert first.grad is not None
            first.grad.view(-1)[0] = torch.inf
        return apply(self, learning_rate, norm)

    Updater.apply = spoiling  # type: ignore[method-assign]
    try:
        yield
    finally:
        Updater.apply = apply  # type: ignore[method-assign]


class _BatchNormed(nn.Module):
    """A layer whose output is normalized over the batch."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.norm = layer, nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        normed: torch.Tensor = self.norm(found.flatten(0, -2)).view_as(found)
        return normed


@contextmanager
def batch_normed() -> Iterator[None]:
    """Models that are built in this block, GPT-2s, have buffers that training changes."""
    build = parts.build_model

    def building(*arguments: Any, **options: Any) -> Any:
        model = build(*arguments, **options)
        norm = model.transformer.ln_f
        model.transformer.ln_f = _BatchNormed(norm, norm.normalized_shape[0])
        return model

    parts.build_model = building
    try:
        yield
    finally:
        parts.build_model = build


def train_rank_batch_normed(rank: int, size: int, config: RunConfig, directory: str) -> bool:
    """`train_rank` of a model with BatchNorm."""
    with batch_normed():
        return train_rank(rank, size, config, directory)


def train_all_virtually(config: RunConfig, directory: str, stop_after: int | None = None) -> None:
    """Trains with all ranks in this process; resumes from what is in `directory`."""
    checkpoint = opened(config, Path(directory))
    train_virtual(config, Path(directory), checkpoint, StopAfter(stop_after))
