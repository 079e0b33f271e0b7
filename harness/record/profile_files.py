"""Where profiles of computation and codec work lie: in a run's directory, and in a sweep's folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gradwire.harness.files.reading import MissingFileError, file_digest

FILE = "profile.json"
"""A run's own copy of what it counts."""

FOLDER = "profiles"
"""Where a sweep keeps its profiles, in its folder."""

REMEDY = "give one that a sweep or a run on the virtual cluster has written"


def profile_files(path: Path) -> list[Path]:
    """The file itself, or those of a folder of profiles, in the order of their names."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def found_profiles(given: Path) -> Path:
    """The file or folder of profiles that a path of the user's leads to: the file itself, that of a run's
    directory, or a sweep's folder. Raises MissingFileError."""
    path = Path(os.path.realpath(given.expanduser()))
    for found in (path / FILE, path / FOLDER, path):
        if found.is_file() or (found.is_dir() and any(found.glob("*.json"))):
            return found
    raise MissingFileError(given, "no profile is there", REMEDY)


def profiles_digest(path: Path) -> str:
    """The sha256 of the contents of a file or folder of profiles, whatever their names."""
    digests = sorted(file_digest(each, remedy=REMEDY) for each in profile_files(path))
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
