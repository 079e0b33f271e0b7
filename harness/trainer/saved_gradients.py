"""Gradients and weights of chosen steps, kept in the run directory for other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gradwire.harness.parallel.interface import KeepsMainWeights, Parallelism
from gradwire.harness.record.gradients import FOLDER, write_gradients
from gradwire.harness.record.weights import write_weights
from gradwire.harness.trainer.settings import RunConfig

WEIGHTS = "weights"


def saved_path(directory: Path, step: int, what: str = FOLDER) -> Path:
    """The file of the gradients, or of the weights, of `step`."""
    return directory / what / f"step{step}.safetensors"


def check_saved_steps(key: str, steps: Sequence[int], num_steps: int) -> None:
    """ValueError unless all `steps` of `measure.<key>` belong to a run of `num_steps`."""
    beyond = [step for step in steps if not 0 <= step < num_steps]
    if beyond:
        raise ValueError(
            f"measure.{key}={list(steps)}: the run has the steps 0 to {num_steps - 1}, "
            f"and not {', '.join(map(str, beyond))}"
        )


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
        path = saved_path(directory, step, WEIGHTS)
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
