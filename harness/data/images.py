"""Images with labels: what a source of them gives, and how the bytes of a file become pixels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire.harness.data.records import UnreadableFileError
from gradwire.harness.files.reading import printable

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")

MOST_BYTES = 16 * 2**20
"""Most bytes of an image's file."""

MOST_PIXELS = 2**24
"""Most pixels of an image before it is scaled."""

MOST_LABELS = 1000
"""Most labels that an evaluation tells apart: it counts each pair of them."""

Pixels = NDArray[np.uint8]
"""(height, width, 3): red, green, blue."""


@dataclass(frozen=True)
class LabelledImage:
    """One image; `label` is an index into the data set's labels."""

    pixels: Pixels
    label: int


@dataclass(frozen=True)
class Images:
    """The images of a data set in a fixed order; `split` says for the record which files these are."""

    name: str
    train: Iterable[LabelledImage]
    held_out: Iterable[LabelledImage]
    split: str
    labels: tuple[str, ...]


class ImageSource(Protocol):
    """Where images come from. It is asked for them only when no prepared data is cached."""

    def fingerprint(self) -> str:
        """A value that changes when the images may have changed; quick to compute."""
        ...

    def load(self) -> Images:
        """Finds the images. Raises ValueError, in one line, if they cannot be used."""
        ...


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
        said = printable(str(error) or type(error).__name__, 80)
        raise UnreadableFileError(f"is no PNG or JPEG, or damaged ({said}); use another file") from None


def scaled(pixels: Pixels, size: int) -> Pixels:
    """The image at `size` x `size` pixels: itself if it has them, else bilinear, its sides to these two."""
    if pixels.shape == (size, size, 3):
        return pixels
    from PIL import Image

    resized: Any = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized)
