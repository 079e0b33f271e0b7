"""A corpus: documents, split into those for training and those held out for evaluation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order; no document is in both splits."""

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    split: str
    """How the held-out documents were chosen, for the record."""

    @cached_property
    def sha256(self) -> str:
        """Hex digest of both splits: every document's length and UTF-8 bytes, in order."""
        digest = hashlib.sha256()
        for label, documents in (("train", self.train), ("held_out", self.held_out)):
            digest.update(f"{label} {len(documents)}\n".encode())
            for document in documents:
                encoded = document.encode()
                digest.update(f"{len(encoded)}\n".encode() + encoded)
        return digest.hexdigest()

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(len(document.encode()) for document in self.train + self.held_out)


class CorpusSource(Protocol):
    """Where a corpus comes from; asked for the documents only when nothing prepared is cached."""

    def fingerprint(self) -> str:
        """Changes when the documents may have; quick to compute (file names, sizes, times)."""
        ...

    def load(self) -> Corpus:
        """Read the documents. Raises ValueError, in one line, if there is nothing to train on."""
        ...


def split_by_hash(documents: Sequence[str], fraction: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(train, held out): the documents with the last `fraction` of sha256 values are held out.

    A document's split depends on its text and hardly on its neighbours, and copies of a document
    share a split. At least one document is held out; train may be empty if all are alike.
    """
    digests = [hashlib.sha256(document.encode()).digest() for document in documents]
    num_held_out = max(1, math.ceil(fraction * len(documents)))
    first_held_out = sorted(digests)[-num_held_out]
    pairs = list(zip(documents, digests, strict=True))
    train = tuple(document for document, digest in pairs if digest < first_held_out)
    held_out = tuple(document for document, digest in pairs if digest >= first_held_out)
    return train, held_out
