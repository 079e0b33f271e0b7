"""Read the documents of one file, whatever its format."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

HEADING = re.compile(r"(?:\A\s*|\n[ \t]*\n)( ?= (?!=).*(?<!=) = ?)(?=\n[ \t]*\n)")
"""WikiText's line before an article, ` = Title = ` between blank lines; a section's has more signs."""

_field_limit = threading.Lock()


class UnreadableFileError(ValueError):
    """A file without usable text; the message says why and what to do."""


def format_of(path: Path) -> str | None:
    """The suffix that decides the format, e.g. ".jsonl" for x.jsonl.gz; None if it is not one of ours."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in OPENERS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in READERS else None


def read_documents(path: Path, text_field: str) -> list[str]:
    """The file's documents, in order, stripped of surrounding white space, without empty ones.

    Raises UnreadableFileError.
    """
    kind = format_of(path)
    if kind is None:
        raise UnreadableFileError(f"unknown format; use one of {formats_in_words()}")
    try:
        documents = [text for found in READERS[kind](path, text_field) if (text := _encodable(found).strip())]
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise UnreadableFileError(f"not UTF-8 text ({where}); convert it first") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UnreadableFileError(f"cannot be read ({error}); check the file and its suffix") from error
    if not documents:
        raise UnreadableFileError("has no text; use another file")
    if any("\0" in document for document in documents):
        raise UnreadableFileError("is binary (has zero bytes); use a text file")
    return documents


def formats_in_words() -> str:
    """The suffixes that can be read, for messages."""
    return f"{', '.join(READERS)}, plain or as {', '.join(OPENERS)}"


def _encodable(text: str) -> str:
    """JSON may hold halves of surrogate pairs, which UTF-8 cannot: they become question marks."""
    return text.encode("utf-8", "replace").decode()


def _open_text(path: Path) -> TextIO:
    opener = OPENERS.get(path.suffix.lower(), open)
    handle: TextIO = opener(path, "rt", encoding="utf-8-sig", newline=None)
    return handle


def _read_text(path: Path, text_field: str) -> list[str]:
    """Articles if it begins with a WikiText heading, else what blank lines separate, else lines."""
    with _open_text(path) as handle:
        text = _strip_csv_quotes(handle.read())
    if HEADING.match(text):
        starts = [match.start(1) for match in HEADING.finditer(text)]
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    paragraphs = re.split(r"\n[ \t]*\n", text.strip())
    return paragraphs if len(paragraphs) > 1 else text.split("\n")


def _strip_csv_quotes(text: str) -> str:
    """Undo an export of lines of text as a csv file of one column; other text is returned as it is."""
    if not text.startswith('"'):
        return text
    try:
        rows = list(_csv_rows(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return text
    if any(len(row) > 1 for row in rows):
        return text
    lines = (row[0] if row else "" for row in rows)
    return "\n".join(line.removesuffix("\n") for line in lines)


def _csv_rows(handle: TextIO, **options: Any) -> Iterator[list[str]]:
    """The rows of a csv file, with fields of any length (the csv module's limit is one global number)."""
    with _field_limit:
        before = csv.field_size_limit(sys.maxsize)
        try:
            yield from csv.reader(handle, **options)
        finally:
            csv.field_size_limit(before)


def _read_table(path: Path, text_field: str) -> list[str]:
    """csv or tsv with a header line; tabs separate without any quoting."""
    tabs = format_of(path) == ".tsv"
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    with _open_text(path) as handle:
        rows = _csv_rows(handle, **options)
        try:
            header = next(rows, [])
            column = _column(header, text_field)
            return [row[column] for row in rows if len(row) > column]
        except csv.Error as error:
            raise UnreadableFileError(f"is not a table ({error}); check the file and its suffix") from error
        finally:
            rows.close()  # type: ignore[attr-defined]  # a generator: gives the limit back now


def _column(header: list[str], text_field: str) -> int:
    if text_field not in header:
        raise UnreadableFileError(_no_field(header, text_field))
    return header.index(text_field)


def _read_parquet(path: Path, text_field: str) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        wanted = [name for name in (text_field, "messages") if name in names][:1]
        if not wanted:
            raise UnreadableFileError(_no_field(names, text_field))
        records = file.read(columns=wanted).to_pylist()
    except pyarrow.ArrowException as error:
        raise UnreadableFileError(
            f"is not a parquet file ({error}); check the file and its suffix"
        ) from error
    return [_record_text(record, text_field) for record in records]


def _read_lines_of_json(path: Path, text_field: str) -> list[str]:
    with _open_text(path) as handle:
        return [_record_text(record, text_field) for record in _json_lines(handle)]


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UnreadableFileError(f"line {number} is not JSON ({error.msg}); repair it") from error


def _read_json(path: Path, text_field: str) -> list[str]:
    """One JSON list of records, or one record per line under the name .json."""
    with _open_text(path) as handle:
        text = handle.read()
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        records = list(_json_lines(text.split("\n")))
    else:
        records = whole if isinstance(whole, list) else [whole]
    return [_record_text(record, text_field) for record in records]


def _record_text(record: object, text_field: str) -> str:
    """A string, a record's text field, or its chat messages, each as "role: content"."""
    if isinstance(record, str):
        return record
    fields = record if isinstance(record, dict) else {}
    if isinstance(fields.get(text_field), str):
        return str(fields[text_field])
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise UnreadableFileError(_no_field(list(fields), text_field))
    try:
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)
    except (KeyError, TypeError) as error:
        raise UnreadableFileError("a message lacks 'role' or 'content'; add them") from error


def _no_field(found: list[str], text_field: str) -> str:
    names = ", ".join(map(str, found))[:120] or "nothing"
    return f"has no field '{text_field}' (text) or 'messages' but {names}; set dataset.text_field="


READERS: Mapping[str, Callable[[Path, str], list[str]]] = {
    ".txt": _read_text,
    ".tokens": _read_text,
    ".raw": _read_text,
    ".jsonl": _read_lines_of_json,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}
