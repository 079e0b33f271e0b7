"""A user's own text: `dataset.path=` names a file or a folder, which may already be split."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gradwire.harness.data.chat import ChatFormat, plain_chat
from gradwire.harness.data.corpus import Corpus, Passes, join_rows, split_documents
from gradwire.harness.data.formats import format_of, formats_in_words, holds_rows, read_pieces
from gradwire.harness.data.records import UnreadableFileError, encodable
from gradwire.harness.files.hostile import files_in
from gradwire.harness.files.reading import UnusableFileError

REMEDY = "put the file itself there, or choose a folder that holds only text"

SPLIT_WORDS = {
    "train": {"train", "training"},
    "valid": {"valid", "validation", "val", "dev"},
    "test": {"test"},
}


@dataclass(frozen=True)
class TextCorpus:
    """The documents of a file or folder.

    If a folder has files named after a train split, these are trained on, and the files named after a valid
    split, or a test split if there is none, are evaluated on; all other files are ignored.
    (`published_splits` are looked for first: UltraChat has train_sft and train_gen.) Otherwise all files are
    read, and `held_out_fraction` of the documents is held out by hash.
    """

    path: Path
    held_out_fraction: float = 0.05
    text_field: str = "text"
    chat: ChatFormat = plain_chat
    streaming: bool = False
    published_splits: tuple[str, str] | None = None
    """The published names of the (train, held-out) splits, if they are not train and valid."""

    def fingerprint(self) -> str:
        seen = describe_files(self._files())
        settings = (self.held_out_fraction, self.text_field, self.streaming, self.published_splits)
        return hashlib.sha256(repr((seen, settings)).encode()).hexdigest()

    def load(self) -> Corpus:
        train_files, held_out_files = self._splits()
        documents = Passes(lambda: self._read(train_files))
        train: Iterable[str] = documents
        if held_out_files:
            held_out = Passes(lambda: self._read(held_out_files))
            split = f"files {', '.join(file.name for file in held_out_files)}"
        else:
            train, held_out, split = split_documents(
                documents, self.held_out_fraction, one_by_one=self.streaming
            )
        if next(iter(train), None) is None:
            raise self._refusal("has no second document to hold out; separate documents by blank lines")
        return Corpus(self.path.resolve().name, train, held_out, split, self.streaming)

    def _files(self) -> list[Path]:
        """All files with a known suffix, sorted; the path itself if it is a file."""
        with searching(f"dataset.path={self.path}"):
            if self.path.is_file():
                return [self.path]
            if not self.path.is_dir():
                raise self._refusal("no such file or folder; correct the path")
            found = files_below(self.path, wanted=format_of)
        if not found:
            raise self._refusal(f"has no file in a known format ({formats_in_words()}); add one")
        return found

    def _splits(self) -> tuple[list[Path], list[Path]]:
        """(train, held-out) files; held-out is empty if the documents are to be split by hash."""
        files = self._files()
        if self.published_splits is not None:
            train, held_out = ([file for file in files if _names(file, s)] for s in self.published_splits)
            if train and held_out:
                return train, held_out
        named = {split: [file for file in files if self._split_of(file) == split] for split in SPLIT_WORDS}
        if not named["train"]:
            return files, []
        return named["train"], named["valid"] or named["test"]

    def _split_of(self, file: Path) -> str | None:
        """The split named by the file, or else by the closest folder above it inside the path."""
        for part in reversed(file.relative_to(self.path).parts):
            words = set(re.split("[^a-z]+", part.lower()))
            for split, names in SPLIT_WORDS.items():
                if words & names:
                    return split
        return None

    def _read(self, files: list[Path]) -> Iterator[str]:
        """The non-empty documents of all files, stripped of surrounding white space.

        A file of a folder without text is skipped with a warning.
        """
        refusals: list[ValueError] = []
        is_empty = True
        for rows, group in groupby(files, key=holds_rows):
            pieces = self._pieces(list(group), refusals)
            for document in join_rows(pieces) if rows else pieces:
                if text := encodable(document).strip():
                    is_empty = False
                    yield text
        if refusals and is_empty:
            raise refusals[0]
        for refusal in refusals:
            warnings.warn(f"skipped: {refusal}", stacklevel=1)  # of one place: shown once

    def _pieces(self, files: list[Path], refusals: list[ValueError]) -> Iterator[str]:
        """The contents of all files; for files without any the reason is added to `refusals`."""
        for file in files:
            is_empty = True
            try:
                for piece in read_pieces(file, self.text_field, self.chat):
                    is_empty = is_empty and not piece.strip()
                    yield piece
            except UnreadableFileError as error:
                if not is_empty:
                    raise self._refusal(str(error), file) from error
                refusals.append(self._refusal(str(error), file))

    def _refusal(self, reason: str, file: Path | None = None) -> ValueError:
        inside = f"{os.path.relpath(file, self.path)}: " if file and file != self.path else ""
        return ValueError(f"dataset.path={self.path}: {inside}{reason}")


def _names(file: Path, split: str) -> bool:
    return re.search(rf"(?<![a-z]){re.escape(split)}(?![a-z])", file.name.lower()) is not None


def files_below(
    folder: Path, root: Path | None = None, wanted: Callable[[Path], object] = bool
) -> list[Path]:
    """All files below a folder, sorted, without hidden files and links to folders; see `files_in`. Raises
    UnusableFileError."""
    return sorted(files_in(folder, remedy=REMEDY, hidden=False, root=root, wanted=wanted))


@contextmanager
def searching(where: str) -> Iterator[None]:
    """Converts errors in listing a folder's files to one line that begins with the location of the data."""
    try:
        yield
    except UnusableFileError as error:
        raise ValueError(f"{where}: {error}") from None
    except OSError as error:
        raise ValueError(
            f"{where}: cannot be searched ({error.strerror}: {error.filename}); choose a folder that holds "
            "text alone"
        ) from None


def describe_files(files: list[Path]) -> list[tuple[str, int, int]]:
    """Name, size and modification time of every file: if the list changes, the data may have changed."""
    stats = [(str(file.resolve()), file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
