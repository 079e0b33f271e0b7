"""Refusals about the checkpoint of another run that a run goes on from."""

from __future__ import annotations

from pathlib import Path

from gradwire.harness.checkpoint.folder import CheckpointReader, verified
from gradwire.harness.parallel.state import CODEC_PART
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.trainer.settings import RunConfig


def check_start(run: RunConfig) -> None:
    """Raises ConfigError unless `train.start_from` is null or a checkpoint that this run can begin with."""
    given = run.train.start_from
    if given is None:
        return
    said = f"train.start_from={given}"
    if run.parallel.name != "sharded":
        raise ConfigError(
            f"{said} needs parallel=sharded, whose checkpoints any number of workers can load; leave it out: "
            "the same command resumes a run by itself"
        )
    path = Path(given).expanduser()
    if not path.is_dir():
        raise ConfigError(f"{said}: no such folder; use outputs/<run>/checkpoints/step-<number>")
    state = refused_as_config_error(lambda: verified(path, CheckpointReader(path).state.run_id))
    workers = len(state.train_time_s)
    if workers != run.cluster.size and any(name.startswith(CODEC_PART) for name in state.files):
        raise ConfigError(
            f"{said} is of {workers} workers, whose codecs remember something that cluster.workers="
            f"{run.cluster.size} cannot share; use cluster.workers={workers}"
        )
    if run.train.steps is not None and state.step >= run.train.steps:
        raise ConfigError(
            f"{said} is of step {state.step}, and train.steps={run.train.steps} ends no later; choose more"
        )
