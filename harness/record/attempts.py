"""`run.json`: which run a directory holds, and the attempts it took."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradwire.harness.record.files import write_atomically
from gradwire.harness.record.provenance import code_hash, git_state

FILE = "run.json"


@dataclass
class Attempts:
    """The run's identity and, for each attempt, the step it began after and the code it ran."""

    config_hash: str
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def code_hash(self) -> str:
        """Of the sources that ran last."""
        return str(self.attempts[-1]["code_hash"])

    @property
    def resumed_after(self) -> list[int]:
        """The steps after which the run was continued."""
        return [attempt["from_step"] for attempt in self.attempts[1:]]

    @classmethod
    def read(cls, directory: Path) -> Attempts | None:
        """What `directory` says, None where it says nothing. Raises ValueError if it cannot be read."""
        try:
            return cls(**json.loads((directory / FILE).read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"{directory / FILE} cannot be read ({error}); resume=never starts over"
            ) from None

    @classmethod
    def resumed_after_in(cls, directory: Path) -> list[int]:
        """`resumed_after` of the run in `directory`; empty where nothing is written down."""
        found = cls.read(directory)
        return [] if found is None else found.resumed_after

    def add(self, directory: Path, from_step: int) -> None:
        """Write down that an attempt begins after `from_step` steps."""
        commit, dirty = git_state()
        self.attempts.append(
            {"from_step": from_step, "code_hash": code_hash(), "commit": commit, "dirty": dirty}
        )
        write_atomically(directory / FILE, json.dumps(asdict(self), indent=1) + "\n")
