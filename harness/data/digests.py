"""Digests of a folder's files, written with the folder and compared before it is used.

A file of another length is known to be damaged without being read. The others are hashed in parts, one part
per core at a time, each at about 1 GB/s. One process per node does this when a run starts. A process that
starts several runs does not read unchanged files again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json

FILE = "digests.json"
PART_BYTES = 2**26
REMEDY = "remove the folder: it is prepared again"


def write_digests(folder: Path, name: str) -> None:
    """Writes the digests of the files of `folder`, whose data is called `name`."""
    files = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    described = {
        "name": name,
        "bytes": {file: path.stat().st_size for file, path in files.items()},
        "blake2b": {file: file_digest(path) for file, path in files.items()},
    }
    (folder / FILE).write_text(json.dumps(described, indent=1) + "\n", "utf-8")


def damage_of(folder: Path, name: str) -> str | None:
    """Says in a few words how `folder` differs from the data `name` as it was written; None if it does
    not."""
    try:
        described = read_json(folder / FILE, inside=folder.parent, remedy=REMEDY)
        if described.get("name") != name:
            return f"it holds {str(described.get('name'))[:40]}"
        expected, sizes = described.get("blake2b"), described.get("bytes")
        if not isinstance(expected, dict) or not isinstance(sizes, dict):
            return f"{FILE} has no digests"
        found = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
        for file in sorted(expected.keys() | found.keys()):
            if file not in found or file not in expected:
                return f"{file} is {'missing' if file not in found else 'not of it'}"
            if found[file].is_symlink() or not found[file].is_file():
                return f"{file} is a link or no file"
            if (size := found[file].stat().st_size) != sizes.get(file):
                return f"{file} has another length, {size} bytes"
            if file_digest(found[file]) != expected[file]:
                return f"{file} differs from its digest"
    except UnusableFileError as error:
        return f"{error.path.name} {error.problem}"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror}"
    return None


def _files(folder: Path) -> Iterator[Path]:
    """Everything except folders and the digests themselves."""
    for path in folder.rglob("*"):
        if path != folder / FILE and (path.is_symlink() or not path.is_dir()):
            yield path


def file_digest(file: Path) -> str:
    """blake2b of the digests of a file's parts."""
    status = file.stat()
    version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _file_digest(file.resolve(), version)


@lru_cache(maxsize=4096)
def _file_digest(file: Path, version: tuple[int, ...]) -> str:
    num_parts = max(1, -(-version[1] // PART_BYTES))
    if num_parts == 1:
        digests = [_part_digest(file, 0)]
    else:
        with ThreadPoolExecutor(min(num_parts, len(os.sched_getaffinity(0)))) as threads:
            digests = list(threads.map(lambda part: _part_digest(file, part), range(num_parts)))
    return hashlib.blake2b(b"".join(digests), digest_size=32).hexdigest()


def _part_digest(file: Path, part: int) -> bytes:
    """blake2b of one part, which begins at `part * PART_BYTES`; reads a megabyte at a time."""
    digest, left = hashlib.blake2b(digest_size=32), PART_BYTES
    with file.open("rb") as handle:
        handle.seek(part * PART_BYTES)
        while left and (chunk := handle.read(min(left, 2**20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.digest()
