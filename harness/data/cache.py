"""Prepared data on disk: made once, complete or absent, shared by any number of processes.

It is compared with the digests of its files before use, and made again if damaged. A file of another length
counts as damaged without being read; the others are hashed in parts, one part per core at a time, at about 1
GB/s each. One process per node does this when a run starts, and reads unchanged files once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path

from filelock import FileLock

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import UnwritableFileError, writing

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
    """A few words on how `folder` differs from the data `name` as it was written; None if it does not."""
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
    """All files except the digests themselves."""
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


def cache_folder() -> Path:
    """The folder of prepared data: GRADWIRE_CACHE, else ~/.cache/gradwire."""
    return Path(os.environ.get("GRADWIRE_CACHE") or Path.home() / ".cache" / "gradwire").expanduser()


def cache_key(*parts: object) -> str:
    """A name for prepared data: a hash of its inputs and of the code that made it."""
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

    The contents are written next to `target` and then renamed, so `target` is never seen half written. Other
    processes wait for the one that fills it. With `verified` the digests have just been compared, so only
    existence is checked. Raises ValueError if `target` cannot be written, or is damaged and cannot be made
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
    """Makes `target`; the caller holds its lock."""
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
    """Fills a temporary folder and renames it to `target`, whose lock the caller holds. First removes what a
    killed process has left."""
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
