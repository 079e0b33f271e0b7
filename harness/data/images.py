"""Labelled images: decoding, storage as rows of pixels, and reading for training."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwire.harness.data.cache import REMEDY
from gradwire.harness.data.records import UnreadableFileError
from gradwire.harness.data.row_writer import RowWriter
from gradwire.harness.data.token_data import PreparedData, Split, column_file, columns_of, mapped
from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.files.structured import read_json

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")

MOST_BYTES = 16 * 2**20
"""The largest size of an image file in bytes."""

MOST_PIXELS = 2**24
"""The largest number of pixels of an image before scaling."""

MOST_LABELS = 1000
"""The largest number of labels, because an evaluation counts every pair of them."""

Pixels = NDArray[np.uint8]
"""(height, width, 3): red, green, blue."""


@dataclass(frozen=True)
class LabelledImage:
    """One image; `label` is an index into the data set's labels."""

    pixels: Pixels
    label: int


@dataclass(frozen=True)
class Images:
    """The images of a data set in a fixed order; `split` describes their files in the record."""

    name: str
    train: Iterable[LabelledImage]
    held_out: Iterable[LabelledImage]
    split: str
    labels: tuple[str, ...]


def pixels_of(content: bytes) -> Pixels:
    """Decodes a PNG or JPEG file. Raises UnreadableFileError."""
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            warnings.simplefilter("ignore")
            if image.width * image.height > MOST_PIXELS:
                raise UnreadableFileError(
                    f"has {image.width} x {image.height} pixels, more than {MOST_PIXELS}; scale it down"
                )
            return np.asarray(image.convert("RGB"))
    except UnreadableFileError:
        raise
    except Exception as error:  # decoders raise what they meet: struct.error, SyntaxError, zlib.error, ...
        reason = printable(str(error) or type(error).__name__, 80)
        raise UnreadableFileError(f"is not a PNG or JPEG, or damaged ({reason}); use another file") from None


def scaled(pixels: Pixels, size: int) -> Pixels:
    """The image at `size` x `size` pixels: unchanged if it has them, otherwise scaled bilinearly without
    keeping the aspect ratio."""
    if pixels.shape == (size, size, 3):
        return pixels
    from PIL import Image

    resized: Any = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized)


CHANNELS = 3


@dataclass(frozen=True)
class ImageData(PreparedData):
    """The images a run is trained and evaluated on.

    `train` and `held_out` have shape (num_images, 3 * size * size) and dtype uint8, channel by channel. They
    are mapped from disk and never written to. Both have the column `label`. With `augment` training crops and
    flips them.
    """

    augment: bool = False

    @property
    def size(self) -> int:
        """Pixels per side."""
        return int(self.description["image_size"])

    def pixels(self, split: Split, indices: Tensor) -> Tensor:
        """The images at `indices`, (rows, 3, size, size) float32, normalized by the training split's mean and
        standard deviation of each channel."""
        rows = self.rows(split)[indices].view(-1, CHANNELS, self.size, self.size).float()
        mean, deviation = (
            torch.tensor(self.description[name]).view(-1, 1, 1) for name in ("mean", "deviation")
        )
        return (rows - mean) / deviation


def write_images(folder: Path, images: Images, size: int, max_held_out: int | None) -> None:
    """Writes images to `folder` in the form that `read_images` reads, at `size` x `size` pixels.

    `max_held_out` images are taken evenly from the held-out split, because its files are sorted by label.
    Images of the held-out split, and copies of them, are never trained on. Raises ValueError, in one line, if
    a split is empty.
    """
    never = [_digest(_planes(image.pixels, size)) for image in images.held_out]
    held_out, train = _ImageWriter(folder, "held_out", size), _ImageWriter(folder, "train", size)
    held_out.write(_spread(images.held_out, len(never), max_held_out))
    train.write(images.train, never=frozenset(never))
    for split in (train, held_out):
        if not split.labels:
            raise ValueError(
                f"dataset: {images.name} has no images for the {split.split} split; use more data"
            )
    mean, deviation = train.moments()
    identity = f"train {train.digest} held_out {held_out.digest}"
    description = {
        "corpus": images.name,
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "bytes": (len(train.labels) + len(held_out.labels)) * CHANNELS * size * size,
        "split": images.split,
        "train_examples": len(train.labels),
        "held_out_examples": len(held_out.labels),
        "left_out_of_train": train.left_out,
        "majority_accuracy": max(Counter(held_out.labels).values()) / len(held_out.labels),
        "metric": "accuracy",
        "labels": list(images.labels),
        "image_size": size,
        "mean": mean,
        "deviation": deviation,
    }
    (folder / "description.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def read_images(folder: Path, *, augment: bool) -> ImageData:
    """Returns the images in `folder`; the pixels are memory-mapped, not read.

    The caller must already have checked the digests. Raises UnusableFileError if the files have been damaged
    since.
    """
    description = read_json(folder / "description.json", inside=folder, remedy=REMEDY)
    width = CHANNELS * int(description.get("image_size", 0)) ** 2
    train, held_out = (_rows(folder / f"{split}.npy", width) for split in ("train", "held_out"))
    columns: dict[Split, dict[str, Tensor]] = {
        "train": columns_of(folder, "train", len(train)),
        "held_out": columns_of(folder, "held_out", len(held_out)),
    }
    return ImageData(train, held_out, description, columns, augment=augment)


def _rows(file: Path, width: int) -> Tensor:
    rows = mapped(file)
    if rows.ndim != 2 or rows.dtype != np.uint8 or rows.shape[1] != width or not rows.size:
        raise UnusableFileError(file, f"holds {rows.dtype} of shape {rows.shape}, not images", REMEDY)
    return torch.from_numpy(rows)


class _ImageWriter:
    """Writes one split, and computes exact sums of its pixels."""

    def __init__(self, folder: Path, split: Split, size: int) -> None:
        self.split, self._folder, self._size = split, folder, size
        self.labels, self.left_out = list[int](), 0
        self._digest = hashlib.sha256()
        self._sum, self._squares = (np.zeros(CHANNELS, np.int64) for _ in range(2))

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, images: Iterable[LabelledImage], never: Container[bytes] = ()) -> None:
        """Writes all images except those whose digest is in `never`."""
        file, width = self._folder / f"{self.split}.npy", CHANNELS * self._size**2
        with RowWriter(file, width, dtype=np.uint8) as rows:
            for image in images:
                planes = _planes(image.pixels, self._size)
                digest = _digest(planes)
                if digest in never:
                    self.left_out += 1
                    continue
                rows.append(planes.ravel())
                self.labels.append(image.label)
                self._digest.update(digest + image.label.to_bytes(4, "little"))
                wide = planes.astype(np.int64)
                self._sum += wide.sum((1, 2))
                self._squares += (wide * wide).sum((1, 2))
        np.save(column_file(self._folder, self.split, "label"), np.array(self.labels, dtype=np.int32))

    def moments(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel. A constant channel gets deviation 1, so that it can be
        divided by."""
        count = len(self.labels) * self._size**2
        mean = self._sum / count
        deviation = np.sqrt(np.maximum(self._squares / count - mean * mean, 0.0))
        return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()


def _planes(pixels: Pixels, size: int) -> NDArray[np.uint8]:
    """The pixels as (3, size, size)."""
    return np.ascontiguousarray(scaled(pixels, size).transpose(2, 0, 1))


def _digest(planes: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(planes.tobytes()).digest()


def _spread(images: Iterable[LabelledImage], count: int, most: int | None) -> Iterator[LabelledImage]:
    """The `count` images, or `most` of them at equal distances."""
    kept = count if most is None else min(most, count)
    chosen = {index * count // kept for index in range(kept)}
    yield from (image for index, image in enumerate(images) if index in chosen)
