"""Corpora: lines and rows are joined to documents, and documents are split into a training and a held-out
split."""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Generic, Protocol, TypeVar

from gradwire.harness.data.chat import without_marks

Item = TypeVar("Item")
Held = TypeVar("Held", covariant=True)


@dataclass(frozen=True)
class Passes(Generic[Item]):
    """Items that are read anew on every pass instead of being kept in memory."""

    read: Callable[[], Iterable[Item]]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.read())


class DataSource(Protocol[Held]):
    """A source of data: files, the hub or Python itself. Loaded only if there is no prepared data in the
    cache."""

    def fingerprint(self) -> str:
        """A value that changes whenever the data may have changed, computed from names, sizes and times."""
        ...

    def load(self) -> Held:
        """Finds the data. Raises ValueError, in one line, if it cannot be used."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, which allows several passes."""

    name: str
    train: Iterable[str]
    held_out: Iterable[str]
    split: str
    """The way in which held-out documents were chosen, for the record."""
    streaming: bool = False
    """True if reading can stop after the held-out documents that evaluation needs."""


def hash_value(document: str) -> int:
    """The first 8 bytes of the document's sha256, without marks: uniform on 0 ... 2^64 - 1."""
    return int.from_bytes(hashlib.sha256(without_marks(document).encode()).digest()[:8])


class Tally:
    """Counts and hashes the documents of a split, in order: the length and UTF-8 bytes of each."""

    def __init__(self) -> None:
        self.num_documents = self.num_bytes = 0
        self._digest = hashlib.sha256()

    def add(self, document: str) -> None:
        encoded = document.encode()
        self.num_documents += 1
        self.num_bytes += len(encoded)
        self._digest.update(f"{len(encoded)}\n".encode() + encoded)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def digest_of(train: Tally, held_out: Tally) -> str:
    """Hex digest of the documents of both splits."""
    splits = (("train", train), ("held_out", held_out))
    identity = "".join(f"{name} {tally.num_documents} {tally.digest}\n" for name, tally in splits)
    return hashlib.sha256(identity.encode()).hexdigest()


def split_documents(
    documents: Iterable[str], fraction: float, *, one_by_one: bool
) -> tuple[Passes[str], Passes[str], str]:
    """Splits documents by hash if they are not already split; returns (train, held out, description)."""
    if one_by_one:
        return *split_one_by_one(documents, fraction), f"sha256 in the last {fraction:.0%} of its range"
    return *split_by_hash(documents, fraction), f"last {fraction:.0%} by sha256"


def split_by_hash(documents: Iterable[str], fraction: float) -> tuple[Passes[str], Passes[str]]:
    """Returns (train, held out): the documents with the last `fraction` of hash values are held out.

    A document's split depends on its text and hardly on other documents; copies of a document share a split.
    At least one document is held out. train may be empty if all documents are alike.
    """
    import numpy as np  # refusals, which load this module, do without it

    values = np.asarray(array("Q", map(hash_value, documents)))
    num_held_out = max(1, math.ceil(fraction * len(values)))
    first_held_out = int(np.partition(values, -num_held_out)[-num_held_out]) if len(values) else 0
    return _split_at(documents, first_held_out)


def split_one_by_one(documents: Iterable[str], fraction: float) -> tuple[Passes[str], Passes[str]]:
    """Returns (train, held out) without reading everything first: the last `fraction` of the hash range is
    held out.

    If no document falls into that range, the last one by hash is held out. It stays in train as well, where
    packing skips held-out documents.
    """
    first_held_out = round((1 - fraction) * 2**64)
    train, _ = _split_at(documents, first_held_out)
    return train, Passes(lambda: _in_range_or_last(documents, first_held_out))


def _in_range_or_last(documents: Iterable[str], first_held_out: int) -> Iterator[str]:
    last: tuple[int, str] | None = None
    for text in documents:
        value = hash_value(text)
        if value >= first_held_out:
            yield text
        if last is None or value > last[0]:
            last = (value, text)
    if last is not None and last[0] < first_held_out:
        yield last[1]


def _split_at(documents: Iterable[str], first_held_out: int) -> tuple[Passes[str], Passes[str]]:
    return (
        Passes(lambda: (text for text in documents if hash_value(text) < first_held_out)),
        Passes(lambda: (text for text in documents if hash_value(text) >= first_held_out)),
    )


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
