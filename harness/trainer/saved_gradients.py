"""Gradients and weights of chosen steps, kept in the run directory for other tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gradwire.harness.parallel.interface import KeepsMainWeights, Parallelism
from gradwire.harness.record.directory import SAVED_WEIGHTS, saved_path
from gradwire.harness.record.gradients import write_gradients, write_weights
from gradwire.harness.trainer.settings import RunConfig


def save_gradients(
    config: RunConfig, parallelism: Parallelism, directory: Path, step: int, *, writes: bool
) -> None:
    """Gather the measured step's gradients on all ranks; the one that `writes` keeps them."""
    gradients = parallelism.raw_gradients()
    if writes:
        path = saved_path(directory, step)
        write_gradients(path, gradients, parallelism.layout(0), _about(config, step))


def weights_before(parallelism: Parallelism) -> Tensor:
    """The model's weights, (coordinates,) float32 on the CPU."""
    assert isinstance(parallelism, KeepsMainWeights), "the rules refuse others"
    return parallelism.model_weights()


def save_weights(
    config: RunConfig, parallelism: Parallelism, directory: Path, step: int, before: Tensor, *, writes: bool
) -> None:
    """Gathers the main weights on all ranks; the one that `writes` keeps them with those of the model
    `before` the step."""
    assert isinstance(parallelism, KeepsMainWeights)
    main = parallelism.main_weights()
    if writes:
        path = saved_path(directory, step, SAVED_WEIGHTS)
        write_weights(path, before, main, parallelism.layout(0), _about(config, step))


def _about(config: RunConfig, step: int) -> dict[str, Any]:
    return {"step": step, **about_run(config)}


def about_run(config: RunConfig) -> dict[str, Any]:
    """What files made by a run say of it."""
    return {
        "seed": config.seed,
        "model": config.model.name,
        "size": config.size.name,
        "codec": config.codec["name"],
    }
