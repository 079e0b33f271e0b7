"""Prepared data on disk: made once, complete or absent, shared by any number of processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from filelock import FileLock


def cache_folder() -> Path:
    """Where prepared data is kept: GRADWIRE_CACHE, else ~/.cache/gradwire."""
    return Path(os.environ.get("GRADWIRE_CACHE") or Path.home() / ".cache" / "gradwire").expanduser()


def cache_key(*parts: object) -> str:
    """Names what was prepared from what: a hash of the parts and of the code that prepares."""
    return hashlib.sha256(repr((_code_hash(), *parts)).encode()).hexdigest()[:32]


@cache
def _code_hash() -> str:
    """Hash of this folder's sources, so that data prepared by other code is never taken."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def cached_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """`target`, after `fill(folder)` has written its contents if it was not there.

    The contents are written beside it and renamed, so it is never seen half written; other
    processes wait for the one that fills it. Raises ValueError if it cannot be written.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not target.is_dir():
                _fill_and_rename(target, fill)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"cannot write prepared data to {target.parent} ({reason}); set GRADWIRE_CACHE=<folder>"
        ) from error
    return target


def _fill_and_rename(target: Path, fill: Callable[[Path], None]) -> None:
    """Only with the lock of `target`: what a killed process has left half written goes first."""
    for leftover in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        folder = Path(temporary, "contents")
        folder.mkdir()
        fill(folder)
        os.rename(folder, target)
