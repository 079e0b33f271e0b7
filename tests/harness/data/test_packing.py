"""Packed tokens are the documents, in order, and described truly."""

import json
import math

import numpy as np
import pytest
import torch

from gradwire.harness.data.corpus import Corpus, Passes, Tally, digest_of
from gradwire.harness.data.packing import (
    PackingLimits,
    PreparationProgress,
    pack,
    unigram_perplexity,
    write_packed,
)
from gradwire.harness.data.row_writer import RowWriter
from gradwire.harness.data.token_data import read_data
from gradwire.harness.models.settings import END


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_decoding_gives_the_documents_back(data, corpus, split):
    rows, documents = getattr(data, split), getattr(corpus, split)
    assert rows.dtype == torch.int32 and rows.shape[1] == 32
    text = data.tokenizer.decode(rows.flatten().tolist())
    whole = "".join(document + END for document in documents)
    # Only an incomplete last sequence may be missing, perhaps from the middle of a character on.
    assert whole.startswith(text.rstrip("\ufffd"))
    missing = data.tokenizer(whole[len(text.rstrip("\ufffd")) :])["input_ids"]
    assert len(missing) < 32 + 4


def test_packing_many_documents_at_once_changes_nothing(data, tmp_path):
    documents = [f"document {number}" for number in range(2500)]
    one_by_one = np.concatenate([[*data.tokenizer(text)["input_ids"], 1] for text in documents])
    with RowWriter(tmp_path / "rows.npy", 50) as writer:
        tally = pack(documents, data.tokenizer, writer, read_all=True, progress=PreparationProgress("", None))
    rows = np.load(tmp_path / "rows.npy")
    assert tally.num_documents == 2500
    assert np.array_equal(rows.flatten(), one_by_one[: rows.size])
    assert 0 <= len(one_by_one) - rows.size < 50


@pytest.mark.parametrize("number", [1, 2, 50])
def test_the_unigram_perplexity_of_equally_frequent_tokens_is_their_number(number):
    tokens = np.tile(np.arange(number, dtype=np.int32) * 7, 6).reshape(2, -1)
    assert unigram_perplexity(tokens) == pytest.approx(number)


def test_the_description_counts_what_is_there(data, corpus):
    described = data.description
    assert described == json.loads(json.dumps(described))
    assert (described["train_tokens"], described["held_out_tokens"]) == (
        data.train.numel(),
        data.held_out.numel(),
    )
    assert (described["train_documents"], described["held_out_documents"]) == (50, 10)
    train, held_out = _tally(corpus.train), _tally(corpus.held_out)
    assert described["sha256"] == digest_of(train, held_out)
    assert described["bytes"] == train.num_bytes + held_out.num_bytes
    assert described["vocab_size"] == data.vocab_size == 300
    assert max(data.train.max(), data.held_out.max()) < 300
    frequencies = torch.bincount(data.held_out.flatten()).double() / data.held_out.numel()
    entropy = -torch.special.xlogy(frequencies, frequencies).sum()
    assert described["unigram_perplexity"] == pytest.approx(math.exp(entropy))


def _tally(documents):
    tally = Tally()
    for document in documents:
        tally.add(document)
    return tally


def test_evaluation_can_be_cut_short(corpus, data, tmp_path):
    write_packed(tmp_path, corpus, data.tokenizer, 32, PackingLimits(3))
    short = read_data(tmp_path, 0.15)
    assert torch.equal(short.held_out, data.held_out[:3])
    unchanged = ("sha256", "bytes", "train_documents", "held_out_documents", "train_tokens")
    assert all(short.description[key] == data.description[key] for key in unchanged)


def test_training_can_be_cut_short(corpus, data, tmp_path):
    write_packed(tmp_path, corpus, data.tokenizer, 32, PackingLimits(train_tokens=5 * 32 + 31))
    short = read_data(tmp_path, 0.15)
    assert torch.equal(short.train, data.train[:5]) and torch.equal(short.held_out, data.held_out)
    number = short.description["train_documents"]
    lengths = [len(data.tokenizer(text)["input_ids"]) + 1 for text in corpus.train]
    assert sum(lengths[: number - 1]) < 5 * 32 <= sum(lengths[:number])
    assert short.description["train_tokens"] == 5 * 32


def test_a_stream_is_read_no_further_than_needed(data, tmp_path):
    read = {"train": 0, "held_out": 0}

    def endless(split):
        while True:
            read[split] += 1
            yield f"the {split} document number {read[split]}"

    splits = [Passes(lambda split=split: endless(split)) for split in read]
    corpus = Corpus("endless", *splits, "", streaming=True)
    write_packed(tmp_path, corpus, data.tokenizer, 32, PackingLimits(40, 10_000))
    packed = read_data(tmp_path, 0.15)
    assert len(packed.held_out) == 40 and len(packed.train) == 10_000 // 32
    for split, number in read.items():
        assert packed.description[f"{split}_documents"] <= number <= 3000


def test_copies_of_held_out_documents_are_not_trained_on(data, tmp_path):
    train = [f"document {number} of the training split" for number in range(100)]
    held_out = [f"document {number} of the other split" for number in range(50)]
    mixed = [text for pair in zip(train[:50], held_out, strict=True) for text in pair] + train[50:]
    for name, documents in (("clean", train), ("mixed", mixed)):
        (tmp_path / name).mkdir()
        write_packed(tmp_path / name, Corpus("c", documents, held_out, ""), data.tokenizer, 32)
    clean, mixed = (read_data(tmp_path / name, 0.15) for name in ("clean", "mixed"))
    assert torch.equal(clean.train, mixed.train) and clean.description == mixed.description


def test_a_split_too_small_for_one_sequence_is_refused(corpus, data, tmp_path):
    with pytest.raises(
        ValueError, match=r"held-out documents of words fill no sequence of 5000 tokens; use more"
    ):
        write_packed(tmp_path, corpus, data.tokenizer, 5000)
