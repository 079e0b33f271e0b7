"""Questions and labelled sentences made of the embedded text, so that every objective runs without data.

A question asks which of four passages, all of them real text, follows another one. A sentence is a passage
and its label says which of two books it comes from: Python's language reference or its library's docstrings.
Both are pure functions of the text. Of questions, documents are held out; of sentences, passages.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradwire.harness.data.corpus import split_documents
from gradwire.harness.data.embedded import EmbeddedCorpus, topics
from gradwire.harness.data.examples import Examples, LabelledText, Question
from gradwire.harness.runtime.seeding import derive_seed

PASSAGE, ENDING, NUM_CHOICES = 16, 6, 4
"""Words of a passage and of what follows it; how many endings a question offers."""
STRIDE = 64
"""One question is made of so many words: there are more than a tiny model needs."""

STRIDES = {"reference": 16, "docstrings": 48}
"""One labelled passage is taken of so many words of a book, so that both have about as many."""


@dataclass(frozen=True)
class EmbeddedQuestions:
    """Which of four passages follows."""

    text: EmbeddedCorpus

    def fingerprint(self) -> str:
        return _fingerprint(self.text, PASSAGE, ENDING, NUM_CHOICES, STRIDE)

    def load(self) -> Examples[Question]:
        corpus = self.text.load()
        return Examples(
            name="embedded: which of four passages of Python's documentation follows",
            train=_questions(corpus.train),
            held_out=_questions(corpus.held_out),
            split=f"documents, {corpus.split}",
            metric="accuracy",
        )


@dataclass(frozen=True)
class EmbeddedSentences:
    """Which of two books a passage comes from."""

    text: EmbeddedCorpus

    def fingerprint(self) -> str:
        return _fingerprint(self.text, PASSAGE, STRIDES)

    def load(self) -> Examples[LabelledText]:
        corpus, reference = self.text.load(), frozenset(topics())
        passages = dict[str, int]()
        for document in (*corpus.train, *corpus.held_out):
            label = 0 if document in reference else 1
            for words in _passages(document, PASSAGE, [*STRIDES.values()][label]):
                passages.setdefault(" ".join(words), label)
        train, held_out, split = split_documents(passages, self.text.held_out_fraction, one_by_one=False)
        return Examples(
            name="embedded: whether a passage is of Python's language reference or of docstrings",
            train=[LabelledText(passage, None, passages[passage]) for passage in train],
            held_out=[LabelledText(passage, None, passages[passage]) for passage in held_out],
            split=f"passages, {split}",
            metric="accuracy",
            labels=tuple(STRIDES),
        )


def _fingerprint(text: EmbeddedCorpus, *settings: object) -> str:
    return hashlib.sha256(repr((text.fingerprint(), settings)).encode()).hexdigest()


def _questions(documents: Iterable[str]) -> Sequence[Question]:
    passages = [words for text in documents for words in _passages(text, PASSAGE + ENDING, STRIDE)]
    endings = [" ".join(words[PASSAGE:]) for words in passages]
    return [
        _question(" ".join(words[:PASSAGE]), ending, endings)
        for words, ending in zip(passages, endings, strict=True)
    ]


def _question(passage: str, ending: str, endings: Sequence[str]) -> Question:
    draw = random.Random(derive_seed("embedded question", passage, ending))
    others = list[str]()
    while len(others) < NUM_CHOICES - 1:
        other = draw.choice(endings)
        if other != ending and other not in others:
            others.append(other)
    answer = draw.randrange(NUM_CHOICES)
    return Question(f"What follows? {passage}", (*others[:answer], ending, *others[answer:]), answer)


def _passages(document: str, length: int, stride: int) -> Iterator[list[str]]:
    words = document.split()
    for start in range(0, len(words) - length + 1, stride):
        yield words[start : start + length]
