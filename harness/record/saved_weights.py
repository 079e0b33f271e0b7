"""Files of saved weights: `.safetensors` with an array `weights` of shape (2, coordinates), float32.

They hold the model's weights before a step, then the main weights after it. Their difference is what
`parallel.weights=qwd` sends in that step. Buckets, digest and refusals are as in files of gradients.
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
from gradwire.harness.record.gradients import SUFFIXES, read_rows, write_rows

WEIGHTS, WEIGHTS_REMEDY = "weights", "give one that measure.save_weights_at wrote"
SAVED = "saved"
"""The entry by which a file declares that it holds weights."""


@dataclass(frozen=True)
class SavedWeights:
    """The weights, (coordinates,) float32 each, bucket by bucket; `buckets` holds their layouts."""

    model: Tensor
    main: Tensor
    buckets: tuple[Layout, ...]
    about: Mapping[str, Any]

    @property
    def differences(self) -> Tensor:
        return self.main - self.model


def holds_weights(path: str | Path) -> bool:
    """Returns whether a file holds weights; False for other and for unreadable files."""
    path = Path(path).expanduser()
    if path.suffix != SUFFIXES[0] or not path.is_file():
        return False
    try:
        return f'"{SAVED}": "{WEIGHTS}"' in check_safetensors(path, remedy=WEIGHTS_REMEDY).get("layout", "")
    except ValueError:
        return False


def write_weights(
    path: Path, model: Tensor, main: Tensor, layouts: Sequence[Layout], about: Mapping[str, Any]
) -> None:
    """Writes (coordinates,) weights of `layouts`, bucket by bucket; the file is written atomically."""
    values = torch.stack([model.float(), main.float()])
    write_rows(path, WEIGHTS, values, layouts, {SAVED: WEIGHTS, **about})


def read_weights(path: str | Path) -> SavedWeights:
    """Returns the weights in a file; raises ValueError in one line if they cannot be read."""
    found = read_rows(path, WEIGHTS, WEIGHTS_REMEDY)
    if found.workers != 2 or found.values.dtype != torch.float32 or not found.buckets:
        raise ValueError(
            f"weights={path} has {found.workers} rows of {found.values.dtype}, not 2 of float32; "
            f"{WEIGHTS_REMEDY}"
        )
    model, main = found.values
    return SavedWeights(model, main, found.buckets, found.about or {})
