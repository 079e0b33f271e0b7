"""Writes a run's record. Files appear whole or not at all; rows are appended as whole lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.identity import run_id
from gradwire.harness.record.attempts import FILE as ATTEMPTS
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.directory import DONE, FAILED, TRACEBACKS, forget_failure
from gradwire.harness.record.files import write_atomically
from gradwire.harness.record.networks import FILE as NETWORKS
from gradwire.harness.record.rows import Row, append_rows, cut_rows, flush_rows, read_rows
from gradwire.harness.record.summary import Summary
from gradwire.harness.trace.files import FOLDER as TRACES
from gradwire.harness.trace.files import cut_traces

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

CONFIG, STEPS, EVALUATIONS, SUMMARY = "config.yaml", "steps.jsonl", "evals.jsonl", "summary.json"
WEIGHTS = "checkpoint"
RECORD_FILES = (DONE, CONFIG, STEPS, EVALUATIONS, SUMMARY, ATTEMPTS, NETWORKS)


class IncompleteRecordError(ValueError):
    """The record lacks rows that a checkpoint counts on."""


def begin_record(directory: Path, config: DictConfig) -> None:
    """Start the record of a run anew: what earlier attempts left is removed."""
    (directory / DONE).unlink(missing_ok=True)  # first: another run's must never be taken for this one's
    Attempts(run_id(config)).add(directory, 0)  # second: without it, what follows would be nobody's
    for name in RECORD_FILES:
        if name != ATTEMPTS:
            (directory / name).unlink(missing_ok=True)
    shutil.rmtree(directory / TRACES, ignore_errors=True)
    forget_failure(directory)
    write_atomically(directory / CONFIG, OmegaConf.to_yaml(config, resolve=True))


def check_rows(directory: Path, step: int) -> None:
    """Raise IncompleteRecordError unless the first `step` steps are all there, once and in order."""
    try:
        rows, _ = read_rows(directory / STEPS), read_rows(directory / EVALUATIONS)
    except ValueError as error:
        raise IncompleteRecordError(str(error)) from None
    found = [row["step"] for row in rows if row["step"] < step]
    if found != list(range(step)):
        raise IncompleteRecordError(f"{directory / STEPS} lacks some of the first {step} steps")


def remove_temporary_files(directory: Path) -> None:
    """Remove what a killed attempt was about to rename: halves of files and of the weights' folder."""
    for name in (*RECORD_FILES, FAILED, TRACEBACKS):
        for path in directory.glob(f".{name}.*"):
            path.unlink()
    for path in (directory / TRACES).glob(".*"):
        path.unlink()
    for path in directory.glob(f".{WEIGHTS}-*"):
        shutil.rmtree(path, ignore_errors=True)


def continue_record(directory: Path, config: DictConfig, step: int) -> None:
    """Prepare the record for an attempt that goes on after `step` steps: later rows are cut."""
    forget_failure(directory)
    for name in (DONE, SUMMARY):
        (directory / name).unlink(missing_ok=True)
    cut_rows(directory / STEPS, lambda row: bool(row["step"] < step))
    cut_rows(directory / EVALUATIONS, lambda row: bool(row["step"] <= step))
    cut_traces(directory, step)
    write_atomically(directory / CONFIG, OmegaConf.to_yaml(config, resolve=True))
    attempts = Attempts.read(directory) or Attempts(run_id(config))
    attempts.add(directory, step)


class RunWriter:
    """Writes the record of a run whose directory `begin_record` or `continue_record` has prepared."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add_steps(self, rows: Iterable[Row]) -> None:
        append_rows(self.directory / STEPS, rows)

    def add_evaluation(self, row: Row) -> None:
        append_rows(self.directory / EVALUATIONS, [row])

    def steps(self) -> list[dict[str, Any]]:
        """All steps recorded so far, those of earlier attempts included."""
        return read_rows(self.directory / STEPS)

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations recorded so far."""
        return read_rows(self.directory / EVALUATIONS)

    def flush(self) -> None:
        """Wait until all rows are on the disk: a checkpoint counts on them."""
        flush_rows(self.directory / STEPS)
        flush_rows(self.directory / EVALUATIONS)

    def save_weights(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        """The weights as a Hugging Face folder, `checkpoint/`."""
        from gradwire.harness.models.save import save_model

        save_model(model, tokenizer, self.directory / WEIGHTS)  # type: ignore[arg-type]

    def finish(self, summary: Summary) -> None:
        """Write the summary and, last of all, the marker that says everything is there."""
        write_atomically(self.directory / SUMMARY, summary.to_json())
        write_atomically(self.directory / DONE, "")
