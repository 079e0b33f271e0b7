"""Turns lines of text into documents, one at a time: articles, else paragraphs, else lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice

HEADING = re.compile(r" ?= (?!=).*(?<!=) = ?")
"""WikiText's first line of an article, ` = Title = ` between blank lines; a section's title has more
signs."""


def split_text(lines: Iterable[str]) -> Iterator[str]:
    """Splits into articles if the lines begin with a WikiText heading, else at blank lines, else into lines.

    `lines` have no line feed at their end.
    """
    return _articles_or(lines, _paragraphs)


def join_rows(rows: Iterable[str]) -> Iterator[str]:
    """Returns the rows unchanged, or joined if they are the lines of WikiText articles.

    WikiText is published as records with one row per line, "" for a blank one.
    """
    return _articles_or((row.removesuffix("\n") for row in rows), iter)


def _articles_or(lines: Iterable[str], otherwise: Callable[[Iterator[str]], Iterator[str]]) -> Iterator[str]:
    rest = iter(lines)
    head = list(islice((line for line in rest if line.strip()), 1))
    head += islice(rest, 1)
    is_wikitext = len(head) == 2 and HEADING.fullmatch(head[0]) and not head[1].strip()
    return (_articles if is_wikitext else otherwise)(chain(head, rest))


def _articles(lines: Iterator[str]) -> Iterator[str]:
    """Yields every article with its heading; lines of white space become empty, since some editions have
    them."""
    article: list[str] = []
    before, line = "", next(lines)
    for after in chain(lines, ["end"]):
        if HEADING.fullmatch(line) and not before.strip() and not after.strip() and article:
            yield "\n".join(article)
            article = []
        article.append(line if line.strip() else "")
        before, line = line, after
    yield "\n".join(article)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    found = ("\n".join(group) for blank, group in groupby(lines, key=_is_blank) if not blank)
    head = list(islice(found, 2))
    if len(head) == 1:
        head = head[0].split("\n")
    return chain(head, found)


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")
