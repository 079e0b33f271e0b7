"""Reads arrays that others wrote, as `.safetensors` and `.npz`; checks layouts before it allocates memory.

Nothing is unpickled. The size of a file on disk bounds the memory that it takes.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gradwire.harness.files.reading import UnusableFileError, amount, open_file
from gradwire.harness.files.streams import most_unfolded
from gradwire.harness.files.structured import parse_json

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from torch import Tensor

MOST_HEADER = 8 * 2**20
"""Most bytes of the header of a `.safetensors` file: some 80,000 tensors."""

ARRAY_FLOOR = 384 * 2**20
"""Bytes that the arrays of any `.npz` may take in memory; zeros compress 1,000 to one."""

ARRAY_RATIO = 32
"""Bytes of larger arrays per byte of an `.npz`; gradients with 99 % zeros reach that."""

MOST_DIRECTORY = 2**20
"""Bytes of an archive that are read at once, at most; this covers its list of members."""

_BYTES = dict.fromkeys(("F64", "I64", "U64", "C64"), 8) | dict.fromkeys(("F32", "I32", "U32"), 4)
_BYTES |= dict.fromkeys(("F16", "BF16", "I16", "U16"), 2)
_BYTES |= dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1)

FLOATS = ("F64", "F32", "F16", "BF16")
"""The types of a model's parameters; what has others counts or hides something."""


def check_safetensors(path: str | Path, *, remedy: str, inside: Path | None = None) -> dict[str, str]:
    """Returns the metadata of a `.safetensors` file whose header describes exactly the bytes that follow it.

    Raises UnusableFileError; `remedy` and `inside` are those of `files.open_file`.
    """
    return _checked(path, remedy, inside)[0]


def count_parameters(path: str | Path, *, remedy: str, inside: Path | None = None) -> int:
    """The floating-point numbers in a `.safetensors` file, by its header; raises as `check_safetensors`."""
    tensors = _checked(path, remedy, inside)[1].values()
    return sum(math.prod(each["shape"]) for each in tensors if each["dtype"] in FLOATS)


def _checked(path: str | Path, remedy: str, inside: Path | None) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata, and what the header says of each tensor, once they have been checked."""
    with open_file(path, remedy=remedy, inside=inside) as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, MOST_HEADER):
            raise UnusableFileError(path, "is not a safetensors file, or cut short", remedy)
        header = parse_json(file.read(length), path, remedy=remedy, where="its header ")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise UnusableFileError(path, "its header's metadata is not an object of texts", remedy)
    spans = sorted(_span(name, entry, path, remedy) for name, entry in header.items())
    end = 0
    for first, last, name in spans:
        if first != end:
            raise UnusableFileError(path, f"its tensor {name} does not begin where the last one ends", remedy)
        end = last
    if end != size - 8 - length:
        problem = f"its header describes {amount(end)} of tensors, {amount(size - 8 - length)} are there"
        raise UnusableFileError(path, problem, remedy)
    return metadata, header


def _span(name: str, entry: Any, path: str | Path, remedy: str) -> tuple[int, int, str]:
    """(first byte, byte after the last one, name) of a tensor."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    sides, ends = _counts(shape), _counts(offsets)
    if not isinstance(dtype, str) or dtype not in _BYTES or sides is None or ends is None or len(ends) != 2:
        raise UnusableFileError(path, f"its header says of {name} what is no tensor", remedy)
    if ends[1] - ends[0] != math.prod(sides) * _BYTES[dtype]:
        raise UnusableFileError(path, f"its tensor {name} has another length than its shape says", remedy)
    return ends[0], ends[1], name


def _counts(value: Any) -> list[int] | None:
    """A list of numbers from 0 on; None if `value` is something else."""
    counts = isinstance(value, list) and len(value) <= 64 and all(type(n) is int and n >= 0 for n in value)
    return value if counts else None


def read_safetensors(
    path: str | Path,
    only: Sequence[str] | None = None,
    *,
    remedy: str,
    inside: Path | None = None,
    device: str = "cpu",
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns (tensors by name on `device`, metadata) of a `.safetensors` file; raises UnusableFileError.

    `only` names the tensors to read, if the file has them; None reads all. `remedy` and `inside` are those of
    `files.open_file`.
    """
    from safetensors import SafetensorError, safe_open

    metadata = check_safetensors(path, remedy=remedy, inside=inside)
    try:
        with safe_open(path, framework="pt", device=device) as file:
            names = [name for name in file.keys() if only is None or name in only]  # noqa: SIM118
            return {name: file.get_tensor(name) for name in names}, metadata
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UnusableFileError(path, f"cannot be read ({error})", remedy) from None


def read_npz(path: str | Path, names: Sequence[str], *, remedy: str) -> dict[str, NDArray[Any]]:
    """Returns those of the arrays `names` that an `.npz` holds: numbers or text.

    Together they may take `ARRAY_FLOOR` bytes, or `ARRAY_RATIO` times the file's size on disk. Raises
    UnusableFileError, also if the file holds none of them.
    """
    with open_file(path, remedy=remedy) as file:
        left = most_unfolded(file.seek(0, 2), ARRAY_RATIO, ARRAY_FLOOR)
        file.seek(0)
        try:
            with zipfile.ZipFile(_SmallReads(file)) as archive:  # type: ignore[arg-type]
                known = {name.removesuffix(".npy"): name for name in archive.namelist()}
                if not known.keys() & set(names):
                    found, wanted = ", ".join(known)[:120] or "nothing", " or ".join(names)
                    raise _RefusedArrayError(f"it has {found}, and no array {wanted}")
                arrays = {}
                for name in [name for name in names if name in known]:
                    arrays[name] = _array(archive, known[name], left)
                    left -= arrays[name].nbytes
                return arrays
        except _RefusedArrayError as error:
            raise UnusableFileError(path, str(error), remedy) from None
        # Whatever zipfile, zlib and numpy make of bytes that anybody may have written.
        except Exception as error:
            problem = f"cannot be read as .npz ({type(error).__name__}: {error})"
            raise UnusableFileError(path, problem, remedy) from None


class _RefusedArrayError(Exception):
    """What is wrong with a member of an archive."""


class _SmallReads:
    """A file that refuses large reads: zipfile would read a list of members of any length at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size if 0 <= size <= MOST_DIRECTORY else MOST_DIRECTORY + 1)
        if len(content) > MOST_DIRECTORY:
            raise _RefusedArrayError(f"its list of members is longer than {amount(MOST_DIRECTORY)}")
        return content


def _array(archive: zipfile.ZipFile, member: str, most: int) -> NDArray[Any]:
    """Reads an array if its header, its member in the archive and the limit of `most` bytes agree."""
    import numpy as np

    info = archive.getinfo(member)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise _RefusedArrayError(f"its array {member} is packed in a way that numpy never uses")
    with archive.open(member) as file:
        shape, dtype = _header(file)
        described, there = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
    if dtype.kind not in "fiubU" or not dtype.itemsize:
        raise _RefusedArrayError(f"its array {member} is of {dtype}, neither numbers nor text")
    if described != there:
        raise _RefusedArrayError(
            f"its array {member} is described as {amount(described)}, {amount(there)} are there"
        )
    if there > most:
        raise _RefusedArrayError(
            f"its array {member} expands to {amount(there)}, more than {amount(most)}, the most at its size "
            "(save it with numpy.savez, which does not compress)"
        )
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _header(file: Any) -> tuple[tuple[int, ...], numpy.dtype[Any]]:
    """Returns (shape, dtype) from the array's header and leaves the file behind it."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise _RefusedArrayError(f"its arrays are of version {version}; save them with numpy.savez")
    shape, _, dtype = read(file)
    if len(shape) > 64 or any(side < 0 for side in shape):
        raise _RefusedArrayError(f"its array has the shape {shape}")
    return shape, dtype
