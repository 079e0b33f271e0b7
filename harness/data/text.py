"""Your own text: `dataset.path=` names a file, or a folder that may be split already."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from .corpus import Corpus, split_by_hash
from .formats import UnreadableFileError, format_of, formats_in_words, read_documents

SPLIT_WORDS = {
    "train": {"train", "training"},
    "valid": {"valid", "validation", "val", "dev"},
    "test": {"test"},
}


@dataclass(frozen=True)
class TextCorpus:
    """The documents of a file or folder.

    A folder with files named after a train split trains on those and evaluates on those named after
    a valid split, or a test split if there is none; all else is left out. Otherwise everything is
    read and `held_out_fraction` of the documents is held out by hash.
    """

    path: Path
    held_out_fraction: float = 0.05
    text_field: str = "text"

    def fingerprint(self) -> str:
        stats = [(str(file.resolve()), file.stat()) for file in self._files()]
        seen = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        return hashlib.sha256(repr((seen, self.held_out_fraction, self.text_field)).encode()).hexdigest()

    def load(self) -> Corpus:
        train_files, held_out_files = self._splits()
        train, held_out = tuple(self._read(train_files)), tuple(self._read(held_out_files))
        if held_out:
            copies = set(held_out)  # not to be trained on
            train = tuple(document for document in train if document not in copies)
            split = f"files {', '.join(file.name for file in held_out_files)}"
        else:
            train, held_out = split_by_hash(train, self.held_out_fraction)
            split = f"last {self.held_out_fraction:.0%} by sha256"
        if not train:
            raise self._refusal("has no second document to hold out; separate documents by blank lines")
        return Corpus(self.path.resolve().name, train, held_out, split)

    def _files(self) -> list[Path]:
        """All files with a known suffix, sorted; the path itself if it is a file."""
        if self.path.is_file():
            return [self.path]
        if not self.path.is_dir():
            raise self._refusal("no such file or folder; correct the path")
        found = sorted(file for file in self.path.rglob("*") if file.is_file() and format_of(file))
        found = [file for file in found if "/." not in f"/{file.relative_to(self.path).as_posix()}"]
        if not found:
            raise self._refusal(f"has no file in a known format ({formats_in_words()}); add one")
        return found

    def _splits(self) -> tuple[list[Path], list[Path]]:
        """(train, held-out) files; held-out is empty when the documents are to be split by hash."""
        files = self._files()
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

    def _read(self, files: list[Path]) -> list[str]:
        """The documents of all files; a folder's odd file without text is skipped with a warning."""
        documents: list[str] = []
        refusals: list[ValueError] = []
        for file in files:
            try:
                documents += read_documents(file, self.text_field)
            except UnreadableFileError as error:
                refusals.append(self._refusal(str(error), file))
        if refusals and not documents:
            raise refusals[0]
        for refusal in refusals:
            warnings.warn(f"skipped: {refusal}", stacklevel=2)
        return documents

    def _refusal(self, reason: str, file: Path | None = None) -> ValueError:
        inside = f"{os.path.relpath(file, self.path)}: " if file and file != self.path else ""
        return ValueError(f"dataset.path={self.path}: {inside}{reason}")
