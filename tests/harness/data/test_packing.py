"""Packed tokens are the documents, in order, and described truly."""

import json
import math

import numpy as np
import pytest
import torch

from gradwire.harness.data.packing import pack, read_packed, unigram_perplexity, write_packed
from gradwire.harness.models.special_tokens import END


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


def test_packing_many_documents_at_once_changes_nothing(data):
    documents = [f"document {number}" for number in range(2500)]
    one_by_one = np.concatenate([[*data.tokenizer(text)["input_ids"], 1] for text in documents])
    rows = pack(documents, data.tokenizer, 50)
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
    assert (described["sha256"], described["bytes"]) == (corpus.sha256, corpus.num_bytes)
    assert described["vocab_size"] == data.vocab_size == 300
    assert max(data.train.max(), data.held_out.max()) < 300
    frequencies = torch.bincount(data.held_out.flatten()).double() / data.held_out.numel()
    entropy = -torch.special.xlogy(frequencies, frequencies).sum()
    assert described["unigram_perplexity"] == pytest.approx(math.exp(entropy))


def test_evaluation_can_be_cut_short(corpus, data, tmp_path):
    write_packed(tmp_path, corpus, data.tokenizer, 32, 3)
    assert torch.equal(read_packed(tmp_path, 0.15).held_out, data.held_out[:3])


def test_a_split_too_small_for_one_sequence_is_refused(corpus, data, tmp_path):
    with pytest.raises(
        ValueError, match=r"held-out documents of words fill no sequence of 5000 tokens; use more"
    ):
        write_packed(tmp_path, corpus, data.tokenizer, 5000, None)
