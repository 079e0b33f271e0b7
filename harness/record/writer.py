"""Writes a run's record. Files are replaced atomically; rows are appended as whole lines."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from gradwire.codecs.decision_file import FILE as DECISIONS
from gradwire.harness.files.reading import InaccessibleFileError
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.attempts import FILE as ATTEMPTS
from gradwire.harness.record.attempts import NETWORKS, Attempts
from gradwire.harness.record.directory import (
    CONFIG,
    DONE,
    ENTROPIES,
    EVALUATIONS,
    FAILED,
    PLOTS,
    STEPS,
    SUMMARY,
    TRACEBACKS,
    WEIGHTS,
    forget_failure,
)
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.row_file import NOTHING, Extent, Row, RowFile, check_extent, cut_to
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.summary import Summary
from gradwire.harness.timing.trace.files import FOLDER as TRACES
from gradwire.harness.timing.trace.writer import cut_traces

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

ROWS = (STEPS, EVALUATIONS, DECISIONS, ENTROPIES)
"""The files of rows."""
RECORD_FILES = (DONE, CONFIG, *ROWS, SUMMARY, ATTEMPTS, NETWORKS)


def as_yaml(settings: Mapping[str, Any]) -> str:
    """The text of `config.yaml`."""
    return OmegaConf.to_yaml(dict(settings))


def begin_record(directory: Path, config: RecordedConfig) -> None:
    """Starts a run's record from scratch, removing the files of earlier attempts."""
    (directory / DONE).unlink(missing_ok=True)  # first: another run's must never be taken for this one's
    before = None if config.resume == "never" else Attempts.read(directory)
    attempts = Attempts.started_anew(run_id(config), before)
    attempts.add(directory, 0)  # second: without it, what follows would belong to no run
    forget_failure(directory)
    for name in RECORD_FILES:
        if name != ATTEMPTS:
            (directory / name).unlink(missing_ok=True)
    for name in (TRACES, PLOTS):
        shutil.rmtree(directory / name, ignore_errors=True)
    write_atomically(directory / CONFIG, as_yaml(config.mapping()))


def check_rows(directory: Path, rows: Mapping[str, Extent]) -> None:
    """Raises UnusableFileError unless the files of rows begin with the `rows` noted in a checkpoint, and
    InaccessibleFileError if they cannot be read."""
    for name in ROWS:
        if (directory / name).is_dir():  # cannot be replaced, and may hold something of its own
            raise InaccessibleFileError(directory / name, "is a folder", "move it away")
        check_extent(directory / name, rows.get(name, NOTHING))


def remove_temporary_files(directory: Path) -> None:
    """Removes half-written files that a killed attempt was about to rename, and its temporary folder of
    weights."""
    for name in (*RECORD_FILES, FAILED, TRACEBACKS):
        for path in directory.glob(f".{name}.*"):
            path.unlink()
    for path in directory.glob(f".{WEIGHTS}-*"):
        shutil.rmtree(path, ignore_errors=True)


def continue_record(
    directory: Path, config: RecordedConfig, step: int, rows: Mapping[str, Extent]
) -> list[str]:
    """Prepares the record for an attempt that resumes after `step` steps: cuts rows after `rows`.

    Returns lines for the user about by-products, because a damaged trace must not end a run.
    """
    attempts = Attempts.read(directory) or Attempts(run_id(config))
    for name in (DONE, SUMMARY):
        (directory / name).unlink(missing_ok=True)
    for name in ROWS:
        cut_to(directory / name, rows.get(name, NOTHING))
    write_atomically(directory / CONFIG, as_yaml(config.mapping()))
    notes = cut_traces(directory, step, attempts.config_hash)
    attempts.add(directory, step)
    forget_failure(directory)
    return notes


class RunWriter:
    """Writes the record of a run whose directory `begin_record` or `continue_record` has prepared."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._steps, self._evaluations, *headed = (RowFile(directory / name) for name in ROWS)
        self._decisions, self._entropies = headed

    def add_steps(self, rows: Iterable[Row]) -> None:
        self._steps.append(rows)

    def add_decisions(self, header: Callable[[], Row], rows: Sequence[Row]) -> None:
        """Adds the decisions that steps follow. The file is made with the first decision and begins with
        `header`."""
        _append(self._decisions, header, rows)

    def add_entropies(self, header: Callable[[], Row], rows: Sequence[Row]) -> None:
        """Adds the entropies of steps. The file is made with the first entropies and begins with `header`."""
        _append(self._entropies, header, rows)

    def add_evaluation(self, row: Row) -> None:
        self._evaluations.append([row])

    def steps(self) -> list[dict[str, Any]]:
        """All steps recorded so far, including those of earlier attempts."""
        return self._steps.rows()

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations recorded so far."""
        return self._evaluations.rows()

    def flush(self) -> dict[str, Extent]:
        """Waits until all rows are on disk; returns their extents for a checkpoint."""
        return {file.path.name: file.extent() for file in self._files()}

    def _files(self) -> list[RowFile]:
        own = [self._steps, self._evaluations]
        return [*own, *(file for file in (self._decisions, self._entropies) if file.has_rows)]

    def save_weights(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Saves the weights as a Hugging Face folder, `checkpoint/`."""
        from gradwire.harness.models.build import save_model

        save_model(model, tokenizer, self.directory / WEIGHTS)  # type: ignore[arg-type]

    def finish(self, summary: Summary) -> None:
        """Writes the summary and, last, the marker of a complete record."""
        write_atomically(self.directory / SUMMARY, summary.to_json())
        mark_done(self.directory)


def _append(file: RowFile, header: Callable[[], Row], rows: Sequence[Row]) -> None:
    """Appends `rows`, if there are any, after a `header` if the file is new."""
    if rows:
        file.append(rows if file.has_rows else [header(), *rows])
