"""The text that comes with every Python: its language reference and its library's docstrings.

This is enough English (and code) to train a tiny model without fetching anything. It differs between Python
versions, so its sha256 is part of every record.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradwire.harness.data.corpus import Corpus, split_documents
from gradwire.harness.runtime.memory import collector_paused

LEAST_BYTES = 1_000_000

SKIPPED = frozenset(
    {"__pycache__", "test", "tests"}
    # Distributions leave these out or package them apart: without them, one Python version is one corpus.
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
"""Where nodes keep statements, which alone hold definitions: expressions are most of a tree."""


def _owners(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """What may have a docstring."""
    found: list[ast.AST] = [tree]
    for node in found:
        if isinstance(node, _OWNERS):
            yield node
        for block in _BLOCKS:
            found += getattr(node, block, ())
