"""`state.json`: what a checkpoint holds beside tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields


@dataclass(frozen=True)
class CheckpointState:
    """Counters and clocks after `step` steps; lists have one entry per rank."""

    step: int
    """Optimizer steps done, the number of the next one."""
    layout_hash: str
    """Of the buckets: a resumed run must have the same."""
    data_hash: str
    """Of the training data's description: a resumed run must have the same."""
    train_time_s: list[float]
    """Each rank's training clock."""
    wall_time_s: float
    """Everything, earlier attempts included."""
    bytes_by_phase: list[dict[str, int]]
    """What each rank has sent."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name to sha256."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CheckpointState:
        values = json.loads(text)
        return cls(**{item.name: values[item.name] for item in fields(cls)})
