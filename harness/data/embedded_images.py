"""Small images made by arithmetic, so that training on images runs without data.

A label says how an image's stripes run. Colors, widths, places and noise are drawn for each image: pure
functions of its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradwire.harness.data.examples import Passes
from gradwire.harness.data.images import Images, LabelledImage
from gradwire.harness.data.settings import EMBEDDED_SIZE as SIZE
from gradwire.harness.runtime.seeding import derive_seed

LABELS = ("level", "upright", "rising", "falling")
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Across the stripes: how far a step right and a step down lead."""

NUM_TRAIN, NUM_HELD_OUT = 1600, 400
WIDTHS = (2, 5)
"""Pixels of a stripe: at least, and below."""
NOISE = 48
"""Most that noise adds to a value or takes from it, of 255."""


@dataclass(frozen=True)
class EmbeddedImages:
    """Which way stripes run."""

    def fingerprint(self) -> str:
        return f"stripes {LABELS} {SIZE} {NUM_TRAIN} {NUM_HELD_OUT} {WIDTHS} {NOISE}"

    def load(self) -> Images:
        return Images(
            name="embedded: which way stripes run",
            train=Passes(lambda: _images("train", NUM_TRAIN)),
            held_out=Passes(lambda: _images("held out", NUM_HELD_OUT)),
            split=f"{NUM_TRAIN} and {NUM_HELD_OUT} images",
            labels=LABELS,
        )


def _images(split: str, count: int) -> Iterator[LabelledImage]:
    draw = np.random.Generator(np.random.PCG64(derive_seed("embedded images", split)))
    down, right = np.mgrid[:SIZE, :SIZE]
    for number in range(count):
        label = number % len(LABELS)
        along_right, along_down = DIRECTIONS[label]
        width, start = draw.integers(*WIDTHS), draw.integers(100)
        stripe = (along_right * right + along_down * down + start + 100 * SIZE) // width % 2
        colors = draw.integers(0, 256, (2, 3))
        values = colors[stripe] + draw.integers(-NOISE, NOISE + 1, (SIZE, SIZE, 3))
        yield LabelledImage(values.clip(0, 255).astype(np.uint8), label)
