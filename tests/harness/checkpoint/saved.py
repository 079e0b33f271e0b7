"""Checkpoints without a training run."""

from __future__ import annotations

from pathlib import Path

import torch

from gradwire.harness.checkpoint.state import CheckpointState
from gradwire.harness.checkpoint.write import seal, write_files

PARTS = {"model": {"weight": torch.arange(6.0).view(2, 3)}, "codec-rank0": {"mu": torch.tensor(3.0)}}


def save(directory: Path, step: int, keep: int = 9) -> Path:
    """A checkpoint after `step` steps with the tensors of `PARTS`."""
    num_files = write_files(directory, step, {**PARTS, "empty": {}})
    state = CheckpointState(step, "layout", "data", [1.5, 2.5], 9.0, [{"metadata": 7}, {"metadata": 8}])
    return seal(directory, state, num_files, keep)
