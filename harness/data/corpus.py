"""A corpus: documents, split into those for training and those held out for evaluation."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gradwire.harness.data.marks import without_marks


@dataclass(frozen=True)
class Documents:
    """Documents that are read again on every pass, so that nobody keeps them in memory."""

    read: Callable[[], Iterable[str]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, which allows several passes."""

    name: str
    train: Iterable[str]
    held_out: Iterable[str]
    split: str
    """How the held-out documents were chosen, for the record."""
    streaming: bool = False
    """Whether reading can stop after the held-out documents that evaluation needs."""


class CorpusSource(Protocol):
    """Where a corpus comes from. It is asked for documents only when no prepared data is cached."""

    def fingerprint(self) -> str:
        """A value that changes when the documents may have changed; quick to compute (file names, sizes,
        times)."""
        ...

    def load(self) -> Corpus:
        """Finds the documents. Raises ValueError, in one line, if there is nothing to train on."""
        ...


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
    """Hex digest of both splits' documents."""
    splits = (("train", train), ("held_out", held_out))
    identity = "".join(f"{name} {tally.num_documents} {tally.digest}\n" for name, tally in splits)
    return hashlib.sha256(identity.encode()).hexdigest()


def split_documents(
    documents: Iterable[str], fraction: float, *, one_by_one: bool
) -> tuple[Documents, Documents, str]:
    """Splits documents that are not split already by hash; returns (train, held out, how)."""
    if one_by_one:
        return *split_one_by_one(documents, fraction), f"sha256 in the last {fraction:.0%} of its range"
    return *split_by_hash(documents, fraction), f"last {fraction:.0%} by sha256"


def split_by_hash(documents: Iterable[str], fraction: float) -> tuple[Documents, Documents]:
    """Returns (train, held out): the documents with the last `fraction` of hash values are held out.

    A document's split depends on its text and hardly on the other documents; copies of a document share a
    split. At least one document is held out. train may be empty if all documents are alike.
    """
    import numpy as np  # refusals, which load this module, do without it

    values = np.asarray(array("Q", map(hash_value, documents)))
    num_held_out = max(1, math.ceil(fraction * len(values)))
    first_held_out = int(np.partition(values, -num_held_out)[-num_held_out]) if len(values) else 0
    return _split_at(documents, first_held_out)


def split_one_by_one(documents: Iterable[str], fraction: float) -> tuple[Documents, Documents]:
    """Returns (train, held out) without reading everything first: the last `fraction` of the hash range is
    held out.

    If no document falls into that range, the last one by hash is held out. It stays in train as well, where
    packing skips whatever is held out.
    """
    first_held_out = round((1 - fraction) * 2**64)
    train, _ = _split_at(documents, first_held_out)
    return train, Documents(lambda: _in_range_or_last(documents, first_held_out))


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


def _split_at(documents: Iterable[str], first_held_out: int) -> tuple[Documents, Documents]:
    return (
        Documents(lambda: (text for text in documents if hash_value(text) < first_held_out)),
        Documents(lambda: (text for text in documents if hash_value(text) >= first_held_out)),
    )
