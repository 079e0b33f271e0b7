"""The text of records, which are rows of files or of a published data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradwire.harness.data.chat import ChatFormat


class UnreadableFileError(ValueError):
    """Data without usable text; the message says why and what to do."""


def record_text(record: object, text_field: str, chat: ChatFormat) -> str:
    """Returns a string itself, a record's text field, or its conversation (in that field, else in
    `messages`).

    Raises UnreadableFileError if a record has none of these, or if a message is malformed.
    """
    if isinstance(record, str):
        return record
    fields: Mapping[str, Any] = record if isinstance(record, Mapping) else {}
    if isinstance(fields.get(text_field), str):
        return str(fields[text_field])
    messages = fields[wanted] if (wanted := field_of_text(fields, text_field)) else None
    if not isinstance(messages, list):
        raise no_text_field(fields, text_field)
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise UnreadableFileError("a message lacks 'role' or 'content'; add them")
        if not isinstance(message["content"], str):
            raise UnreadableFileError("a message's 'content' is not text; leave that conversation out")
    return chat(messages)


def field_of_text(names: Iterable[str], text_field: str) -> str | None:
    """Which field of a record holds its text: `text_field`, else `messages`, else None."""
    return next((name for name in (text_field, "messages") if name in names), None)


def no_text_field(names: Iterable[str], text_field: str) -> UnreadableFileError:
    """The error for records with these fields."""
    wanted = "'messages'" if text_field == "messages" else f"'{text_field}' (text) or 'messages'"
    found = ", ".join(map(str, names))[:120] or "nothing"
    return UnreadableFileError(f"has no field {wanted} but {found}; set dataset.text_field=")


def encodable(text: str) -> str:
    """Replaces halves of surrogate pairs by question marks: JSON may hold them, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
