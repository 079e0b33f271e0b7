"""The pictures that a record keeps: those that an item names, and whether they show more than guesses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from gradwire.harness.files.reading import MOST_TEXT, UnusableFileError, folders_in, open_file
from gradwire.harness.report.captions import caption
from gradwire.harness.report.chances import at_chance, level
from gradwire.harness.report.papers import Item
from gradwire.harness.report.sweep_record import SweepRecord

REMEDY = "replace it by the plot itself, or remove it"

PRINT = "-print"
"""The ending of the names of plots for print, the form that is kept."""

OF_SCORES = ("tta", "metric")
"""The beginnings of names of plots that show how good a model is, and nothing else."""

WITH_SCORES = ("over-",)
"""The beginnings of names of plots that have a panel of scores among others."""

SUFFIXES = (".svg", ".png")
"""The files of a plot, the better one first; one of them is kept."""


@dataclass(frozen=True)
class Picture:
    """A plot; one that is an SVG has the colours of light and dark pages."""

    name: str
    file: Path
    guesses: bool = False  # whether one of its panels shows scores of which none is above chance
    shows: str = ""  # what it shows, where that is not what plots of its name usually show

    @property
    def caption(self) -> str:
        """A caption in words, which says so where the picture shows only what guesses score."""
        told = caption(self.name, self.shows)
        return f"{told}; the scores in it are those of guesses" if self.guesses else told


def pictures_of(item: Item, place: Path, folder: Path, left_out: list[str]) -> list[Picture]:
    """The item's plots for print at `place`, which is below `folder`, as SVG or else as PNG.

    Unusable ones are added to `left_out`.
    """
    pictures: dict[Path, Picture] = {}
    for wanted in item.plots:
        # Where a sweep mixes tasks, each has a folder.
        for path in sorted(path for below in folders_in(place) for path in below.glob(f"*{PRINT}.*")):
            name, plot = path.name.rpartition(PRINT)[0], path.with_name(path.name.rpartition(PRINT)[0])
            if path.suffix not in SUFFIXES or not fnmatch(name, wanted) or plot in pictures:
                continue
            forms = [plot.with_name(f"{name}{PRINT}{suffix}") for suffix in SUFFIXES]
            file = next((form for form in forms if _is_usable(form, folder, left_out)), None)
            if file is not None:
                shows = next((text for key, text in item.captions.items() if fnmatch(name, key)), "")
                pictures[plot] = Picture(name, file, shows=shows)
    return list(pictures.values())


def in_results(error: ValueError, folder: Path) -> str:
    """An error's text without the folder of the results, which differs from machine to machine."""
    return str(error).replace(f"{folder}/", "")


def guesses(picture: Picture, record: SweepRecord, kinds: tuple[str, ...]) -> bool:
    """Returns whether a plot of these kinds has no score above chance: of the model that its name has, or of
    all."""
    if not picture.name.startswith(kinds):
        return False
    named = [cell for cell in record.cells if picture.name.endswith(f"-{record.setting(cell, 'model')}")]
    cells = named or record.cells
    return all(level(record, cell) is not None for cell in cells) and at_chance(record, cells)


def _is_usable(path: Path, folder: Path, left_out: list[str]) -> bool:
    """Returns whether a plot exists and is a readable file inside the folder of the results."""
    if not os.path.lexists(path):
        return False
    try:
        open_file(path, remedy=REMEDY, inside=folder, most=MOST_TEXT).close()
    except UnusableFileError as error:
        left_out.append(in_results(error, folder))
        return False
    return True
