"""Contents of one file in any format, compressed or not: documents of text, rows of a table, or records.

Files are read with the standard library and pyarrow, one piece at a time. The loaders of `datasets` would
change their contents: they turn strings such as 2020-01-01, 1.50 and NA into dates, numbers and nulls, and
take the first fields of a csv file whose rows have too many for an index. They also decompress whole files to
disk. So they are not used.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from gradwire.harness.data.chat import ChatFormat
from gradwire.harness.data.corpus import split_text
from gradwire.harness.data.records import UnreadableFileError, field_of_text, no_text_field, record_texts
from gradwire.harness.files.hostile import TEXT_RATIO, BoundedStream, most_unfolded
from gradwire.harness.files.reading import UnusableFileError, amount

TEXTS, TABLES, RECORDS = (".txt", ".tokens", ".raw"), (".csv", ".tsv"), (".json", ".jsonl", ".parquet")
FORMATS = (*TEXTS, ".jsonl", ".json", *TABLES, ".parquet")

ROWS_AT_ONCE = 1000

END_OF_TABLE = "\ufdd2end"
"""A line that no table contains, because it begins with a noncharacter of Unicode."""

REMEDY = "if it is valid, decompress it and give that file"

_field_limit = threading.Lock()


def decompress_zstd(file: Any, mode: str = "rb", **options: Any) -> BinaryIO:
    """Decompresses a file with pyarrow, because Python's library has no zstd before 3.14."""
    import pyarrow

    assert mode.startswith("r"), mode
    return cast(BinaryIO, pyarrow.CompressedInputStream(file, "zstd"))


OPENERS: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": decompress_zstd,
}

CORRUPT = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""The errors that reading a damaged file raises."""


def open_text(path: Path) -> TextIO:
    """Opens the file's text, decompressed according to its suffix; line ends become line feeds.

    Reading raises UnusableFileError if a compressed file expands far more than text does.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        return path.open("rt", encoding="utf-8-sig", newline=None)
    stream = BoundedStream(path, path.open("rb"), opener, remedy=REMEDY)
    return io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline=None)


def format_of(path: Path) -> str | None:
    """The suffix that determines the format, such as ".jsonl" for x.jsonl.gz; None for an unknown format."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in OPENERS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in FORMATS else None


def formats_in_words() -> str:
    """The readable suffixes, for messages."""
    return f"{', '.join(FORMATS)}, plain or as {', '.join(OPENERS)}"


def holds_rows(path: Path) -> bool:
    """True for a file of rows, which may be parts of documents, rather than whole documents."""
    return format_of(path) not in TEXTS


def read_pieces(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    """Yields the file's documents or rows in order, one at a time, empty ones included.

    Raises UnreadableFileError, also midway if the file is damaged further down.
    """

    def choose(names: Sequence[str]) -> list[str]:
        wanted = field_of_text(names, text_field)
        if wanted is None:
            raise no_text_field(names, text_field)
        return [wanted]

    kind = format_of(path)
    if kind is None:
        raise UnreadableFileError(f"unknown format; use one of {formats_in_words()}")
    if kind in TEXTS:
        pieces = _documents(path)
    elif kind in TABLES:
        pieces = _column(path, text_field)
    else:
        pieces = record_texts(_records(path, choose), text_field, chat)
    is_empty = True
    with _damage_in_a_line():
        for piece in pieces:
            if "\0" in piece:
                raise UnreadableFileError("is binary (has zero bytes); use a text file")
            is_empty = is_empty and not piece.strip()
            yield piece
    if is_empty:
        raise UnreadableFileError("has no text; use another file")


def read_rows(path: Path) -> Iterator[list[str]]:
    """Yields the rows of a .csv or .tsv file, including a header. Raises UnreadableFileError."""
    with _damage_in_a_line(), open_text(path) as handle:
        yield from _rows(path, handle)


def read_records(path: Path, fields: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a .json, .jsonl or .parquet file; only `fields` are needed.

    Raises UnreadableFileError.
    """
    if format_of(path) not in RECORDS:
        raise UnreadableFileError(f"has no records; use one of {', '.join(RECORDS)}")
    with _damage_in_a_line():
        for record in _records(path, lambda names: [name for name in fields if name in names]):
            if not isinstance(record, Mapping):
                raise UnreadableFileError("has a line that is not a record; repair it")
            yield record


@contextmanager
def _damage_in_a_line() -> Iterator[None]:
    """Turns errors of reading a damaged file into UnreadableFileError."""
    try:
        yield
    except UnusableFileError as error:
        raise UnreadableFileError(f"{error.problem}; {error.remedy}") from error
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise UnreadableFileError(f"not UTF-8 text ({where}); convert it first") from error
    except csv.Error as error:
        raise UnreadableFileError(f"is not a table ({error}); check the file and its suffix") from error
    except CORRUPT as error:
        raise UnreadableFileError(f"cannot be read ({error}); check the file and its suffix") from error


def _documents(path: Path) -> Iterator[str]:
    with open_text(path) as handle:
        first = handle.readline()
        if first.startswith('"'):
            yield from split_text(_without_csv_quotes(first + handle.read()).split("\n"))
        else:
            yield from split_text(line.removesuffix("\n") for line in chain([first], handle))


def _without_csv_quotes(text: str) -> str:
    """Undoes the quoting of lines of text exported as a csv file of one column; returns other text
    unchanged.
    """
    try:
        rows = list(_with_long_fields(csv.reader(io.StringIO(text, newline=""), strict=True)))
    except csv.Error:
        return text
    if any(len(row) > 1 for row in rows):
        return text
    return "\n".join(row[0].removesuffix("\n") if row else "" for row in rows)


def _column(path: Path, text_field: str) -> Iterator[str]:
    """The cells in one column of a table, given its name in the header."""
    with open_text(path) as handle:
        rows = _rows(path, handle)
        header = next(rows, [])
        if text_field not in header:
            raise no_text_field(header, text_field)
        column = header.index(text_field)
        for number, row in enumerate(rows, start=2):
            if any(row[len(header) :]):
                raise UnreadableFileError(
                    f"row {number} has {len(row)} fields, the header {len(header)}; put quotes around "
                    "text with commas, or save it as .jsonl"
                )
            if len(row) > column:
                yield row[column]


def _rows(path: Path, handle: TextIO) -> Iterator[list[str]]:
    """The rows of a csv file, or of a tsv file, in which tabs separate fields without any quoting."""
    if format_of(path) == ".tsv":
        yield from _with_long_fields(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
        return
    for row in _with_long_fields(csv.reader(chain(handle, [END_OF_TABLE]))):
        if row == [END_OF_TABLE]:
            return
        if row and row[-1].endswith(END_OF_TABLE):  # the csv module takes all that follows for one field
            begins = " ".join(row[-1].removesuffix(END_OF_TABLE).split())[:40]
            raise csv.Error(f"a quote is never closed, before {begins!r}")
        yield row


def _with_long_fields(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows of a csv reader, allowing fields of any length (the csv module only has one global limit)."""
    while True:
        with _field_limit:
            before = csv.field_size_limit(sys.maxsize)
            try:
                rows = list(islice(reader, ROWS_AT_ONCE))
            finally:
                csv.field_size_limit(before)
        if not rows:
            return
        yield from rows


def _records(path: Path, choose: Callable[[Sequence[str]], list[str]]) -> Iterator[Any]:
    """The records of a file; for a parquet file only with the columns that `choose` selects."""
    if format_of(path) == ".parquet":
        yield from _parquet_records(path, choose)
        return
    with open_text(path) as handle:
        yield from _json_lines(handle) if format_of(path) == ".jsonl" else _json_records(handle)


def _parquet_records(path: Path, choose: Callable[[Sequence[str]], list[str]]) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = choose(file.schema_arrow.names)
            _check_unfolding(file.metadata, columns)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UnreadableFileError(
            f"is not a parquet file ({error}); check the file and its suffix"
        ) from error


def _check_unfolding(metadata: Any, names: Sequence[str]) -> None:
    """Raises UnreadableFileError if a column claims to expand far more than text does."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(metadata.num_columns)):
            name, packed = column.path_in_schema.split(".")[0], column.total_compressed_size
            if name in names and column.total_uncompressed_size > most_unfolded(packed, TEXT_RATIO):
                raise UnreadableFileError(
                    f"column {name} expands to {amount(column.total_uncompressed_size)} from "
                    f"{amount(packed)}, as no text does; use another file"
                )


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UnreadableFileError(f"line {number} is not JSON ({error.msg}); repair it") from error
            except (RecursionError, ValueError) as error:  # brackets or digits by the thousand
                raise UnreadableFileError(f"line {number} is not a record ({error}); repair it") from error


def _json_records(handle: TextIO) -> Iterator[Any]:
    """The records of one JSON list, or of one record per line despite the suffix .json."""
    first = handle.readline()
    try:
        json.loads(first)
    except (ValueError, RecursionError):  # a list over several lines, or broken
        text = first + handle.read()
    else:
        rest = handle.readline()
        if rest.strip():
            return _json_lines(chain([first, rest], handle))
        text = first + rest + handle.read()
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return _json_lines(text.split("\n"))
    return iter(whole if isinstance(whole, list) else [whole])
