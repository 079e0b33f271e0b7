"""Sectors and banks that a warp's accesses need: the counting itself, and the gate of every operation."""

from __future__ import annotations

import ctypes

import memory_accesses
import pytest
import torch
from emulation import UNWATCHED, emulation
from memory_accesses import (
    COMMAND,
    LIMIT,
    MARGIN,
    Accesses,
    cases,
    counted,
    measure,
    reason,
    recorded,
    summed,
)

from gradwire.codecs.native.loading import Library
from gradwire.harness.studies.bench.operation import all_operations

PATTERNS: dict[str, dict[str, float]] = {
    "16 bytes of each lane": {"loads uncached": 1.0, "stores": 1.0},
    "64 bytes of each lane": {"loads uncached": 2.0, "stores": 2.0, "banks": 4.0},
    "words 64 bytes apart": {"loads": 8.0, "loads uncached": 8.0, "stores": 8.0, "banks": 16.0},
    "every other word": {"loads": 2.0, "loads uncached": 2.0, "stores": 2.0, "banks": 2.0},
    "words shifted by one": {"loads": 1.25, "loads uncached": 1.25, "stores": 1.25},
    "some lanes in each turn": {"loads": 4 / 3, "loads uncached": 4 / 3, "stores": 4 / 3},
    "one word": {"loads uncached": 1.0, "stores": 1.0},
    "shared words": {"shared stores": 1.0},
    "shared words 2 apart": {"shared stores": 2.0},
    "shared words 32 apart": {"shared stores": 32.0},
    "shared words 31 apart": {"shared stores": 1.0},
    "one shared word": {"shared loads": 1.0},
    "shared pairs": {"shared stores": 1.0},
    "shared pairs 2 apart": {"shared stores": 2.0},
    "shared fours": {"shared stores": 1.0},
    "shared fours 2 apart": {"shared stores": 2.0},
}
"""The patterns of csrc/emulation/access_trials.cu, in their order, and their ratios; others are 1."""


def counting() -> Library:
    """The emulation; skips the test where it does not count."""
    found = emulation()
    if found.handle.gradwire_emulation_count(0) or found.handle.gradwire_emulation_count(1):
        pytest.skip(UNWATCHED)
    found.handle.gradwire_emulation_count(0)
    return found


def touched(emulated: Library, pattern: str) -> Accesses:
    """The accesses of one pattern, whose memory begins at a sector."""
    words = torch.zeros(2, 1040, dtype=torch.int32)
    places = [row.data_ptr() + -row.data_ptr() % 32 for row in words]
    touch, number = emulated.handle.gradwire_emulation_touch, list(PATTERNS).index(pattern)
    touch.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    found = counted(emulated, lambda: touch(number, *places))
    assert len(found) == 1
    return summed(found)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_need_what_is_known(pattern: str) -> None:
    accesses = touched(counting(), pattern)
    expected = dict.fromkeys(accesses.ratios, 1.0) | PATTERNS[pattern]
    assert accesses.ratios == pytest.approx(expected, abs=1e-3)


def test_numbers_of_a_pattern() -> None:
    found = touched(counting(), "64 bytes of each lane")
    assert found.requests == (4, 4) and found.touched == (128, 128) and found.fewest == (64, 64)
    assert found.fetched == 64 and found.new_bytes == 64 * 32
    assert found.turns == (64, 64) and found.fewest_turns == (16, 16) and found.conflicts == 96
    assert touched(counting(), "shared words 32 apart").conflicts == 31


def test_nothing_is_counted_unless_asked() -> None:
    emulated = counting()
    words = torch.zeros(2, 1024, dtype=torch.int32)
    touch = emulated.handle.gradwire_emulation_touch
    touch.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    assert touch(0, words[0].data_ptr(), words[1].data_ptr()) == 0
    assert emulated.handle.gradwire_emulation_kernels() == 0


@pytest.mark.full
@pytest.mark.parametrize("family", sorted({operation.family for operation in all_operations()}))
def test_operations_need_few_sectors(family: str) -> None:
    """Loads and stores of every operation stay within the limit, and nothing needs more than on record."""
    emulated, known, found = counting(), recorded(), []
    for name, operation, dtype in cases():
        if operation.family == family:
            kernels = measure(emulated, operation, dtype)
            assert bool(kernels) == (name in known), f"not on record, or no longer: {name}; {COMMAND}"
            if kernels:
                found += _too_many(name, summed(kernels).ratios, known[name])
    assert not found, "\n".join(found)


def _too_many(name: str, ratios: dict[str, float], known: dict[str, float]) -> list[str]:
    found = []
    for part, ratio in ratios.items():
        if ratio > known[part] * MARGIN:
            found.append(f"{name}: {part} {ratio}, on record {known[part]}; if it must be, {COMMAND}")
        if part in ("loads", "stores") and ratio > LIMIT and reason(name, part) is None:
            found.append(f"{name}: {part} need {ratio} of the fewest sectors, {LIMIT} at most")
    return found


def test_what_is_on_record() -> None:
    """Every exception is needed by some operation, and operations that are gone are not on record."""
    known = recorded()
    assert set(known) <= {name for name, *_ in cases()}
    for pattern in memory_accesses.EXCEPTIONS:
        parts = {name: ratios for name, ratios in known.items() if _excepted(pattern, name, ratios)}
        assert parts, f"nothing needs the exception {pattern}"


def _excepted(pattern: str, name: str, ratios: dict[str, float]) -> bool:
    return any(
        memory_accesses.fnmatchcase(f"{name} {part}", pattern) and ratios[part] > LIMIT
        for part in ("loads", "stores")
    )
