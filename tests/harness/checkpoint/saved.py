"""Checkpoints without a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from gradwire.harness.checkpoint.folder import CheckpointState
from gradwire.harness.checkpoint.write import seal, write_files
from gradwire.harness.record.row_file import Extent

PARTS = {"model": {"weight": torch.arange(6.0).view(2, 3)}, "codec-rank0": {"mu": torch.tensor(3.0)}}


RUN = "0123456789ab"
"""The run that the checkpoints belong to unless another is given."""


def state_after(step: int, run_id: str = RUN, rows: Mapping[str, Extent] | None = None) -> CheckpointState:
    """Two ranks' counters."""
    sent = [{"metadata": 7}, {"metadata": 8}]
    return CheckpointState(step, "layout", "data", [1.5, 2.5], 9.0, sent, run_id, dict(rows or {}))


def save(
    directory: Path,
    step: int,
    keep: int = 9,
    run_id: str = RUN,
    rows: Mapping[str, Extent] | None = None,
) -> Path:
    """A checkpoint after `step` steps with the tensors of `PARTS`."""
    num_files = write_files(directory, step, {**PARTS, "empty": {}})
    return seal(directory, state_after(step, run_id, rows), num_files, keep)
