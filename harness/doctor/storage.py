"""Findings on the folders of caches and results: their size, and the free space."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from gradwire.harness.data.cache import cache_folder
from gradwire.harness.doctor.findings import Environment, Finding, FindingsSection
from gradwire.harness.files.writing import free_bytes, size_text

ROOM = 2**30
"""Bytes that should be free: a run of `size=tiny` needs a few MiB, caches of models many GiB."""

LOOKING_S = 1.0
"""The largest number of seconds spent on measuring a folder."""


def storage(environment: Environment = os.environ, here: Path = Path(".")) -> FindingsSection:
    """The caches of prepared data and of downloads, and the folder in which runs are recorded."""
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return FindingsSection(
        "Storage",
        [
            folder("prepared data", cache_folder(), "every run", "GRADWIRE_CACHE=<folder>", needed=True),
            folder("downloads", home.expanduser(), "downloads of models and data", "HF_HOME=<folder>"),
            folder("outputs", here / "outputs", "every run", "hydra.run.dir=<folder>", needed=True),
        ],
    )


def folder(
    name: str,
    path: Path,
    disables: str,
    remedy: str,
    *,
    needed: bool = False,
    free_bytes: Callable[[Path], float] = free_bytes,
) -> Finding:
    """The finding on the folder `path`: its size, whether it is writable, and the free space on its disk.
    Creates nothing."""
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    free = free_bytes(existing)
    value = f"{path}: {_content(path)}, {size_text(free)} free"
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        return Finding(
            name, f"{value}, cannot be written", "needed" if needed else "missing", disables, remedy
        )
    if free < ROOM:
        return Finding(name, f"{value}, nearly full", "missing", "larger runs", remedy)
    return Finding(name, f"{value}, writable")


def _content(path: Path) -> str:
    if not path.exists():
        return "not there yet"
    total, started = 0, time.monotonic()
    for parent, _, files in os.walk(path):
        for file in files:
            try:
                total += os.lstat(os.path.join(parent, file)).st_size
            except OSError:  # removed meanwhile
                continue
        if time.monotonic() - started > LOOKING_S:
            return f"more than {size_text(total)}"
    return size_text(total)
