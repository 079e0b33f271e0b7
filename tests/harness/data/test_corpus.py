"""Splitting by hash: no overlap, no dependence on order, stable when documents are added."""

import hashlib
import random
from itertools import islice

import pytest

from gradwire.harness.data.corpus import Passes, Tally, digest_of, split_by_hash, split_documents

DOCUMENTS = [f"document {number}" for number in range(200)]


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.5])
def test_the_split_is_a_partition_by_hash(fraction):
    train, held_out = map(list, split_by_hash(DOCUMENTS, fraction))
    assert sorted(train + held_out) == sorted(DOCUMENTS)
    assert len(held_out) == max(1, round(200 * fraction))
    assert max(map(_sha, train)) < min(map(_sha, held_out))
    assert train == [document for document in DOCUMENTS if document in train]


def test_one_by_one_the_share_is_one_of_hash_values():
    documents = [f"document {number}" for number in range(20_000)]
    for fraction in (0.05, 0.5):
        train, held_out, how = split_documents(iter(documents), fraction, one_by_one=True)
        assert f"{fraction:.0%}" in how
        limit = (1 - fraction) * 2**256
        assert all(int(_sha(document).hex(), 16) < limit for document in islice(train, 50))
        train, held_out, _ = split_documents(documents, fraction, one_by_one=True)
        assert [*train, *held_out] != documents and sorted([*train, *held_out]) == sorted(documents)
        assert abs(len(list(held_out)) - fraction * 20_000) < 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
        assert min(map(_sha, held_out)) > max(map(_sha, train))


def test_one_by_one_of_few_documents_the_last_by_hash_is_held_out():
    train, held_out, _ = split_documents(DOCUMENTS[:5], 0.0001, one_by_one=True)
    assert list(held_out) == [max(DOCUMENTS[:5], key=_sha)]
    assert set(train) | set(held_out) == set(DOCUMENTS[:5])
    assert list(split_documents([], 0.5, one_by_one=True)[1]) == []


def test_one_by_one_nothing_is_read_ahead():
    def endless():
        number = 0
        while True:
            yield f"document {number}"
            number += 1

    train, held_out, _ = split_documents(Passes(endless), 0.05, one_by_one=True)
    assert len(list(islice(train, 100))) == len(set(islice(held_out, 100))) == 100


def test_order_does_not_matter_and_copies_stay_together():
    train, held_out = map(set, split_by_hash(DOCUMENTS, 0.05))
    copies = DOCUMENTS * 3
    random.Random(0).shuffle(copies)
    train_again, held_out_again = map(set, split_by_hash(copies, 0.05))
    assert (train_again, held_out_again) == (train, held_out)
    assert not train & set(split_by_hash(copies + [min(held_out)] * 50, 0.05)[1])


def test_the_digest_sees_every_boundary_and_split():
    variants = [
        (("ab", "c"), ("d",)),
        (("a", "bc"), ("d",)),
        (("abc",), ("d",)),
        (("ab",), ("c", "d")),
        (("c", "ab"), ("d",)),
        (("d",), ("ab", "c")),
        (("ab", "c", "d"), ()),
    ]
    digests = {digest_of(_tally(train), _tally(held_out)) for train, held_out in variants}
    assert len(digests) == len(variants)
    tally = _tally(("é", "a"))
    assert (tally.num_documents, tally.num_bytes) == (2, 3)


def _tally(documents):
    tally = Tally()
    for document in documents:
        tally.add(document)
    return tally


def _sha(document):
    return hashlib.sha256(document.encode()).digest()
