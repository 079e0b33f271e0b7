"""Writes a run's directory. Files appear whole or not at all; rows are appended as whole lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from gradwire.harness.record.finite_json import dumps
from gradwire.harness.record.summary import Summary

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

DONE, FAILED, TRACEBACKS = "DONE", "FAILED", "tracebacks.txt"
RECORD_FILES = (DONE, "config.yaml", "steps.jsonl", "evals.jsonl", "summary.json")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by a file holding `text`; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_directory(directory: Path) -> None:
    """Make sure that files can be written to `directory`; ValueError in one line if they cannot."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(
            f"{directory}: {error.strerror}; choose a folder that can be written to with hydra.run.dir= "
            "(hydra.sweep.dir= for a sweep)"
        ) from None


class DirectoryLock:
    """Keeps a run directory to one run at a time; the system releases it if the process dies."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self._descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise ValueError(
                f"{directory} is in use by another run; wait for it or set hydra.run.dir="
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)


def is_done(directory: Path) -> bool:
    """Whether a run has finished there."""
    return (directory / DONE).is_file()


def mark_failed(directory: Path, reason: str) -> None:
    """Leave the reason, one line, in the directory of a run that did not finish.

    A full disk, which may be the reason itself, leaves no room for it: the caller's own error says it.
    """
    if directory.is_dir() and not is_done(directory):
        with contextlib.suppress(OSError):
            write_atomically(directory / FAILED, " ".join(reason.split()) + "\n")


def forget_failure(directory: Path) -> None:
    """Remove what an earlier attempt said of its end: a new one begins."""
    for name in (FAILED, TRACEBACKS):
        (directory / name).unlink(missing_ok=True)


class RunWriter:
    """The record of one run, begun anew: what an earlier, unfinished attempt left is removed."""

    def __init__(self, directory: Path, config: DictConfig) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for name in RECORD_FILES:
            (directory / name).unlink(missing_ok=True)
        forget_failure(directory)
        write_atomically(directory / "config.yaml", OmegaConf.to_yaml(config, resolve=True))

    def add_steps(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._append("steps.jsonl", rows)

    def add_evaluation(self, row: Mapping[str, Any]) -> None:
        self._append("evals.jsonl", [row])

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(dumps(dict(row)) + "\n" for row in rows)
        with (self.directory / name).open("a") as handle:
            handle.write(text)

    def save_checkpoint(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        """The weights as a Hugging Face folder, `checkpoint/`."""
        from gradwire.harness.models.save import save_model

        save_model(model, tokenizer, self.directory / "checkpoint")  # type: ignore[arg-type]

    def finish(self, summary: Summary) -> None:
        """Write the summary and, last of all, the marker that says everything is there."""
        write_atomically(self.directory / "summary.json", summary.to_json())
        write_atomically(self.directory / DONE, "")
