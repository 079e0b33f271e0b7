"""Gradients of chosen steps, kept in the run directory for `task=replay`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradwire.harness.parallel.interface import Parallelism
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.trainer.settings import RunConfig

FOLDER = "gradients"


def saved_path(directory: Path, step: int) -> Path:
    """The file of the gradients of `step`."""
    return directory / FOLDER / f"step{step}.safetensors"


def check_saved_steps(steps: Sequence[int], num_steps: int) -> None:
    """ValueError unless all `steps` belong to a run of `num_steps`."""
    beyond = [step for step in steps if not 0 <= step < num_steps]
    if beyond:
        raise ValueError(
            f"measure.save_gradients_at={list(steps)}: the run has the steps 0 to {num_steps - 1}, "
            f"and not {', '.join(map(str, beyond))}"
        )


def save_gradients(
    config: RunConfig, parallelism: Parallelism, directory: Path, step: int, *, writes: bool
) -> None:
    """Gather the measured step's gradients on all ranks; the one that `writes` keeps them."""
    gradients = parallelism.raw_gradients()
    if writes:
        about = {
            "step": step,
            "seed": config.seed,
            "model": config.model.name,
            "size": config.size.name,
            "codec": config.codec["name"],
        }
        write_gradients(saved_path(directory, step), gradients, parallelism.layout(0), about)
