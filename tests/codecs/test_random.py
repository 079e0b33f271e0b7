"""The counter-based generators against published vectors and an implementation on Python integers."""

from __future__ import annotations

import pytest
import torch
from dynamiq_reference import mix32_word, philox_words

from gradwire.codecs.arithmetic.random import halves, mix32, philox4x32, stream_key

PUBLISHED = [  # Random123, kat_vectors: philox4x32 10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_philox_reproduces_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox4x32((c0, c1, c2, c3), key, rounds=10)
    assert tuple(word.item() for word in words) == expected


@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_philox_broadcasts_its_counter(rounds: int) -> None:
    generator = torch.Generator().manual_seed(1)
    row = torch.randint(0, 1 << 32, (5, 1), generator=generator)
    column = torch.randint(0, 1 << 32, (3,), generator=generator)
    zero, key = torch.zeros((), dtype=torch.int64), (0xDEADBEEF, 0x12345678)
    words = [word.expand(5, 3) for word in philox4x32((row, zero + 9, column, zero), key, rounds)]
    for i in range(5):
        for j in range(3):
            expected = philox_words((int(row[i, 0]), 9, int(column[j]), 0), key, rounds)
            assert tuple(int(word[i, j]) for word in words) == expected


def test_mix32_matches_integers_and_ignores_high_bits() -> None:
    x = torch.randint(0, 1 << 62, (1000,), generator=torch.Generator().manual_seed(2))
    assert mix32(x).tolist() == [mix32_word(int(value) & 0xFFFFFFFF) for value in x]


def test_mix32_is_a_bijection_on_a_range() -> None:
    assert mix32(torch.arange(1 << 18)).unique().numel() == 1 << 18


def test_halves_are_low_first_word_by_word() -> None:
    words = (torch.tensor([[0x0001_FFFE, 0xFFFF_0005]]), torch.tensor([[0x0003_0002, 0x0007_0006]]))
    assert halves(words).tolist() == [[0xFFFE, 1, 2, 3, 5, 0xFFFF, 6, 7]]


def test_stream_keys_differ_in_every_argument() -> None:
    keys = {stream_key(*arguments) for arguments in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0)]}
    assert len(keys) == 5
    assert all(0 <= word < 1 << 32 for key in keys for word in key)
    assert stream_key(3, 4, 5) == stream_key(3, 4, 5)
