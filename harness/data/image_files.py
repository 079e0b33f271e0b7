"""Images in files (a folder with a subfolder per label for each split, or a zip of it) or on the hub."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.data.corpus import Passes
from gradwire.harness.data.hub import HubCorpus
from gradwire.harness.data.images import MOST_BYTES, MOST_LABELS, SUFFIXES, Images, LabelledImage, pixels_of
from gradwire.harness.data.records import UnreadableFileError, located
from gradwire.harness.data.text import describe_files, searching
from gradwire.harness.files.hostile import Archive, leads_to_file, root_of
from gradwire.harness.files.reading import UnusableFileError, printable, read_bytes

REMEDY = "give class folders of PNG or JPEG files, or a zip of them"

PICKLES = re.compile(r"(data_batch_\d|test_batch|batches\.meta|.*\.(pkl|pickle)|cifar-.*-python\.tar\.gz)$")
"""Files that hold Python objects, including CIFAR's own. Unpickling runs code, so none is read."""

SPELLINGS = {"test": ("test", "val", "validation"), "train": ("train", "training")}
"""Names of folders and archives of a split; the first one that exists is used."""


@dataclass(frozen=True)
class SplitImages:
    """The files of one split, by label; `read` returns the bytes of a file."""

    where: Path
    files: Mapping[str, tuple[str, ...]]
    read: Callable[[str], bytes]


@dataclass(frozen=True)
class FileImages:
    """The images below `path`, in `<split>/<label>/`, or in `<split>.zip` with or without the split's folder.

    Every label of the held-out split must be one of the training split.
    """

    path: Path
    train_split: str
    held_out_split: str

    def fingerprint(self) -> str:
        sources = [self._source(split) for split in (self.train_split, self.held_out_split)]
        files = [file for source in sources for file in _files(source, self.path)]
        settings = (self.train_split, self.held_out_split)
        return hashlib.sha256(repr((describe_files(files), settings)).encode()).hexdigest()

    def load(self) -> Images:
        train, held_out = (self._found(split) for split in (self.train_split, self.held_out_split))
        labels = tuple(sorted(train.files))
        odd = sorted(held_out.files.keys() - train.files.keys())
        if odd:
            raise self._refusal(f"label {printable(odd[0], 80)} is in {held_out.where.name} alone")
        if not 2 <= len(labels) <= MOST_LABELS:
            raise self._refusal(f"{train.where.name} has {len(labels)} labels, not 2 to {MOST_LABELS}")
        return Images(
            name=self.path.resolve().name,
            train=Passes(lambda: self._read(train, labels)),
            held_out=Passes(lambda: self._read(held_out, labels)),
            split=f"trained on {train.where.name}, evaluated on {held_out.where.name}",
            labels=labels,
        )

    def _read(self, found: SplitImages, labels: tuple[str, ...]) -> Iterator[LabelledImage]:
        for index, label in enumerate(labels):
            for name in found.files.get(label, ()):
                where = printable(f"{found.where.name}: {name}", 200)
                with located(f"dataset.path={self.path}: {where}"):
                    try:
                        pixels = pixels_of(found.read(name))
                    except UnusableFileError as error:
                        raise UnreadableFileError(f"{error.problem}; {error.remedy}") from None
                yield LabelledImage(pixels, index)

    def _source(self, split: str) -> Path:
        """The folder or the archive of a split."""
        with searching(f"dataset.path={self.path}"):
            if not self.path.is_dir():
                raise self._refusal("no such folder")
            pickled = sorted(file.name for file in self.path.iterdir() if PICKLES.match(file.name))
        if pickled:
            raise self._refusal(f"{printable(pickled[0], 80)} is a Python pickle, and pickles are never read")
        names = SPELLINGS.get(split, (split,))
        for name in names:
            if (folder := self.path / name).is_dir():
                return folder
            archive = self.path / f"{name}.zip"
            with searching(f"dataset.path={self.path}"):
                if leads_to_file(archive, root_of(self.path), remedy=REMEDY):
                    return archive
        tried = " or ".join(f"{name}/, {name}.zip" for name in names)
        raise self._refusal(f"has no images of the split {split} ({tried})")

    def _found(self, split: str) -> SplitImages:
        source = self._source(split)
        found = _in_folder(source, self.path) if source.is_dir() else _in_archive(source)
        if not found.files:
            raise self._refusal(f"{source.name} has no images in folders of labels")
        for names in found.files.values():
            for name in names:
                if not name.lower().endswith(SUFFIXES):
                    shown = printable(f"{source.name}: {name}", 120)
                    raise self._refusal(f"{shown} is not one of {', '.join(SUFFIXES)}")
        return found

    def _refusal(self, problem: str) -> ValueError:
        return ValueError(f"dataset.path={self.path}: {problem}; {REMEDY}")


def _files(source: Path, root: Path) -> list[Path]:
    """An archive, or all files of a folder."""
    if source.is_file():
        return [source]
    found = _in_folder(source, root)
    return [found.where / name for names in found.files.values() for name in names]


def _in_folder(folder: Path, root: Path) -> SplitImages:
    """The images of a split's folder. The folder, labels and images may be links, but only to files inside
    `root`."""
    files, home = {}, root_of(root)

    def check(path: Path) -> None:
        if not path.resolve().is_relative_to(home):
            problem = f"is a link out of {home}, and none is followed there"
            raise UnusableFileError(path, problem, REMEDY)

    with searching(f"dataset.path={folder}"):
        check(folder)
        for label in sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."):
            check(label)
            entries = [file for file in os.scandir(label) if file.name[0] != "." and file.is_file()]
            for file in entries:
                if file.is_symlink():
                    check(Path(file.path))
            names = sorted(file.name for file in entries)
            if names:
                files[label.name] = tuple(f"{label.name}/{name}" for name in names)

    return SplitImages(folder, files, lambda name: read_bytes(folder / name, remedy=REMEDY, most=MOST_BYTES))


def _in_archive(path: Path) -> SplitImages:
    """The images of an archive: names that end in `<label>/<file>`, without those that macOS adds."""
    archive = Archive(path, remedy=REMEDY)
    files = dict[str, list[str]]()
    for name in sorted(archive.names()):
        parts = name.split("/")
        if any(part.startswith((".", "__MACOSX")) for part in parts):
            continue
        if len(parts) < 2:
            shown = printable(name, 80)
            raise ValueError(f"dataset.path={path}: {shown} is not in the folder of a label; {REMEDY}")
        files.setdefault(parts[-2], []).append(name)

    by_label = {label: tuple(names) for label, names in files.items()}
    return SplitImages(path, by_label, lambda name: archive.read(name, MOST_BYTES))


@dataclass(frozen=True)
class HubImages:
    """The images of a repository whose `image_field` holds image files, with named labels."""

    repository: HubCorpus
    image_field: str

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.image_field} {self.repository.fingerprint()}".encode()).hexdigest()

    def load(self) -> Images:
        train, held_out = self.repository.train_split, self.repository.held_out_split
        assert held_out is not None, "resolve_dataset comes first"
        name, labels, records = self.repository.images(self.image_field)
        if not 2 <= len(labels) <= MOST_LABELS:
            where = f"{self.repository.where}, split {train}"
            raise ValueError(f"{where}: {len(labels)} labels, not 2 to {MOST_LABELS}")
        return Images(
            name=name,
            train=Passes(lambda: self._read(records(train), train, len(labels))),
            held_out=Passes(lambda: self._read(records(held_out), held_out, len(labels))),
            split=f"trained on {train}, evaluated on {held_out}",
            labels=tuple(labels),
        )

    def _read(self, records: Iterator[Mapping[str, Any]], split: str, labels: int) -> Iterator[LabelledImage]:
        for number, record in enumerate(records):
            image, label = record[self.image_field], record["label"]
            content = image.get("bytes") if isinstance(image, Mapping) else None
            try:
                if not isinstance(content, bytes) or len(content) > MOST_BYTES:
                    raise UnreadableFileError("has no image, or one that is too long; use other data")
                if not isinstance(label, int) or not 0 <= label < labels:
                    raise UnreadableFileError("has no label (test splits may be without); use another split")
                pixels = pixels_of(content)
            except UnreadableFileError as error:
                raise ValueError(
                    f"{self.repository.where}, split {split}: record {number} {error}"
                ) from error
            yield LabelledImage(pixels, label)
