"""Marks inside a document around what the loss is on: they travel with the text until it becomes tokens.

They are two noncharacters of Unicode, which no text has.
"""

from __future__ import annotations

from collections.abc import Sequence

BEGIN, END = "\ufdd0", "\ufdd1"

Spans = list[tuple[int, int]]
"""First and last (exclusive) character of each marked part."""


def without_marks(text: str) -> str:
    """The text as it is meant to be read."""
    return text.replace(BEGIN, "").replace(END, "") if BEGIN in text or END in text else text


def marked(text: str) -> str:
    """The text between two marks."""
    return f"{BEGIN}{without_marks(text)}{END}"


def marked_at(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text with marks around `spans`, which are in order and do not overlap."""
    parts, done = [], 0
    for start, stop in spans:
        parts += [text[done:start], marked(text[start:stop])]
        done = stop
    return "".join([*parts, text[done:]])


def spans_of(text: str) -> tuple[str, Spans]:
    """The text without its marks, and where they were."""
    spans, length = Spans(), 0
    outside, *parts = text.split(BEGIN)
    plain = [outside]
    length = len(outside)
    for part in parts:
        inside, _, outside = part.partition(END)
        spans.append((length, length + len(inside)))
        plain += [inside, outside]
        length += len(inside) + len(outside)
    return "".join(plain), spans


def counted_tokens(offsets: Sequence[tuple[int, int]], spans: Spans) -> list[bool]:
    """Which tokens have a character inside a span; `offsets` are the tokens' first and last characters."""
    found, index = [], 0
    for start, stop in offsets:
        while index < len(spans) and spans[index][1] <= start:
            index += 1
        found.append(index < len(spans) and stop > spans[index][0] and start < stop)
    return found
