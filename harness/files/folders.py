"""Lists folders that others made: no link leads out of them, and trees without end are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from gradwire.harness.files.reading import UnusableFileError, system_errors

MOST_FILES = 4_000_000
"""Most files and folders in a folder: more than the images of ImageNet."""

DEPTH = 64
"""Most folders inside each other."""


def files_in(
    folder: Path,
    *,
    remedy: str,
    hidden: bool = True,
    root: Path | None = None,
    wanted: Callable[[Path], object] = bool,
) -> Iterator[Path]:
    """Yields the regular files in and below `folder` that are `wanted`, in no order; without `hidden` no
    hidden ones.

    Links to files inside `root` (None: the folder) are followed, links to folders are left out. Pipes and
    devices are no files. Raises UnusableFileError, which ends in `remedy`, for wanted links out of it, a tree
    that is too large, and what the system does not hand out.
    """
    home = root_of(root or folder)
    seen, waiting = 0, [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        with system_errors(place, remedy):
            entries = list(os.scandir(place))
        seen += len(entries)
        if seen > MOST_FILES or depth > DEPTH:
            problem = f"has more than {MOST_FILES} files, or {DEPTH} folders inside each other"
            raise UnusableFileError(folder, problem, remedy)
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(".") and not hidden:
                continue
            with system_errors(path, remedy):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((path, depth + 1))
                elif not wanted(path):
                    continue
                elif entry.is_symlink():
                    if leads_to_file(path, home, remedy=remedy):
                        yield path
                elif entry.is_file(follow_symlinks=False):
                    yield path


def folders_in(root: Path) -> Iterator[Path]:
    """Yields `root` and the folders below it that are neither hidden nor behind a link, in order, down to
    `DEPTH`."""
    waiting = [(root, 0)]
    while waiting:
        place, depth = waiting.pop()
        yield place
        if depth < DEPTH:
            below = [Path(each.path) for each in os.scandir(place) if each.is_dir(follow_symlinks=False)]
            waiting += [(each, depth + 1) for each in sorted(below, reverse=True) if each.name[0] != "."]


def leads_to_file(link: Path, home: Path, *, remedy: str) -> bool:
    """Whether a path, through links or not, leads to a regular file in `home`; raises UnusableFileError if it
    leads out of it to a file. One that leads to nothing, to a folder or to a device is left out."""
    try:
        status = link.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # links in a circle
        problem = f"is a link that cannot be followed ({error.strerror})"
        raise UnusableFileError(link, problem, remedy) from None
    if not stat.S_ISREG(status.st_mode):
        return False
    if not link.resolve().is_relative_to(home):
        raise UnusableFileError(link, f"is a link out of {home}, and none is followed there", remedy)
    return True


def root_of(folder: Path) -> Path:
    """Where links in a folder may lead: into the folder itself. A snapshot in the Hugging Face cache is made
    of links to files of its repository there."""
    found = folder.resolve()
    for place in (found, *found.parents):
        repository = place.parent.parent
        if place.parent.name == "snapshots" and (repository / "blobs").is_dir():
            return repository
    return found
