"""`state.json`: what a checkpoint holds besides tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.typed import made
from gradwire.harness.record.row_file import Extent

REMEDY = "resume=never starts over"


@dataclass(frozen=True)
class CheckpointState:
    """Counters and clocks after `step` steps; lists have one entry per rank."""

    step: int
    """Optimizer steps done, the number of the next one."""
    layout_hash: str
    """Hash of the buckets' layout; a resumed run must have the same."""
    data_hash: str
    """Hash of the training data's description; a resumed run must have the same."""
    train_time_s: list[float]
    """The training clock of each rank."""
    wall_time_s: float
    """Wall time in all, earlier attempts included."""
    bytes_by_phase: list[dict[str, int]]
    """Bytes that each rank has sent, by phase."""
    run_id: str
    """The run it belongs to; another run's checkpoint is never used."""
    rows: dict[str, Extent]
    """The record's files of rows up to here, which a resumed run continues."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name to sha256."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> CheckpointState:
        """Reads the text that `to_json` writes; it came from `path`. Raises UnusableFileError."""
        return made(cls, parse_json(content, path, remedy=REMEDY), path, remedy=REMEDY)

    def impossible(self) -> str | None:
        """Says what in it is impossible for any run."""
        if self.step < 0 or not self.train_time_s or len(self.train_time_s) != len(self.bytes_by_phase):
            return (
                f"is of step {self.step}, {len(self.train_time_s)} clocks, {len(self.bytes_by_phase)} ranks"
            )
        return None
