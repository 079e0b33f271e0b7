"""Blocks of a trace file: a stream of Arrow record batches in zstd frames, which other tools can read
directly.

The file's first block holds the schema and the names of the kinds of rows; each further one holds a record
batch and its labels. Each frame is preceded by a frame that decoders skip, with its sizes and checksum: so a
reader only holds one block of at most `MOST_BYTES` at a time, and detects damage. A block is appended with
one write; a block cut off by a crash is ignored.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from gradwire.harness.timing.trace.rows import KINDS, TraceRow

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

LEVEL = 9
"""zstd's level: 6 makes traces 3 % larger and saves a twentieth of a block's time."""
MOST_BYTES = 2**25
FRAME = struct.Struct("<5I")
"""The skippable frame: its magic number and size, the block's checksum, and the compressed and uncompressed
sizes of the block's frame."""
SKIPPED = 0x184D2A50
DICTIONARY = 2
"""The kind of an Arrow message that holds a dictionary."""

StepRows = tuple[int, list[TraceRow]]


class StoredBlock(NamedTuple):
    """The content of a block, as Arrow messages, and the bytes it is stored as."""

    content: bytes
    stored: bytes


class DamagedBlockError(ValueError):
    """Raised for a block that cannot be read; the text gives the reason."""


@cache
def schema() -> pa.Schema:
    """The columns of the table: the step's number, then the fields of `TraceRow`."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    types = {"kind": text, "label": text, "share": pa.float64()}
    return pa.schema(
        [("step", pa.int64()), *((name, types.get(name, pa.int64())) for name in TraceRow._fields)]
    )


def header_block(about: Mapping[str, str]) -> bytes:
    """The first block of a file, which identifies the trace."""
    named = schema().with_metadata(dict(about)).serialize().to_pybytes()
    return stored(named + _prefix()[schema().serialize().size :])


def about(block: StoredBlock) -> dict[str, str]:
    """The metadata in the first block of a file. Raises DamagedBlockError if the file is not a trace."""
    import pyarrow as pa

    with _arrow_errors():
        found = pa.ipc.read_schema(pa.py_buffer(block.content))
        if not found.equals(schema()):
            raise DamagedBlockError("it does not begin as a trace does")
        return {key.decode(): value.decode() for key, value in (found.metadata or {}).items()}


def step_block(steps: Sequence[StepRows]) -> bytes:
    """Steps as a block. Raises OSError (EFBIG) if it would be larger than a reader accepts."""
    return stored(_stream(steps)[len(_prefix()) :])


def steps_of(block: StoredBlock) -> Iterator[StepRows]:
    """The steps of a block, if it holds any. Raises DamagedBlockError."""
    import pyarrow as pa

    with _arrow_errors():
        stream = pa.py_buffer(_prefix() + block.content)
        for message in pa.ipc.MessageReader.open_stream(stream):
            _refuse_compressed(message.metadata.to_pybytes())
        table = pa.ipc.open_stream(stream).read_all()
        table.validate(full=True)
        if any(column.null_count for column in table.columns):
            raise DamagedBlockError("a cell is empty")
        numbers, *others = (_values(column.combine_chunks()) for column in table.columns)
    rows = zip(numbers, map(TraceRow._make, zip(*others, strict=True)), strict=True)
    for step, own in groupby(rows, itemgetter(0)):
        yield step, [row for _, row in own]


def append(path: Path, stored: bytes) -> int:
    """Appends blocks to a file, which must not be a link; returns its size. An OSError leaves the file
    unchanged."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    try:
        size, rest = os.fstat(descriptor).st_size, memoryview(stored)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        return size + len(stored)
    finally:
        os.close(descriptor)


def blocks(file: BinaryIO) -> Iterator[StoredBlock]:
    """The blocks of an open file in their order. Raises DamagedBlockError."""
    import pyarrow as pa

    while len(head := file.read(FRAME.size)) == FRAME.size:
        magic, size, checksum, num_stored, num_bytes = FRAME.unpack(head)
        if magic != SKIPPED or size != FRAME.size - 8:
            raise DamagedBlockError("a block does not begin as one does")
        if max(num_stored, num_bytes) > MOST_BYTES:
            raise DamagedBlockError(f"a block holds more than {MOST_BYTES} bytes")
        frame = file.read(num_stored)
        if len(frame) < num_stored:
            return  # cut off by a crash
        if zlib.crc32(frame, num_bytes) != checksum:
            raise DamagedBlockError("a block's checksum is another")
        with _arrow_errors():
            content = pa.decompress(frame, num_bytes, "zstd", asbytes=True)
        yield StoredBlock(content, head + frame)


def rewrite(path: Path, keep: Callable[[int], bool]) -> tuple[int, int]:
    """Keeps only some steps of a file, which is replaced atomically; returns its size in bytes and the number
    of steps.

    Blocks that are kept or dropped as a whole are not compressed again. Data after a damaged block is
    dropped. `path` must not be a link. Raises OSError.
    """
    temporary, num_steps = path.with_name(f".{path.name}.{os.getpid()}"), 0
    try:
        with temporary.open("xb") as file, path.open("rb") as old, contextlib.suppress(DamagedBlockError):
            for number, block in enumerate(blocks(old)):
                steps = list(steps_of(block)) if number else []
                kept = [each for each in steps if keep(each[0])]
                num_steps += len(kept)
                if len(kept) == len(steps):
                    file.write(block.stored)
                elif kept:
                    file.write(step_block(kept))
        size = temporary.stat().st_size
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return size, num_steps


def _stream(steps: Sequence[StepRows]) -> bytes:
    """Steps as an Arrow stream: the schema, the names of kinds, the labels and a record batch."""
    import numpy as np
    import pyarrow as pa

    numbers = [step for step, rows in steps for _ in rows]
    kinds, labels, *others = zip(*(row for _, rows in steps for row in rows), strict=True)
    *whole, share = others
    arrays = [_numbers(np.array(numbers, np.int64)), _texts(kinds, KINDS), _texts(labels)]
    arrays += [_numbers(np.array(column, np.int64)) for column in whole]
    arrays += [_numbers(np.array(share, np.float64))]
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema(), options=pa.ipc.IpcWriteOptions())
    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema()))
    return bytes(sink.getvalue().to_pybytes())


def _numbers(values: NDArray[Any]) -> pa.Array:
    """A column that shares the memory of `values`; `pyarrow.array` would import pandas."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(column: Sequence[str], known: Sequence[str] = ()) -> pa.Array:
    """A column with few distinct texts, some of which are in `known`."""
    import numpy as np
    import pyarrow as pa

    codes = {text: code for code, text in enumerate(dict.fromkeys([*known, *column]))}
    encoded = [text.encode() for text in codes]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(codes), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return pa.DictionaryArray.from_arrays(
        _numbers(np.array([codes[text] for text in column], np.int32)), texts
    )


@cache
def _prefix() -> bytes:
    """The common beginning of all streams: the schema and the names of kinds."""
    import pyarrow as pa

    reader = pa.ipc.MessageReader.open_stream(_stream([(0, [TraceRow("step")])]))
    return b"".join(reader.read_next_message().serialize().to_pybytes() for _ in range(2))


def stored(content: bytes) -> bytes:
    """Arrow messages as a block. Raises OSError (EFBIG) if it would be larger than a reader accepts."""
    import pyarrow as pa

    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    frame: bytes = pa.Codec("zstd", compression_level=LEVEL).compress(content, asbytes=True)
    checksum = zlib.crc32(frame, len(content))
    return FRAME.pack(SKIPPED, FRAME.size - 8, checksum, len(frame), len(content)) + frame


@contextlib.contextmanager
def _arrow_errors() -> Iterator[None]:
    """Raises DamagedBlockError for Arrow's own errors in the block."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, LookupError, MemoryError, struct.error, UnicodeError) as error:
        raise DamagedBlockError(str(error).split("\n")[0][:200]) from None


def _values(column: pa.Array) -> list[object]:
    """A column's values; equal texts share one object, because they may be long."""
    if hasattr(column, "indices"):
        texts = column.dictionary.to_pylist()
        return [texts[index] for index in column.indices.to_pylist()]
    values: list[object] = column.to_pylist()
    return values


def _refuse_compressed(message: bytes) -> None:
    """Raises DamagedBlockError for a batch that is itself compressed, because its uncompressed size is not
    limited.

    A message is a flatbuffer, whose tables begin with the distance to the offsets of their fields.
    """

    def field(table: int, index: int) -> int:
        offsets = table - struct.unpack_from("<i", message, table)[0]
        if 4 + 2 * index >= struct.unpack_from("<H", message, offsets)[0]:
            return 0
        (offset,) = struct.unpack_from("<H", message, offsets + 4 + 2 * index)
        return table + offset if offset else 0

    def follow(at: int) -> int:
        return int(at + struct.unpack_from("<I", message, at)[0])

    root = follow(0)
    batch = follow(field(root, 2))
    if message[field(root, 1)] == DICTIONARY:
        batch = follow(field(batch, 1))
    if field(batch, 3):
        raise DamagedBlockError("a record batch is itself compressed")
