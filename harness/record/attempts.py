"""`run.json`: the identity of the run in a directory, its attempts, and how each of them ended.
`network.json`: the throughput of a shaped network's links in each attempt.

The launcher records how its attempt ended. If the launcher was killed as well, or is torchrun, the next
attempt records it from the contents of `FAILED`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from gradwire.harness.files.reading import MissingFileError, UnusableFileError, printable
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.typed import made
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import FAILED, MOST_REASON, failure_in, is_done
from gradwire.harness.record.provenance import code_hash, git_state
from gradwire.harness.runtime.program import command_line

FILE, NETWORKS = "run.json", "network.json"

REMEDY = "resume=never starts over"

NO_REASON = "no reason recorded: its launcher was killed, or the machine lost"

MOST_STARTED_OVER = 100
"""The largest number of attempts without a checkpoint that are kept; older ones are dropped."""


@dataclass(frozen=True)
class RankEnd:
    """A rank at fault, and how its process ended: by a signal, or with an exit code; neither if it hung."""

    rank: int
    signal: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class Ended:
    """The end of an attempt: the reason in one line, the steps done (null: not known) and the ranks at
    fault."""

    reason: str
    after_step: int | None = None
    ranks: list[RankEnd] = field(default_factory=list)


@dataclass
class _Attempt:
    """One attempt's entry."""

    from_step: int
    code_hash: str
    torch: str
    ended: Ended | None = None
    """None for an attempt that has finished or is still running."""
    command: str | None = None
    """The shell command that started it; null if there was none."""
    wall_time_s: float | None = None
    """Seconds until the attempt finished, for tasks that measure in one go; null for others."""


@dataclass
class Attempts:
    """The run's identity and, for each attempt, the step after which it began, its code and how it ended."""

    config_hash: str
    attempts: list[dict[str, Any]] = field(default_factory=list)
    started_over: list[dict[str, Any]] = field(default_factory=list)
    """Earlier attempts that left nothing, because they ended without a usable checkpoint."""

    @property
    def code(self) -> str:
        """The code of the last attempt: the hash of the sources, and PyTorch's version."""
        return f"{self.attempts[-1]['code_hash']} on PyTorch {self.attempts[-1]['torch']}"

    @property
    def from_step(self) -> int:
        """The step after which the last attempt began."""
        step: int = self.attempts[-1]["from_step"]
        return step

    @property
    def command(self) -> str | None:
        """The command that started the last attempt, if it was recorded."""
        command: str | None = self.attempts[-1].get("command")
        return command

    @property
    def resumed_after(self) -> list[int]:
        """The steps after which the run was resumed."""
        return [attempt["from_step"] for attempt in self.attempts[1:]]

    @property
    def earlier_ends(self) -> list[str]:
        """The reasons why the attempts before the last one ended, one line each."""
        before = [*self.started_over, *self.attempts[:-1]]
        return [attempt["ended"]["reason"] if attempt.get("ended") else NO_REASON for attempt in before]

    @classmethod
    def read(cls, directory: Path) -> Attempts | None:
        """Reads `run.json` of `directory`; None without one. Raises UnusableFileError."""
        path = directory / FILE
        try:
            found = made(cls, read_json(path, remedy=REMEDY, inside=directory), path, remedy=REMEDY)
        except MissingFileError:
            return None
        if not found.attempts:
            raise UnusableFileError(path, "has no attempts", REMEDY)
        for attempt in (*found.started_over, *found.attempts):
            made(_Attempt, attempt, path, remedy=REMEDY)
        return found

    @classmethod
    def started_anew(cls, config_hash: str, before: Attempts | None) -> Attempts:
        """The attempts of a run that starts over after the attempts `before`, whose ends are kept."""
        if before is None or before.config_hash != config_hash:
            return cls(config_hash)
        ended = [*before.started_over, *before.attempts]
        return cls(config_hash, started_over=ended[-MOST_STARTED_OVER:])

    @classmethod
    def wall_time_in(cls, directory: Path) -> float | None:
        """Seconds that the finished attempt in `directory` took; None if they were not recorded."""
        found = cls.read(directory)
        seconds = None if found is None else found.attempts[-1].get("wall_time_s")
        return None if seconds is None else float(seconds)

    def add(self, directory: Path, from_step: int) -> None:
        """Records that an attempt begins after `from_step` steps, and how the one before it ended."""
        before = [*self.started_over, *self.attempts]
        if before and not before[-1].get("ended"):
            reason = failure_in(directory) if (directory / FAILED).exists() else NO_REASON
            before[-1]["ended"] = asdict(Ended(reason))
        commit, dirty = git_state()
        command = command_line()
        self.attempts.append(
            {
                "from_step": from_step,
                "code_hash": code_hash(),
                "torch": torch.__version__,
                "commit": commit,
                "dirty": dirty,
                **({} if command is None else {"command": command}),
            }
        )
        self._write(directory)

    def _write(self, directory: Path) -> None:
        write_atomically(directory / FILE, json.dumps(asdict(self), indent=1) + "\n")


def note_wall_time(directory: Path, seconds: float) -> None:
    """Records the duration of the last attempt, which is about to finish."""
    found = Attempts.read(directory)
    if found is not None:
        found.attempts[-1]["wall_time_s"] = round(seconds, 3)
        found._write(directory)


def note_end(directory: Path, reason: str, after_step: int | None, ranks: Sequence[RankEnd]) -> None:
    """Records how the last attempt in `directory` ended; called by its launcher, which holds the lock.

    Errors in writing are ignored, because the reason is in `FAILED` or in the caller's own error. A completed
    record is not changed: a signal that arrived while the run was ending had no effect.
    """
    if is_done(directory):
        return
    with contextlib.suppress(OSError, UnusableFileError):
        found = Attempts.read(directory)
        if found is not None:
            line = printable(" ".join(reason.split()), MOST_REASON)
            found.attempts[-1]["ended"] = asdict(Ended(line, after_step, list(ranks)))
            found._write(directory)


def this_code() -> str:
    """The identification of the running code, in the form of `Attempts.code`."""
    return f"{code_hash()} on PyTorch {torch.__version__}"


Network = dict[str, Any]
"""The network of one attempt: `from_step` as in `run.json`, its settings, and rates in Mbit/s."""


def read_networks(directory: Path) -> list[Network]:
    """The networks of the attempts in `directory`, the oldest first; empty if there is no file.

    Raises UnusableFileError.
    """
    path = directory / NETWORKS
    try:
        networks: list[Network] = read_json(path, remedy=REMEDY, inside=directory, expected=list)
    except MissingFileError:
        return []
    for network in networks:
        if not isinstance(network, dict) or not isinstance(network.get("from_step"), int):
            raise UnusableFileError(path, "holds an attempt's network that is none", REMEDY)
    return networks


def write_networks(directory: Path, networks: Sequence[Network]) -> None:
    write_atomically(directory / NETWORKS, json.dumps(networks, indent=1) + "\n")
