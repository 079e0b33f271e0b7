"""The text of records: of rows of files, and of rows of a published data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradwire.harness.data.chat import ChatFormat


class UnreadableFileError(ValueError):
    """Data without usable text; the message says why and what to do."""


def record_text(record: object, text_field: str, chat: ChatFormat) -> str:
    """A string, a record's text field, or its conversation (in that field, else in `messages`).

    Raises UnreadableFileError if it has none of these, or a message that is none.
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
    """Which of a record's fields holds its text: `text_field`, else `messages`, else None."""
    return next((name for name in (text_field, "messages") if name in names), None)


def no_text_field(names: Iterable[str], text_field: str) -> UnreadableFileError:
    """The refusal of records with these fields."""
    wanted = "'messages'" if text_field == "messages" else f"'{text_field}' (text) or 'messages'"
    found = ", ".join(map(str, names))[:120] or "nothing"
    return UnreadableFileError(f"has no field {wanted} but {found}; set dataset.text_field=")


def encodable(text: str) -> str:
    """JSON may hold halves of surrogate pairs, which UTF-8 cannot: they become question marks."""
    return text.encode("utf-8", "replace").decode()
