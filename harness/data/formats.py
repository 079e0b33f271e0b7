"""Reads the contents of one file in any format: documents of text, or the rows of a table."""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from gradwire.harness.data.chat import ChatFormat
from gradwire.harness.data.compression import CORRUPT, OPENERS, open_text
from gradwire.harness.data.plain_text import split_text
from gradwire.harness.data.records import UnreadableFileError, field_of_text, no_text_field, record_texts
from gradwire.harness.files.reading import UnusableFileError, amount
from gradwire.harness.files.streams import TEXT_RATIO, most_unfolded

ROWS_AT_ONCE = 1000

END_OF_TABLE = "\ufdd2end"
"""A line that no table has: a noncharacter of Unicode begins it."""

_field_limit = threading.Lock()


def format_of(path: Path) -> str | None:
    """The suffix that decides the format, such as ".jsonl" for x.jsonl.gz; None for an unknown format."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in OPENERS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in READERS else None


def holds_rows(path: Path) -> bool:
    """Whether the file holds rows, which may be parts of a document, rather than documents."""
    return READERS.get(format_of(path) or "") is not _read_text


def read_pieces(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    """Yields the file's documents or rows in order, one at a time, empty ones included.

    Raises UnreadableFileError, also midway if the file is damaged further down.
    """
    kind = format_of(path)
    if kind is None:
        raise UnreadableFileError(f"unknown format; use one of {formats_in_words()}")
    is_empty = True
    with _one_error():
        for piece in READERS[kind](path, text_field, chat):
            if "\0" in piece:
                raise UnreadableFileError("is binary (has zero bytes); use a text file")
            is_empty = is_empty and not piece.strip()
            yield piece
    if is_empty:
        raise UnreadableFileError("has no text; use another file")


def read_rows(path: Path) -> Iterator[list[str]]:
    """Yields the rows of a .csv or .tsv file, a header included. Raises UnreadableFileError."""
    with _one_error(), open_text(path) as handle:
        try:
            yield from _csv_rows(_csv_reader(path, handle))
        except csv.Error as error:
            raise _no_table(error) from error


def read_records(path: Path, fields: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a .json, .jsonl or .parquet file, of which `fields` are needed.

    Raises UnreadableFileError.
    """
    kind = format_of(path)
    with _one_error():
        if kind == ".parquet":
            yield from _parquet_records(path, lambda names: [name for name in fields if name in names])
        elif kind in (".json", ".jsonl"):
            with open_text(path) as handle:
                for record in _json_lines(handle) if kind == ".jsonl" else _json_records(handle):
                    if not isinstance(record, Mapping):
                        raise UnreadableFileError("has a line that is no record; repair it")
                    yield record
        else:
            raise UnreadableFileError(f"has no records; use one of {', '.join(RECORD_FORMATS)}")


RECORD_FORMATS = (".json", ".jsonl", ".parquet")


@contextmanager
def _one_error() -> Iterator[None]:
    """Turns what reading a damaged file raises into UnreadableFileError."""
    try:
        yield
    except UnusableFileError as error:
        raise UnreadableFileError(f"{error.problem}; {error.remedy}") from error
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise UnreadableFileError(f"not UTF-8 text ({where}); convert it first") from error
    except CORRUPT as error:
        raise UnreadableFileError(f"cannot be read ({error}); check the file and its suffix") from error


def formats_in_words() -> str:
    """The suffixes that can be read, for messages."""
    return f"{', '.join(READERS)}, plain or as {', '.join(OPENERS)}"


def _read_text(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    with open_text(path) as handle:
        first = handle.readline()
        if first.startswith('"'):
            yield from split_text(_strip_csv_quotes(first + handle.read()).split("\n"))
        else:
            yield from split_text(line.removesuffix("\n") for line in chain([first], handle))


def _strip_csv_quotes(text: str) -> str:
    """Undoes an export of lines of text to a csv file of one column; returns other text unchanged."""
    try:
        rows = list(_csv_rows(csv.reader(io.StringIO(text, newline=""), strict=True)))
    except csv.Error:
        return text
    if any(len(row) > 1 for row in rows):
        return text
    lines = (row[0] if row else "" for row in rows)
    return "\n".join(line.removesuffix("\n") for line in lines)


def _csv_rows(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows of a csv file, with fields of any length (the csv module has only one global limit)."""
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


def _read_table(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    """csv or tsv with a header line; tabs separate without any quoting."""
    with open_text(path) as handle:
        rows = _csv_rows(_csv_reader(path, handle))
        try:
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
        except csv.Error as error:
            raise _no_table(error) from error


def _csv_reader(path: Path, handle: TextIO) -> Iterator[list[str]]:
    tabs = format_of(path) == ".tsv"
    if tabs:
        return csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
    return _closed(csv.reader(chain(handle, [END_OF_TABLE])))


def _closed(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows before END_OF_TABLE, a line of its own unless a quote has never been closed: the csv module
    then takes all that follows for one field."""
    for row in rows:
        if row == [END_OF_TABLE]:
            return
        if row and row[-1].endswith(END_OF_TABLE):
            begins = " ".join(row[-1].removesuffix(END_OF_TABLE).split())[:40]
            raise csv.Error(f"a quote is never closed, before {begins!r}")
        yield row


def _no_table(error: csv.Error) -> UnreadableFileError:
    return UnreadableFileError(f"is not a table ({error}); check the file and its suffix")


def _read_parquet(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    def chosen(names: Sequence[str]) -> list[str]:
        wanted = field_of_text(names, text_field)
        if wanted is None:
            raise no_text_field(names, text_field)
        return [wanted]

    yield from record_texts(_parquet_records(path, chosen), text_field, chat)


def _parquet_records(path: Path, chosen: Callable[[Sequence[str]], list[str]]) -> Iterator[Mapping[str, Any]]:
    """The records of a file with the columns that `chosen` takes of all its columns."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = chosen(file.schema_arrow.names)
            for column in columns:
                _check_unfolding(file.metadata, column)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UnreadableFileError(
            f"is not a parquet file ({error}); check the file and its suffix"
        ) from error


def _check_unfolding(metadata: Any, wanted: str) -> None:
    """Raises UnreadableFileError if a column declares that it expands far more than text does."""
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
        for column in columns:
            if column.path_in_schema.split(".")[0] == wanted:
                most = most_unfolded(column.total_compressed_size, TEXT_RATIO)
                if column.total_uncompressed_size > most:
                    raise UnreadableFileError(
                        f"column {wanted} expands to {amount(column.total_uncompressed_size)} from "
                        f"{amount(column.total_compressed_size)}, as no text does; use another file"
                    )


def _read_lines_of_json(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    with open_text(path) as handle:
        yield from record_texts(_json_lines(handle), text_field, chat)


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UnreadableFileError(f"line {number} is not JSON ({error.msg}); repair it") from error
            except (RecursionError, ValueError) as error:  # brackets or digits by the thousand
                raise UnreadableFileError(f"line {number} is no record ({error}); repair it") from error


def _read_json(path: Path, text_field: str, chat: ChatFormat) -> Iterator[str]:
    """Reads one JSON list of records, or one record per line although the name says .json."""
    with open_text(path) as handle:
        yield from record_texts(_json_records(handle), text_field, chat)


def _json_records(handle: TextIO) -> Iterator[Any]:
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


READERS: Mapping[str, Callable[[Path, str, ChatFormat], Iterator[str]]] = {
    ".txt": _read_text,
    ".tokens": _read_text,
    ".raw": _read_text,
    ".jsonl": _read_lines_of_json,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}
