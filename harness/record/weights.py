"""Files of saved weights: those of the model before a step, and the main weights after it.

`.safetensors` with an array `weights` of shape (2, coordinates), float32: what the model computed the step
with, then the main weights that the step has led to. Their difference is what `parallel.weights=qwd` sends in
it. Buckets, digest and refusals are those of files of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.harness.files.hostile import check_safetensors
from gradwire.harness.record.gradients import SUFFIXES, SavedGradients, read_rows, write_rows

WEIGHTS = "weights"
REMEDY = "give one that measure.save_weights_at wrote"
ABOUT = "saved"
"""What a file says of itself: that it holds weights."""


@dataclass(frozen=True)
class SavedWeights:
    """(coordinates,) float32 each, bucket after bucket; `buckets` are their layouts."""

    model: Tensor
    main: Tensor
    buckets: tuple[Layout, ...]
    about: Mapping[str, Any]

    @property
    def differences(self) -> Tensor:
        return self.main - self.model


def holds_weights(path: str | Path) -> bool:
    """Whether a file is one of weights; of anything else, and of what cannot be read, False."""
    path = Path(path).expanduser()
    if path.suffix != SUFFIXES[0] or not path.is_file():
        return False
    try:
        return f'"{ABOUT}": "{WEIGHTS}"' in check_safetensors(path, remedy=REMEDY).get("layout", "")
    except ValueError:
        return False


def write_weights(
    path: Path, model: Tensor, main: Tensor, layouts: Sequence[Layout], about: Mapping[str, Any]
) -> None:
    """Writes (coordinates,) weights of `layouts`, bucket after bucket; the file appears whole or not at
    all."""
    values = torch.stack([model.float(), main.float()])
    write_rows(path, WEIGHTS, values, layouts, {ABOUT: WEIGHTS, **about})


def read_weights(path: str | Path) -> SavedWeights:
    """Returns the weights in a file; raises ValueError in one line if they cannot be read."""
    found: SavedGradients = read_rows(path, WEIGHTS, REMEDY)
    if found.workers != 2 or found.values.dtype != torch.float32 or not found.buckets:
        raise ValueError(
            f"weights={path} has {found.workers} rows of {found.values.dtype}, not 2 of float32; {REMEDY}"
        )
    model, main = found.values
    return SavedWeights(model, main, found.buckets, found.about or {})
