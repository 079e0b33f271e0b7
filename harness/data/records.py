"""The text of records, i.e. of rows of files or of a published data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from gradwire.harness.data.chat import ChatFormat


class UnreadableFileError(ValueError):
    """Raised for data without usable text; the message says why and what to do."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Converts UnreadableFileError to a ValueError for users, which begins with the location of the data."""
    try:
        yield
    except UnreadableFileError as error:
        raise ValueError(f"{where}: {error}") from error


def record_texts(records: Iterable[object], text_field: str, chat: ChatFormat) -> Iterator[str]:
    """Yields the text of each record: a string itself, a record's text field, or its conversation (in that
    field, else in `messages`). A null is empty, as an empty field of a table is.

    Raises UnreadableFileError, which names the record, if one has none of these or a message is malformed.
    """
    for number, record in enumerate(records, start=1):
        yield _text(record, number, text_field, chat)


def _text(record: object, number: int, text_field: str, chat: ChatFormat) -> str:
    if isinstance(record, str):
        return record
    if not isinstance(record, Mapping):
        raise UnreadableFileError(
            f"record {number} is {_kind(record)}, neither text nor a record with fields; leave it out"
        )
    field = field_of_text(record, text_field)
    if field is None:
        raise no_text_field(record, text_field, number)
    value = record[field]
    if value is None:
        return ""
    if isinstance(value, str) and field == text_field:
        return value
    if not isinstance(value, list):
        remedy = "set" if isinstance(value, str) else "correct it, or set"
        raise UnreadableFileError(
            f"record {number}: '{field}' is {_kind(value)}, not "
            f"{'text' if field == text_field else 'a conversation'}; {remedy} dataset.text_field="
        )
    for message in value:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise UnreadableFileError(f"record {number}: a message lacks 'role' or 'content'; add them")
        if not isinstance(message["content"], str):
            kind = _kind(message["content"])
            raise UnreadableFileError(
                f"record {number}: a message's 'content' is {kind}, not text; leave that conversation out"
            )
    return chat(value)


def _kind(value: object) -> str:
    """The name of the kind of a value of JSON or of a parquet file."""
    if value is None:
        return "null"
    for kind, name in ((bool, "true or false"), ((int, float), "a number"), (str, "text"), (list, "a list")):
        if isinstance(value, kind):
            return name
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def field_of_text(names: Iterable[str], text_field: str) -> str | None:
    """The field of a record that holds its text: `text_field`, else `messages`, else None."""
    return next((name for name in (text_field, "messages") if name in names), None)


def no_text_field(names: Iterable[str], text_field: str, record: int = 1) -> UnreadableFileError:
    """The error for a table, or for record number `record`, whose fields include no text."""
    wanted = "'messages'" if text_field == "messages" else f"'{text_field}' (text) or 'messages'"
    found = ", ".join(map(str, names))[:120] or "nothing"
    what = f"record {record} " if record > 1 else ""  # the first one stands for all
    return UnreadableFileError(f"{what}has no field {wanted} but {found}; set dataset.text_field=")


def encodable(text: str) -> str:
    """Replaces unpaired surrogates by question marks: JSON may contain them, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
