"""`run.json`: which run a directory holds, and the attempts it took."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from gradwire.harness.reading.files import MissingFileError, UnusableFileError
from gradwire.harness.reading.structured import read_json
from gradwire.harness.reading.typed import made
from gradwire.harness.record.files import write_atomically
from gradwire.harness.record.provenance import code_hash, git_state

FILE = "run.json"

REMEDY = "resume=never starts over"


@dataclass
class _Attempt:
    """What every attempt says."""

    from_step: int
    code_hash: str
    torch: str


@dataclass
class Attempts:
    """The run's identity and, for each attempt, the step it began after and the code it ran."""

    config_hash: str
    attempts: list[dict[str, Any]] = field(default_factory=list)
    sealed: bool = False
    """Whether the record's `DONE` has digests of its files: not in records of older versions."""

    @property
    def code(self) -> str:
        """What ran last: the hash of the sources, and PyTorch's version."""
        return f"{self.attempts[-1]['code_hash']} on PyTorch {self.attempts[-1]['torch']}"

    @property
    def from_step(self) -> int:
        """The step after which the last attempt began."""
        step: int = self.attempts[-1]["from_step"]
        return step

    @property
    def resumed_after(self) -> list[int]:
        """The steps after which the run was continued."""
        return [attempt["from_step"] for attempt in self.attempts[1:]]

    @classmethod
    def read(cls, directory: Path) -> Attempts | None:
        """What `directory` says, None where it says nothing. Raises UnusableFileError."""
        path = directory / FILE
        try:
            found = made(cls, read_json(path, remedy=REMEDY, inside=directory), path, remedy=REMEDY)
        except MissingFileError:
            return None
        if not found.attempts:
            raise UnusableFileError(path, "has no attempts", REMEDY)
        for attempt in found.attempts:
            made(_Attempt, attempt, path, remedy=REMEDY)
        return found

    @classmethod
    def resumed_after_in(cls, directory: Path) -> list[int]:
        """`resumed_after` of the run in `directory`; empty where nothing is written down."""
        found = cls.read(directory)
        return [] if found is None else found.resumed_after

    def add(self, directory: Path, from_step: int) -> None:
        """Write down that an attempt begins after `from_step` steps."""
        commit, dirty = git_state()
        self.sealed = True
        self.attempts.append(
            {
                "from_step": from_step,
                "code_hash": code_hash(),
                "torch": torch.__version__,
                "commit": commit,
                "dirty": dirty,
            }
        )
        write_atomically(directory / FILE, json.dumps(asdict(self), indent=1) + "\n")


def this_code() -> str:
    """What runs now, in the words of `Attempts.code`."""
    return f"{code_hash()} on PyTorch {torch.__version__}"
