"""What a run directory holds already, and what the next attempt makes of it.

`resume=auto` continues an unfinished run made by the same code, `force` by any code, `never` starts
over. A finished run is never run again, but with `never`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from gradwire.harness.checkpoint.folder import (
    DamagedCheckpointError,
    checkpoints,
    remove,
    remove_all,
    remove_unfinished,
    verified,
)
from gradwire.harness.config.identity import run_id
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.directory import is_done
from gradwire.harness.record.provenance import code_hash
from gradwire.harness.record.writer import begin_record, continue_record


def is_finished(config: DictConfig, directory: Path) -> bool:
    """Whether this very run has finished in `directory` and is not asked to run again."""
    return config.resume != "never" and is_done(directory)


def check_directory(config: DictConfig, directory: Path) -> None:
    """Raise ValueError in one line if `directory` holds what this run may neither continue nor replace.

    Reads only, so that it can be asked before anything starts.
    """
    if config.resume == "never":
        return
    earlier = Attempts.read(directory)
    if earlier is None:
        return
    if earlier.config_hash != run_id(config):
        raise ValueError(
            f"{directory} holds a run with other settings ({earlier.config_hash}, these are "
            f"{run_id(config)}); choose another folder with hydra.run.dir=, or resume=never to replace it"
        )
    other_code = earlier.code_hash != code_hash()
    if other_code and config.resume == "auto" and not is_done(directory) and checkpoints(directory):
        raise ValueError(
            f"{directory} was begun by other code ({earlier.code_hash}, this is {code_hash()}); "
            "resume=force goes on with this code, resume=never starts over"
        )


@dataclass(frozen=True)
class Opened:
    """A run directory ready for an attempt: where to go on from, and what its user should know."""

    checkpoint: Path | None
    notes: tuple[str, ...]


def open_run(config: DictConfig, directory: Path) -> Opened:
    """Prepare `directory`, which the caller has locked, for the next attempt.

    Finds the newest whole checkpoint and removes damaged ones, names them in the notes, cuts the rows
    that the attempt will write again, or clears everything to start over. Raises ValueError as
    `check_directory` does.
    """
    check_directory(config, directory)
    remove_unfinished(directory)
    if config.resume == "never":
        remove_all(directory)
    notes: list[str] = []
    for path in checkpoints(directory):
        try:
            step = verified(path).step
        except DamagedCheckpointError as error:
            notes.append(f"damaged checkpoint removed: {error}")
            remove(path)
            continue
        notes.append(f"continuing after step {step}, from {path}")
        continue_record(directory, config, step)
        return Opened(path, tuple(notes))
    if notes:
        notes.append("no usable checkpoint is left: starting over")
    begin_record(directory, config)
    return Opened(None, tuple(notes))
