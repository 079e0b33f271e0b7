"""The emulation of CUDA itself: what it must find in kernels, and the arithmetic it stands in for."""

from __future__ import annotations

import ctypes
import math
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from emulation import NOT_BUILT, UNWATCHED, emulation

from gradwire.codecs.native.loading import Library, library

TRIALS = {
    "a read after a shuffle": "wrote .* and no barrier came before it was read",
    "a read after __syncwarp": "",
    "a write after a ballot": "read byte .* before it was written",
    "another warp's write, after __syncwarp": "no barrier came before it was",
    "another warp's write, after __syncthreads": "",
    "two values in one place": "wrote byte .* before it was written",
    "one value from all lanes": "",
    "a sum of atomics": "",
    "a sum of atomics, read at once": "no barrier came before it was",
    "halves of words": "",
    "a collective that one lane misses": "deadlock",
    "a barrier that one thread misses": "deadlock",
    "another block's write, after a cluster's barrier": "",
    "another block's write, after a barrier of the grid": "",
    "shared memory while other blocks run": "",
    "a write after a read and a cluster's barrier": "",
    "a cluster's barrier that one thread misses": "deadlock",
    "a barrier of the grid that one thread misses": "deadlock",
    "a barrier of the grid in a launch of clusters": "a barrier of blocks that this launch does not have",
}
"""The trials of csrc/emulation/trials.cu, in their order, and the reports of the watching emulation."""

SEEN_BY_ALL = tuple(TRIALS)[12:16]

RNG = random.Random(0)
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    3.4e38,
    -3.4e38,
    1e-45,
    -1e-40,
    65504.0,
    2**-14,
)


@pytest.fixture
def emulated() -> Iterator[Library]:
    found = emulation()
    yield found
    found.handle.gradwire_emulation_choose(False, False, False)


def test_make_has_built_it() -> None:
    """A library that `make` has built is found: tests skipped for want of it do not go unnoticed."""
    if not (Path(__file__).parents[2] / ".venv" / ".emulated").exists():
        pytest.skip(NOT_BUILT)
    assert (library("emulated") is None) == (library("cpu") is None)


@pytest.mark.parametrize("trial", TRIALS)
def test_what_nothing_orders_is_found(emulated: Library, trial: str) -> None:
    number, out = list(TRIALS).index(trial), (ctypes.c_uint32 * 256)()
    if emulated.handle.gradwire_emulation_choose(False, True, True):
        pytest.skip(UNWATCHED)
    code = emulated.handle.gradwire_emulation_try(number, out)
    said = emulated.error(code)
    if TRIALS[trial]:
        assert code and re.search(TRIALS[trial], said), said
    else:
        assert code == 0, said
    emulated.handle.gradwire_emulation_choose(False, False, False)
    if trial in SEEN_BY_ALL:
        assert list(out) == [4] * 256, "each thread sees what four blocks have written, and its own memory"
    if "deadlock" not in TRIALS[trial] and "launch" not in TRIALS[trial]:
        assert emulated.handle.gradwire_emulation_try(number, out) == 0, "unwatched, coroutines give an order"


def bits(x: float) -> int:
    """The pattern of the float32 nearest to x."""
    return int(np.float32(x).view(np.uint32))


def number(pattern: int) -> float:
    return float(struct.unpack("f", struct.pack("I", pattern))[0])


def pairs(count: int = 300) -> Iterator[tuple[int, int]]:
    yield from ((bits(a), bits(b)) for a in SPECIAL for b in SPECIAL)
    for _ in range(count):
        a = RNG.getrandbits(32)
        yield a, RNG.getrandbits(32)
        yield a, (a + RNG.randint(-(3 << 23), 3 << 23)) % (1 << 32) ^ RNG.getrandbits(1) << 31


def computed(emulated: Library, function: int) -> Callable[..., int]:
    compute = emulated.handle.gradwire_emulation_compute
    compute.restype, compute.argtypes = ctypes.c_uint32, [ctypes.c_int, *[ctypes.c_uint32] * 3]
    return lambda a, b=0, c=0: int(compute(function, a, b, c))


def test_sums_towards_zero(emulated: Library) -> None:
    add = computed(emulated, 0)
    for a, b in pairs():
        x, y, found = number(a), number(b), add(a, b)
        if math.isnan(x + y):
            assert found == 0x7FFFFFFF
        elif math.isinf(x) or math.isinf(y):
            assert number(found) == x + y
        else:
            exact, value = Fraction(x) + Fraction(y), number(found)
            assert abs(Fraction(value)) <= abs(exact) and (value >= 0) == (exact >= 0 or value == 0)
            further = found + 1
            assert further & 0x7FFFFFFF == 0x7F800000 or abs(Fraction(number(further))) > abs(exact)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sums_of_float16(emulated: Library) -> None:
    add = computed(emulated, 2)
    for a, b in pairs():
        words = [np.array([x], np.uint32).view(np.float16) for x in (a, b, add(a, b))]
        expected = (words[0] + words[1]).view(np.uint16)
        expected[np.isnan(words[0] + words[1])] = 0x7FFF
        assert (words[2].view(np.uint16) == expected).all()


def test_conversions_to_bfloat16(emulated: Library) -> None:
    convert = computed(emulated, 1)
    for a, b in pairs():
        both = torch.tensor([b, a]).to(torch.int32).view(torch.float32)
        expected = both.to(torch.bfloat16).view(torch.int16).int() & 0xFFFF
        expected[both.isnan()] = 0x7FFF
        found = convert(a, b)
        assert [found & 0xFFFF, found >> 16] == expected.tolist()


def test_maxima_and_products_make_the_devices_nan(emulated: Library) -> None:
    maximum, product = computed(emulated, 3), computed(emulated, 5)
    for a, b in pairs():
        x, y = number(a), number(b)
        nan = math.isnan(x) or math.isnan(y)
        assert maximum(a, b) == (0x7FFFFFFF if nan else bits(max(x, y)) if x != y or a == b else 0)
        with np.errstate(all="ignore"):
            wanted = np.float32(x) * np.float32(y)
        assert product(a, b) == (0x7FFFFFFF if np.isnan(wanted) else bits(float(wanted)))


def test_integers(emulated: Library) -> None:
    permute, left, right, high = (computed(emulated, function) for function in (4, 7, 8, 9))
    for a, b in pairs():
        octets = struct.pack("<II", a, b)
        selector = RNG.getrandbits(16)
        chosen = bytes(octets[selector >> 4 * i & 7] for i in range(4))
        assert permute(a, b, selector) == int.from_bytes(chosen, "little")
        shift = selector % 64
        assert left(a, b, shift) == ((b << 32 | a) << shift % 32) >> 32 & 0xFFFFFFFF
        assert right(a, b, shift) == (b << 32 | a) >> shift % 32 & 0xFFFFFFFF
        assert high(a, b) == a * b >> 32


def test_estimates_of_log2_err(emulated: Library) -> None:
    """By as much as a processor may, in units of 2^-22 or of the logarithm's last places; subnormals are
    zeros."""
    log2 = computed(emulated, 6)
    numbers = np.random.default_rng(0).lognormal(0, 9, 2000).astype(np.float32).tolist()
    errors = [abs(number(log2(bits(x))) / 2**-22 - math.log2(x) / 2**-22) for x in numbers]
    shares = [error / max(abs(math.log2(x)), 1) for error, x in zip(errors, numbers, strict=True)]
    assert 0.7 < max(shares) <= 1
    assert number(log2(bits(1e-40))) == -math.inf and number(log2(bits(math.inf))) == math.inf
    assert log2(bits(-1.0)) == log2(bits(math.nan)) == 0x7FFFFFFF


@pytest.mark.full
def test_a_kernel_that_is_new_to_a_watched_device_registers_its_variables(emulated: Library) -> None:
    """In a process whose first variables of shared memory lie on both sides of the emulation's own."""
    if emulated.handle.gradwire_emulation_choose(False, True, True):
        pytest.skip(UNWATCHED)
    one, other = (
        "test_bitpack_kernels.py::test_long_streams_equal_the_definition[32-emulated]",
        "test_dynamiq_kernels.py::test_every_setting[distinct-small]",
    )
    arguments = ("-n", "0", "-m", "", *(str(Path(__file__).parent / each) for each in (one, other)))
    ran = subprocess.run([sys.executable, "-m", "pytest", *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
