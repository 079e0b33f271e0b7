"""Splitting by hash: no overlap, no dependence on order, stable when documents are added."""

import hashlib
import random

import pytest

from gradwire.harness.data.corpus import Corpus, split_by_hash

DOCUMENTS = [f"document {number}" for number in range(200)]


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.5])
def test_the_split_is_a_partition_by_hash(fraction):
    train, held_out = split_by_hash(DOCUMENTS, fraction)
    assert sorted(train + held_out) == sorted(DOCUMENTS)
    assert len(held_out) == max(1, round(200 * fraction))
    assert max(map(_sha, train)) < min(map(_sha, held_out))
    assert list(train) == [document for document in DOCUMENTS if document in train]


def test_order_does_not_matter_and_copies_stay_together():
    train, held_out = split_by_hash(DOCUMENTS, 0.05)
    copies = DOCUMENTS * 3
    random.Random(0).shuffle(copies)
    train_again, held_out_again = split_by_hash(copies, 0.05)
    assert set(held_out_again) == set(held_out)
    assert set(train_again) == set(train)
    assert not set(train_again) & set(split_by_hash(copies + [held_out[0]] * 50, 0.05)[1])


def test_the_digest_sees_every_boundary_and_split():
    variants = [
        Corpus("c", ("ab", "c"), ("d",), ""),
        Corpus("c", ("a", "bc"), ("d",), ""),
        Corpus("c", ("abc",), ("d",), ""),
        Corpus("c", ("ab",), ("c", "d"), ""),
        Corpus("c", ("c", "ab"), ("d",), ""),
    ]
    assert len({corpus.sha256 for corpus in variants}) == len(variants)
    assert Corpus("other", ("ab", "c"), ("d",), "x").sha256 == variants[0].sha256
    assert Corpus("c", ("é",), ("d",), "").num_bytes == 3


def _sha(document):
    return hashlib.sha256(document.encode()).digest()
