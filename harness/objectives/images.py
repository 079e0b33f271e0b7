"""Images with one label each: cross entropy, and top-1 accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from gradwire.harness.data.examples import Kind
from gradwire.harness.data.image_rows import ImageData
from gradwire.harness.data.token_data import Split
from gradwire.harness.objectives.classification import Classification
from gradwire.harness.objectives.interface import Batch, Key
from gradwire.harness.objectives.padding import column
from gradwire.harness.runtime.seeding import derive_seed

BORDER = 8
"""Images are moved by up to one part in so many of their side: CIFAR-10's by 4 pixels (He et al. 2016)."""


class ImageClassification(Classification):
    """The sums are those of labelled sentences; accuracy, that of the first guess, is the metric."""

    kind: ClassVar[Kind] = "images"
    data: ImageData

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        pixels = self.data.pixels(split, indices)
        if split == "train" and self.data.augment:
            pixels = torch.stack(
                [moved(image, (*key, index)) for image, index in zip(pixels, indices.tolist(), strict=True)]
            )
        return {"pixel_values": pixels, "labels": column(self.data, split, "label")[indices]}

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        found = super().metrics(sums)
        return {name: found[name] for name in ("loss", "accuracy")}


def moved(image: Tensor, key: Key) -> Tensor:
    """A normalized image, (channels, size, size), cropped out of itself with a border of zeros, and mirrored
    or not: a pure function of both arguments."""
    size = image.shape[-1]
    border = size // BORDER
    generator = torch.Generator().manual_seed(derive_seed("augment", *key))
    down, right, mirrored = torch.randint(0, 1 << 30, (3,), generator=generator).tolist()
    down, right = down % (2 * border + 1), right % (2 * border + 1)
    cropped = functional.pad(image, (border,) * 4)[:, down : down + size, right : right + size]
    return cropped.flip(-1) if mirrored % 2 else cropped
