"""Reading of untrusted files: archives, arrays and folders from elsewhere.

A few kilobytes can expand to gigabytes, a header can describe data that does not exist, and a link can lead
anywhere. So sizes are checked before memory is allocated, no link is followed out of its folder, nothing is
unpickled or run, and every failure raises an UnusableFileError, whose one line ends in `remedy`.
"""

from __future__ import annotations

import io
import math
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gradwire.harness.files.reading import UnusableFileError, amount, open_file, printable, system_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

FLOOR = 16 * 2**20
"""Bytes that any compressed text may expand to, however short it is; in the form of short lines the text
takes 20 times that in memory."""

TEXT_RATIO = 200
"""The largest number of bytes of text per byte of a compressed file. Repetitive logs reach 100, bombs
1,000.
"""

ARRAY_FLOOR, ARRAY_RATIO = 384 * 2**20, 32
"""Limits on the arrays of an `.npz`, in bytes and relative to the file's size: zeros compress by a factor of
1,000, gradients with 99 % zeros reach 32."""

STEP = 2**20
"""Bytes that are decompressed at a time."""

MOST_DIRECTORY = 32 * 2**20
"""The largest size of an archive's list of entries in bytes, which is read whole: some 300,000 entries."""

MOST_FILES, DEPTH = 4_000_000, 64
"""The largest number of files and folders in a folder (ImageNet has fewer), and of nested folders."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""The dtypes of a model's parameters in `.safetensors`; tensors of other types are counters or masks."""


def most_unfolded(size: int, ratio: int, floor: int | None = None) -> int:
    """Bytes that a file of `size` bytes may expand to at `ratio` bytes from each; always at least `floor`
    (None: `FLOOR`)."""
    return max(FLOOR if floor is None else floor, size * ratio)


class BoundedStream(io.RawIOBase):
    """The contents of a compressed file, limited in proportion to the compressed bytes read so far.

    So a bomb is detected after `FLOOR` bytes, however large it is: reading then raises UnusableFileError.
    `file` is open at `path`, `opener` makes a decompressor's file object of it; wrap this in
    `io.BufferedReader` and `io.TextIOWrapper` to read text. Closing it closes both.
    """

    def __init__(self, path: Path, file: BinaryIO, opener: Callable[..., Any], *, remedy: str) -> None:
        self._path, self._file, self._remedy, self._given = path, file, remedy, 0
        self._unfolded = opener(file, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._unfolded.read(min(len(view), STEP))
        self._given += len(chunk)
        if self._given > (most := most_unfolded(self._file.tell(), TEXT_RATIO)):
            problem = f"expands to more than {amount(most)} from {amount(self._file.tell())}, as no text does"
            raise UnusableFileError(self._path, problem, self._remedy)
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._unfolded.close()
            self._file.close()
        super().close()


class _RefusedArchiveError(Exception):
    """A fault of an archive."""


class _ListingFile:
    """A file that refuses large reads: zipfile would read a list of entries of any length in one call."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size if 0 <= size <= MOST_DIRECTORY else MOST_DIRECTORY + 1)
        if len(content) > MOST_DIRECTORY:
            raise _RefusedArchiveError(f"has a list of entries longer than {amount(MOST_DIRECTORY)}")
        return content


@contextmanager
def _archive_errors(path: Path, remedy: str, entry: str = "") -> Iterator[None]:
    what = f"{entry} in it " if entry else ""
    try:
        yield
    except UnusableFileError:
        raise
    except OSError:
        with system_errors(path, remedy):
            raise
    except _RefusedArchiveError as error:
        raise UnusableFileError(path, str(error), remedy) from None
    # All errors that zipfile, zlib and numpy raise for arbitrary bytes.
    except Exception as error:
        problem = f"{what}cannot be read ({type(error).__name__}: {error})"
        raise UnusableFileError(path, problem, remedy) from None


class Archive:
    """The files in the zip at `path`, by name: read entry by entry, never unpacked to disk."""

    def __init__(self, path: Path, *, remedy: str) -> None:
        self.path, self._remedy = path, remedy
        self._file = open_file(path, remedy=remedy)
        try:
            with _archive_errors(path, remedy):
                zipfile.ZipFile(_ListingFile(self._file)).close()  # type: ignore[arg-type]
                self._zip = zipfile.ZipFile(self._file)
                size, entries = os.fstat(self._file.fileno()).st_size, self._zip.infolist()
                self._entries = {entry.filename: entry for entry in entries if not entry.is_dir()}
                total = sum(entry.file_size for entry in self._entries.values())
                if total > (most := most_unfolded(size, TEXT_RATIO)):
                    problem = f"expands to {amount(total)} from {amount(size)}, more than {amount(most)}"
                    raise _RefusedArchiveError(problem)
        except UnusableFileError:
            self._file.close()
            raise

    def names(self) -> Iterator[str]:
        """The names of all files in the archive. They may be anything and must not be used as paths."""
        yield from self._entries

    def read(self, name: str, most: int) -> bytes:
        """The contents of one file, of at most `most` bytes."""
        entry, shown = self._entries[name], printable(name, 80)
        with _archive_errors(self.path, self._remedy, shown):
            if entry.file_size > most:
                raise _RefusedArchiveError(f"{shown} is longer than {amount(most)}, the most that is read")
            with self._zip.open(entry) as handle:
                return handle.read(most + 1)[: entry.file_size]

    def close(self) -> None:
        self._file.close()


def read_npz(path: str | Path, names: Sequence[str], *, remedy: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays among `names` that an `.npz` holds: numbers or text.

    Together they may take `ARRAY_FLOOR` bytes, or `ARRAY_RATIO` times the file's size on disk. Refuses a file
    that holds none of them.
    """
    with open_file(path, remedy=remedy) as file, _archive_errors(Path(path), remedy):
        left = most_unfolded(os.fstat(file.fileno()).st_size, ARRAY_RATIO, ARRAY_FLOOR)
        with zipfile.ZipFile(_ListingFile(file)) as archive:  # type: ignore[arg-type]
            known = {name.removesuffix(".npy"): name for name in archive.namelist()}
            if not known.keys() & set(names):
                found, wanted = ", ".join(known)[:120] or "nothing", " or ".join(names)
                raise _RefusedArchiveError(f"it has {found}, and no array {wanted}")
            arrays = {}
            for name in [name for name in names if name in known]:
                arrays[name] = _array(archive, known[name], left)
                left -= arrays[name].nbytes
            return arrays


def _array(archive: zipfile.ZipFile, member: str, most: int) -> NDArray[Any]:
    """Reads an array of at most `most` bytes if its header agrees with the size of its member in the
    archive.
    """
    from numpy.lib import format as npy

    info = archive.getinfo(member)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise _RefusedArchiveError(f"its array {member} is packed in a way that numpy never uses")
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise _RefusedArchiveError(f"its arrays are of version {version}; save them with numpy.savez")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
        described, there = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
    if dtype.kind not in "fiubU" or not dtype.itemsize:
        raise _RefusedArchiveError(f"its array {member} is of {dtype}, neither numbers nor text")
    if described != there:
        problem = f"its array {member} is described as {amount(described)}, {amount(there)} are there"
        raise _RefusedArchiveError(problem)
    if there > most:
        raise _RefusedArchiveError(
            f"its array {member} expands to {amount(there)}, more than {amount(most)}, the most at its size "
            "(save it with numpy.savez, which does not compress)"
        )
    with archive.open(member) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


@contextmanager
def _safetensors(
    path: str | Path, remedy: str, inside: Path | None, framework: str = "pt", device: str = "cpu"
) -> Iterator[Any]:
    """Opens a `.safetensors` file; the library checks that its header matches the bytes that follow."""
    from safetensors import SafetensorError, safe_open

    open_file(path, remedy=remedy, inside=inside).close()
    try:
        with safe_open(path, framework=framework, device=device) as file:
            yield file
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UnusableFileError(path, f"is not a whole safetensors file ({error})", remedy) from None


def read_safetensors(
    path: str | Path,
    only: Sequence[str] | None = None,
    *,
    remedy: str,
    inside: Path | None = None,
    device: str = "cpu",
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns (tensors by name on `device`, metadata) of a `.safetensors` file.

    `only` names the tensors to read, if the file has them; None reads all. `inside` is that of
    `files.open_file`.
    """
    with _safetensors(path, remedy, inside, device=device) as file:
        names = [name for name in file.keys() if only is None or name in only]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


def check_safetensors(path: str | Path, *, remedy: str, inside: Path | None = None) -> dict[str, str]:
    """Returns the metadata of a `.safetensors` file whose header describes exactly the bytes that follow."""
    with _safetensors(path, remedy, inside) as file:
        return file.metadata() or {}


def array_in_safetensors(
    path: str | Path, name: str, *, remedy: str
) -> tuple[tuple[int, ...], str, dict[str, str]] | None:
    """Returns (shape, dtype such as F32, the file's metadata) of one tensor, according to the header; None if
    the file lacks it."""
    with _safetensors(path, remedy, None, framework="np") as file:
        if name not in file.keys():  # noqa: SIM118
            return None
        found = file.get_slice(name)
        return tuple(found.get_shape()), found.get_dtype(), file.metadata() or {}


def count_parameters(path: str | Path, *, remedy: str, inside: Path | None = None) -> int:
    """The number of floating-point numbers in a `.safetensors` file, according to its header."""
    with _safetensors(path, remedy, inside, framework="np") as file:
        slices = map(file.get_slice, file.keys())
        return sum(math.prod(each.get_shape()) for each in slices if each.get_dtype() in FLOATS)


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

    Links to files inside `root` (None: the folder) are followed; links to folders, pipes and devices are
    skipped. Raises UnusableFileError, which ends in `remedy`, for wanted links out of `root`, for a tree that
    is too large, and for folders that cannot be read.
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


def leads_to_file(link: Path, home: Path, *, remedy: str) -> bool:
    """Returns whether a path, possibly through links, leads to a regular file in `home`; raises
    UnusableFileError if it leads to a file outside. False for paths to nothing, to a folder or to a device.
    """
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
    """The folder that links inside `folder` may lead into: normally the folder itself. For a snapshot in the
    Hugging Face cache, which consists of links, it is the cached repository."""
    found = folder.resolve()
    for place in (found, *found.parents):
        repository = place.parent.parent
        if place.parent.name == "snapshots" and (repository / "blobs").is_dir():
            return repository
    return found
