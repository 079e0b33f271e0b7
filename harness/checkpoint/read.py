"""Reading a checkpoint that has been verified."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gradwire.harness.checkpoint.folder import STATE, SUFFIX, run_of
from gradwire.harness.checkpoint.state import REMEDY, CheckpointState
from gradwire.harness.files.reading import read_bytes
from gradwire.harness.files.tensors import read_safetensors


class CheckpointReader:
    """The state and the parts of one checkpoint; parts are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path, file = path, path / STATE
        self.state = CheckpointState.from_json(read_bytes(file, remedy=REMEDY, inside=run_of(path)), file)

    def part(self, name: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors written under `name`, empty if it had none. Raises UnusableFileError."""
        file = f"{name}{SUFFIX}"
        if file not in self.state.files:
            return {}
        place, inside = self.path / file, run_of(self.path)
        return read_safetensors(place, remedy=REMEDY, inside=inside, device=str(device))[0]
