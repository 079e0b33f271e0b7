"""Data that needs no files: text that comes with Python, examples made from it, and small images.

The text is Python's language reference and the docstrings of its library, enough English (and code) to train
a tiny model without fetching anything. It differs between Python versions, so its sha256 is part of every
record.
"""

from __future__ import annotations

import ast
import hashlib
import random
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradwire.harness.data.corpus import Corpus, Passes, split_documents
from gradwire.harness.data.examples import Examples, LabelledText, Question
from gradwire.harness.data.images import Images, LabelledImage
from gradwire.harness.data.settings import EMBEDDED_SIZE as SIZE
from gradwire.harness.runtime.memory import collector_paused
from gradwire.harness.runtime.seeding import derive_seed

LEAST_BYTES = 1_000_000

SKIPPED = frozenset(
    {"__pycache__", "test", "tests"}
    # Distributions omit these or package them separately; without them, one Python version gives one corpus.
    | {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo"}
)


@dataclass(frozen=True)
class EmbeddedCorpus:
    """The topics of `help()` and the standard library's docstrings, one document per topic and module."""

    held_out_fraction: float = 0.05

    def fingerprint(self) -> str:
        library = _library()
        files = [(path.as_posix(), (library / path).stat().st_size) for path in _source_files()]
        return hashlib.sha256(repr((sys.version, files, self.held_out_fraction)).encode()).hexdigest()

    @collector_paused()  # syntax trees are large and hold no circles
    def load(self) -> Corpus:
        documents = (*topics(), *_docstring_documents())
        num_bytes = sum(len(document.encode()) for document in documents)
        if num_bytes < LEAST_BYTES:
            raise ValueError(
                f"dataset=embedded: this Python has only {num_bytes} bytes of text (no .py sources under "
                f"{_library()}); use dataset.path=<file or folder of text>"
            )
        train, held_out, split = split_documents(documents, self.held_out_fraction, one_by_one=False)
        return Corpus("embedded", train, held_out, split)


def topics() -> list[str]:
    """The topics of `help()`, which are the language reference, one document each."""
    from pydoc_data.topics import topics as found

    return [found[name].strip() for name in sorted(found)]


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _source_files() -> list[Path]:
    """The standard library's source files, without installed packages: relative paths, sorted."""
    library, names = _library(), sys.stdlib_module_names - SKIPPED  # its place is looked up anew every time
    entries = [entry for entry in library.iterdir() if entry.name.removesuffix(".py") in names]
    files = [entry for entry in entries if entry.suffix == ".py"]
    files += [file for entry in entries if entry.is_dir() for file in entry.rglob("*.py")]
    relative = (file.relative_to(library) for file in files)
    return sorted((path for path in relative if not SKIPPED & set(path.parts)), key=Path.as_posix)


def _docstring_documents() -> Iterator[str]:
    library = _library()
    for relative in _source_files():
        docstrings = _docstrings((library / relative).read_bytes())
        if docstrings:
            yield "\n\n".join(docstrings)


def _docstrings(source: bytes) -> list[str]:
    """The docstrings of a module, its classes and functions, in source order; no code is executed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a few files are broken on purpose
        return []
    owners = sorted(_owners(tree), key=lambda node: getattr(node, "lineno", 0))
    return [text for owner in owners if (text := ast.get_docstring(owner))]


_OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields in which syntax nodes keep statements. Only these can hold definitions, and skipping expressions
skips most of a tree."""


def _owners(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The syntax nodes that may have a docstring."""
    found: list[ast.AST] = [tree]
    for node in found:
        if isinstance(node, _OWNERS):
            yield node
        for block in _BLOCKS:
            found += getattr(node, block, ())


PASSAGE, ENDING, NUM_CHOICES = 16, 6, 4
"""Words of a passage, words of each ending, and the number of endings that a question offers."""
STRIDE = 64
"""One question is made per this many words, which gives more questions than a tiny model needs."""

STRIDES = {"reference": 16, "docstrings": 48}
"""One labelled passage is made per this many words of a book, so that both books have about the same
number.
"""


@dataclass(frozen=True)
class EmbeddedQuestions:
    """Questions that ask which of four passages follows."""

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
    """Passages, labelled by the book that they come from."""

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


LABELS = ("level", "upright", "rising", "falling")
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Directions across the stripes, as steps to the right and down."""

NUM_TRAIN, NUM_HELD_OUT = 1600, 400
WIDTHS = (2, 5)
"""Smallest and largest (exclusive) width of a stripe in pixels."""
NOISE = 48
"""The largest noise added to or subtracted from a value (0 to 255)."""


@dataclass(frozen=True)
class EmbeddedImages:
    """Images of stripes, labelled by their direction."""

    def fingerprint(self) -> str:
        return f"stripes {LABELS} {SIZE} {NUM_TRAIN} {NUM_HELD_OUT} {WIDTHS} {NOISE}"

    def load(self) -> Images:
        return Images(
            name="embedded: which way stripes run",
            train=Passes(lambda: _images("train", NUM_TRAIN)),
            held_out=Passes(lambda: _images("held out", NUM_HELD_OUT)),
            split=f"{NUM_TRAIN} and {NUM_HELD_OUT} images",
            labels=LABELS,
        )


def _images(split: str, count: int) -> Iterator[LabelledImage]:
    draw = np.random.Generator(np.random.PCG64(derive_seed("embedded images", split)))
    down, right = np.mgrid[:SIZE, :SIZE]
    for number in range(count):
        label = number % len(LABELS)
        along_right, along_down = DIRECTIONS[label]
        width, start = draw.integers(*WIDTHS), draw.integers(100)
        stripe = (along_right * right + along_down * down + start + 100 * SIZE) // width % 2
        colors = draw.integers(0, 256, (2, 3))
        values = colors[stripe] + draw.integers(-NOISE, NOISE + 1, (SIZE, SIZE, 3))
        yield LabelledImage(values.clip(0, 255).astype(np.uint8), label)
