"""Reading a checkpoint that has been verified."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from gradwire.harness.checkpoint.folder import STATE, SUFFIX
from gradwire.harness.checkpoint.state import CheckpointState


class CheckpointReader:
    """The state and the parts of one checkpoint; parts are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = CheckpointState.from_json((path / STATE).read_text())

    def part(self, name: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors written under `name`, empty if it had none."""
        file = f"{name}{SUFFIX}"
        return load_file(self.path / file, device=str(device)) if file in self.state.files else {}
