"""Packs documents into sequences of equal length.

"Truncate and pack tokens into fixed-length sequences, samples may be merged" (DynamiQ §5).
"""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.harness.data.chat import counted_tokens, spans_of
from gradwire.harness.data.corpus import Corpus, Tally, digest_of, hash_value
from gradwire.harness.data.row_writer import CountedRowWriter, RowWriter
from gradwire.harness.data.token_data import Split, column_file
from gradwire.harness.data.tokenizer import separator_id
from gradwire.harness.runtime.progress import in_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DOCUMENTS_AT_ONCE = 1000
CHARACTERS_AT_ONCE = 2**23


def pack(
    documents: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    rows: RowWriter | CountedRowWriter,
    *,
    read_all: bool,
    progress: PreparationProgress,
) -> Tally:
    """Writes all documents, each followed by the separator, to `rows`.

    Once `rows` is full, further documents are only counted, or not even read unless `read_all` is set.
    """
    separator, tally = separator_id(tokenizer), Tally()
    for batch in _batches(documents):
        read = [spans_of(document) for document in batch]
        texts = [text for text, _ in read]
        encoded = None if rows.is_full else _encode(tokenizer, texts, isinstance(rows, CountedRowWriter))
        for index, (text, spans) in enumerate(read):
            if rows.is_full or encoded is None:
                if not read_all:
                    return tally
            elif isinstance(rows, CountedRowWriter):
                counted = counted_tokens(encoded["offset_mapping"][index], spans)
                # If the assistant's turn is the last, the model is also trained on the separator, i.e. to
                # stop.
                stops = bool(spans) and spans[-1][1] == len(text)
                rows.append([*encoded["input_ids"][index], separator], [*counted, stops])
            else:
                rows.append([*encoded["input_ids"][index], separator])
            tally.add(text)
        progress.show(tally.num_documents, rows.num_tokens)
    return tally


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for document in documents:
        batch.append(document)
        num_characters += len(document)
        if len(batch) == DOCUMENTS_AT_ONCE or num_characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _encode(tokenizer: PreTrainedTokenizerFast, documents: list[str], offsets: bool) -> Mapping[str, Any]:
    """`input_ids` and, if requested, `offset_mapping` of each document."""
    encoded: Mapping[str, Any] = tokenizer(
        documents,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=offsets,
        verbose=False,  # documents longer than the model's context are what packing is for
    )
    return encoded


def unigram_perplexity(tokens: NDArray[np.int32]) -> float:
    """exp of the entropy (nats) of the tokens' own distribution.

    The best model without context has this perplexity; a lower one shows that a model uses the order of
    tokens.
    """
    counts = np.unique(tokens, return_counts=True)[1]
    frequencies = counts / counts.sum()
    return float(np.exp(-(frequencies * np.log(frequencies)).sum()))


class PackingLimits(NamedTuple):
    """Limits on each split; None sets no limit."""

    held_out_sequences: int | None = None
    train_tokens: int | None = None


KEEP_ALL = PackingLimits()


def write_packed(
    folder: Path,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    sequence_length: int,
    limits: PackingLimits = KEEP_ALL,
    *,
    marked: bool = False,
) -> None:
    """Writes packed rows to `folder` in the form that `read_data` reads, with one batch of documents in
    memory at a time.

    Held-out documents are never trained on. With `marked`, the loss is on the parts between marks. Raises
    ValueError if a split does not fill one sequence.
    """
    seen: set[int] = set()
    with _writer(folder, "held_out", sequence_length, limits.held_out_sequences, marked) as held_out:
        progress = PreparationProgress(f"{corpus.name}, held-out split", None)
        documents = _remembered(corpus.held_out, seen)
        held_out_tally = pack(
            documents, tokenizer, held_out, read_all=not corpus.streaming, progress=progress
        )
    most = None if limits.train_tokens is None else limits.train_tokens // sequence_length
    with _writer(folder, "train", sequence_length, most, marked) as train:
        progress = PreparationProgress(f"{corpus.name}, training split", limits.train_tokens)
        documents = _unseen(corpus.train, seen)
        train_tally = pack(documents, tokenizer, train, read_all=False, progress=progress)
    _check_filled(corpus, train, held_out)
    tokenizer.save_pretrained(folder / "tokenizer")
    description = {
        "corpus": corpus.name,
        "sha256": digest_of(train=train_tally, held_out=held_out_tally),
        "bytes": train_tally.num_bytes + held_out_tally.num_bytes,
        "split": corpus.split,
        "train_documents": train_tally.num_documents,
        "held_out_documents": held_out_tally.num_documents,
        "train_tokens": train.num_rows * sequence_length,
        "held_out_tokens": held_out.num_rows * sequence_length,
        "vocab_size": len(tokenizer),
        "sequence_length": sequence_length,
        "unigram_perplexity": unigram_perplexity(np.load(folder / "held_out.npy", mmap_mode="r")),
        **_described("train", train),
        **_described("held_out", held_out),
    }
    (folder / "description.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def _writer(
    folder: Path, split: Split, length: int, most_rows: int | None, marked: bool
) -> RowWriter | CountedRowWriter:
    file = folder / f"{split}.npy"
    if not marked:
        return RowWriter(file, length, most_rows)
    return CountedRowWriter(file, column_file(folder, split, "counted"), length, most_rows)


def _described(split: Split, rows: RowWriter | CountedRowWriter) -> dict[str, int]:
    """The number of tokens that the loss is on, and of rows without any."""
    if isinstance(rows, RowWriter):
        return {}
    return {f"{split}_counted_tokens": rows.num_counted, f"{split}_rows_left_out": rows.num_left_out}


def _remembered(documents: Iterable[str], seen: set[int]) -> Iterator[str]:
    for document in documents:
        seen.add(hash_value(document))
        yield document


def _unseen(documents: Iterable[str], seen: Container[int]) -> Iterator[str]:
    return (document for document in documents if hash_value(document) not in seen)


def _check_filled(
    corpus: Corpus, train: RowWriter | CountedRowWriter, held_out: RowWriter | CountedRowWriter
) -> None:
    for split, rows in (("training", train), ("held-out", held_out)):
        if not rows.num_rows and isinstance(rows, CountedRowWriter) and rows.num_left_out:
            raise ValueError(
                f"dataset.loss_on=assistant: the {split} documents of {corpus.name} have no messages of an "
                "assistant; use dataset.loss_on=all"
            )
        if not rows.num_rows:
            raise ValueError(
                f"dataset: the {split} documents of {corpus.name} fill no sequence of {rows.row_length} "
                "tokens; use more text (dataset.path=) or a smaller dataset.sequence_length="
            )


EVERY_S = 10.0


class PreparationProgress:
    """Reports the progress of one split; prints nothing in the first ten seconds."""

    def __init__(self, title: str, most_tokens: int | None) -> None:
        self._title, self._most_tokens = title, most_tokens
        self._started = self._shown = time.monotonic()

    def show(self, num_documents: int, num_tokens: int) -> None:
        """Takes the counts so far, and prints a line if the last one is ten seconds old."""
        now = time.monotonic()
        if now - self._shown < EVERY_S:
            return
        self._shown = now
        limit = left = ""
        if self._most_tokens is not None:
            limit = f" of {self._most_tokens / 1e6:.0f}"
            if num_tokens:
                per_token = (now - self._started) / num_tokens
                left = f", about {in_words(per_token * (self._most_tokens - num_tokens))} left"
        print(
            f"preparing {self._title}: {num_documents} documents, {num_tokens / 1e6:.1f}{limit} million "
            f"tokens after {now - self._started:.0f} s{left}",
            flush=True,
        )
