"""Prepared data on disk: made once, complete or absent, shared by any number of processes.

It is compared with its digests before use and made again if it is damaged.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from filelock import FileLock

from gradwire.harness.data.digests import damage_of, write_digests
from gradwire.harness.files.writing import UnwritableFileError, writing


def cache_folder() -> Path:
    """Where prepared data is kept: GRADWIRE_CACHE, else ~/.cache/gradwire."""
    return Path(os.environ.get("GRADWIRE_CACHE") or Path.home() / ".cache" / "gradwire").expanduser()


def cache_key(*parts: object) -> str:
    """Names prepared data by a hash of what it was made from and of the code that made it."""
    return hashlib.sha256(repr((_code_hash(), *parts)).encode()).hexdigest()[:32]


@cache
def _code_hash() -> str:
    """Hash of this folder's sources, so that data prepared by other code is never used."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def cached_folder(target: Path, fill: Callable[[Path], None], *, verified: bool = False) -> Path:
    """Returns `target`, after `fill(folder)` has written its contents if they were missing or damaged.

    The contents are written beside `target` and then renamed, so `target` is never seen half written. Other
    processes wait for the one that fills it. `verified` says that somebody has just compared the digests, so
    existence is enough. Raises ValueError if `target` cannot be written, or is damaged and cannot be made
    again. Other errors of `fill` pass through.
    """
    if _is_whole(target, verified):
        return target
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(target.with_name(f"{target.name}.lock")):
                if not _is_whole(target, verified):
                    _make(target, fill)
    except UnwritableFileError as error:
        raise ValueError(
            f"cannot write prepared data to {target.parent} ({error.strerror}); set GRADWIRE_CACHE=<folder>"
        ) from error
    return target


def _is_whole(target: Path, verified: bool) -> bool:
    return target.is_dir() and (verified or damage_of(target, target.name) is None)


def _make(target: Path, fill: Callable[[Path], None]) -> None:
    """The caller holds the lock of `target`."""
    damage = damage_of(target, target.name) if os.path.lexists(target) else None
    if damage is None:
        _fill_and_rename(target, fill)
        return
    print(f"{target} is damaged ({damage}): it is prepared again", flush=True)
    try:
        _fill_and_rename(target, fill)
    except ValueError as error:
        raise ValueError(f"{target} is damaged ({damage}) and cannot be prepared again: {error}") from error


def _fill_and_rename(target: Path, fill: Callable[[Path], None]) -> None:
    """The caller holds the lock of `target`. Removes first what a killed process left half written."""
    for leftover in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        folder = Path(temporary, "contents")
        folder.mkdir()
        fill(folder)
        write_digests(folder, target.name)
        if os.path.lexists(target):  # damaged; who has it open keeps it
            os.rename(target, Path(temporary, "damaged"))
        os.rename(folder, target)
