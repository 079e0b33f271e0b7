"""A published data set, read through the `datasets` library."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gradwire.harness.data.chat import ChatFormat, plain_chat
from gradwire.harness.data.corpus import Corpus, Passes, join_rows, split_documents
from gradwire.harness.data.formats import decompress_zstd
from gradwire.harness.data.records import (
    encodable,
    field_of_text,
    located,
    no_text_field,
    record_texts,
)
from gradwire.harness.data.settings import WAYS_OUT
from gradwire.harness.data.text import describe_files, files_below, searching
from gradwire.harness.models.weights import absence

Result = TypeVar("Result")

ROWS_AT_ONCE = 1000
COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class HubCorpus:
    """The documents of two splits of a repository, or of one split that is divided by hash.

    A folder below the working directory that has the repository's name takes precedence, as in `datasets`.
    Every failure raises a ValueError of one line.
    """

    name: str
    hub: str
    configuration: str | None = None
    revision: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    train_split: str = "train"
    held_out_split: str | None = None
    streaming: bool = False
    text_field: str = "text"
    held_out_fraction: float = 0.05
    chat: ChatFormat = field(default=plain_chat, compare=False)

    @property
    def where(self) -> str:
        """The repository's name in errors."""
        return f"dataset={self.name} ({self.hub})"

    def fingerprint(self) -> str:
        settings = [getattr(self, known.name) for known in fields(self) if known.compare]
        with searching(f"dataset.hub={self.hub}"):
            local = describe_files(files_below(Path(self.hub)) if Path(self.hub).is_dir() else [])
        return hashlib.sha256(repr((settings, local)).encode()).hexdigest()

    def records(self) -> tuple[str, Callable[[str], Iterator[Mapping[str, Any]]]]:
        """Returns the data's name with its commit, and a function from a split to its records."""
        builder = self._builder()
        return self._name(builder), partial(self._records, builder)

    def images(self, field: str) -> tuple[str, list[str], Callable[[str], Iterator[Mapping[str, Any]]]]:
        """`records`, where `field` holds images as the bytes of their files, without decoding. The second
        value holds the names of the labels, which records refer to by index."""
        builder = self._builder()
        features = self._tried(lambda: self._dataset(builder, self.train_split).features)
        names = getattr(features.get("label"), "names", None)
        if names is None or field not in features:
            found = ", ".join(map(str, features))[:120]
            raise self._refusal(f"has no field {field} with images and labels by name (found: {found})")
        return self._name(builder), list(names), partial(self._records, builder, undecoded=field)

    def load(self) -> Corpus:
        builder = self._builder()
        documents = Passes(partial(self._documents, builder, self.train_split))
        train: Iterable[str] = documents
        if self.held_out_split is not None:
            held_out = Passes(partial(self._documents, builder, self.held_out_split))
            split = f"split {self.held_out_split}"
        else:
            train, held_out, split = split_documents(
                documents, self.held_out_fraction, one_by_one=self.streaming
            )
        return Corpus(self._name(builder), train, held_out, split, self.streaming)

    def _name(self, builder: Any) -> str:
        commit = f"at {builder.hash[:12]}" if COMMIT.fullmatch(builder.hash or "") else None
        return " ".join(part for part in (self.hub, self.configuration, commit) if part)

    def _builder(self) -> Any:
        """The `datasets` object that reads the repository; only the card has been downloaded so far."""
        import datasets

        _prepare_library()
        builder = self._tried(
            lambda: datasets.load_dataset_builder(
                self.hub, self.configuration, data_files=dict(self.files) or None, revision=self.revision
            )
        )
        pinned = COMMIT.fullmatch(self.revision or "")
        if pinned and COMMIT.fullmatch(builder.hash or "") and builder.hash != self.revision:
            raise self._refusal(f"only revision {builder.hash} is in the Hugging Face cache")
        return builder

    def _documents(self, builder: Any, split: str) -> Iterator[str]:
        with located(f"{self.where}, split {split}"):
            for document in join_rows(self._rows(builder, split)):
                if text := encodable(document).strip():
                    yield text

    def _records(self, builder: Any, split: str, undecoded: str | None = None) -> Iterator[Mapping[str, Any]]:
        """Every row of a split."""
        for batch in self._batches(builder, split, undecoded):
            yield from (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))

    def _batches(self, builder: Any, split: str, undecoded: str | None = None) -> Iterator[Mapping[str, Any]]:
        """The columns of a split, 1000 rows at a time."""
        batches = self._tried(lambda: self._dataset(builder, split, undecoded).iter(ROWS_AT_ONCE))
        while (batch := self._tried(lambda: next(batches, None))) is not None:
            yield batch

    def _rows(self, builder: Any, split: str) -> Iterator[str]:
        """The text of every row of a split."""

        def wanted_column() -> Iterator[object]:
            for batch in self._batches(builder, split):
                wanted = field_of_text(batch, self.text_field)
                if wanted is None:
                    raise no_text_field(batch, self.text_field)
                yield from (value if isinstance(value, str) else {wanted: value} for value in batch[wanted])

        yield from record_texts(wanted_column(), self.text_field, self.chat)

    def _dataset(self, builder: Any, split: str, undecoded: str | None = None) -> Any:
        from datasets import Image

        if self.streaming:
            found = builder.as_streaming_dataset(split)
        else:
            if not Path(builder.cache_dir).is_dir():
                print(f"fetching {self.hub} for dataset={self.name}", flush=True)
            builder.download_and_prepare()
            found = builder.as_dataset(split)
        return found if undecoded is None else found.cast_column(undecoded, Image(decode=False))

    def _tried(self, act: Callable[[], Result]) -> Result:
        """Returns the result of `act`, which calls `datasets`; converts its errors, and those of the network
        and of files, to one line."""
        try:
            return act()
        except Exception as error:  # HTTP clients', file systems' and parsers' own types
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise self._refusal(f"cannot be read ({lines[0]})") from error

    def _refusal(self, reason: str) -> ValueError:
        return ValueError(f"{self.where}: {reason}; {WAYS_OUT}")


def repository_available(hub: str, configuration: str = "*", revision: str | None = None) -> str | None:
    """Returns None, or the reason why a repository's data is neither in the cache nor available from the hub.

    `datasets` keeps prepared data in <cache>/<owner>___<name>/<configuration>/<version>/<commit>;
    `configuration` is a pattern of such names. A revision identifies a folder only if it is a full commit
    hash.
    """
    from huggingface_hub.constants import HF_HOME

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME, "datasets")).expanduser()
    prepared = (cache / hub.replace("/", "___")).glob(
        f"{configuration}/*/{revision or '*'}/dataset_info.json"
    )
    return absence(any(prepared), hub, "README.md", "dataset", revision)


def _prepare_library() -> None:
    """Disables progress bars and warnings, limits the time spent waiting for a network, and supports .zst as
    used by the Pile."""
    import datasets
    from fsspec.compression import compr, register_compression
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are raised, too
    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    # The default is twenty retries, each of them half a minute of attempts by the hub's own client.
    datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = 1
    if "zstd" not in compr:
        register_compression("zstd", decompress_zstd, "zst")
