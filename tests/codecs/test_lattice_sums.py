"""Promises of the lattice codec's sums: integers that add up exactly, and nothing lost on average where they
do not fit."""

from __future__ import annotations

import pytest
import torch
from codec_rounds import gradients, layout_of, mean_of
from lattice_rounds import LatticeRounds, rounded
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.lattice.codec import CODES
from gradwire.codecs.lattice.codes import BROKEN, SILENT, slot_bits
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.sink import finest
from gradwire.codecs.lattice.sums import Shifts, Sum, exactly_added, lengths

LAYOUT = layout_of({"a": (40, 256)})
STEP = -11 * 64
"""log2 of D in units: about half the gradients' root mean square."""

every_code = pytest.mark.parametrize("code", sorted(CODES))

SHAPES = [
    *[("ring", size, 1) for size in (2, 3, 5)],
    *[("butterfly", size, 1) for size in (2, 3, 4, 6, 7)],
    *[("two_level", 4, 2), ("two_level", 6, 2)],
]
"""Topologies, their ranks and nodes."""


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_strata_are_unbiased_each_and_cancel_together(count: int) -> None:
    """Each worker's rounding is right on average; the sum of all workers' roundings of one value is off by
    less than a step, not by the square root of their number."""
    places, v = torch.arange(400), torch.linspace(-2, 2, 256).double()
    draws = [Draws(stream_key(3, 0, 1), rank) for rank in range(count)]
    noises = [own.strata(places, index, count).double() for index, own in enumerate(draws)]
    assert all(float(noise.min()) > 0 and float(noise.max()) < 1 for noise in noises)
    roundings = torch.stack([(v + noise).floor() for noise in noises])
    spread = 5 * 0.5 / len(places) ** 0.5
    assert float((roundings.mean(dim=1) - v).abs().max()) < spread
    assert float((roundings.sum(dim=0) - count * v).abs().max()) < 1 + 1e-3
    assert float((roundings.mean(dim=(1, 2)) - v.mean()).abs().max()) < spread / 256**0.5


@every_code
@pytest.mark.parametrize(("topology", "size", "nodes"), SHAPES)
def test_a_reduce_scatter_is_the_sum_of_integers(code: str, topology: str, size: int, nodes: int) -> None:
    """Exactly, whatever the order in which messages are added: D·Σq of all workers but one, and that one's
    gradient."""
    xs = gradients(LAYOUT, size)
    rounds = LatticeRounds(xs, topology, step=STEP, code=code, nodes=nodes)
    mean, sink = rounds.scattered()
    assert int(sink.min()) >= 0
    q = torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for rank, x in enumerate(xs):
        q += torch.where(sink == rank, 0.0, rounded(x, rank, sink, size, STEP))
    own = torch.stack(xs).gather(0, sink[None])[0]
    d = torch.tensor(2.0 ** (STEP / 64))
    assert torch.equal(mean, (q.to(torch.float32) * d + own) / torch.tensor(float(size)))
    assert float(q.abs().max()) > 3, "too few steps for a test"


@every_code
@pytest.mark.parametrize(("topology", "size"), [("ring", 3), ("butterfly", 5), ("broadcast", 3)])
def test_errors_are_those_of_the_roundings_alone(code: str, topology: str, size: int) -> None:
    """D²/12 for each of n − 1 workers and c² times that at the sink, which may round more finely, too: no
    more, and no less than the workers' share."""
    xs = gradients(LAYOUT, size)
    error = LatticeRounds(xs, topology, step=STEP, code=code).mean() - mean_of(xs)
    one = 4.0 ** (STEP / 64) / 12 / size**2
    energy = float(error.square().mean())
    workers = size if topology == "broadcast" else size - 1
    assert energy < 1.3 * 2 * workers * one


@every_code
@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
def test_forced_overflow_leaves_the_mean_unbiased(code: str, topology: str) -> None:
    """Slots have 0.7 of the bits that they want: the error of the mean over many rounds is that of one round
    divided by their number."""
    xs, seeds = [x[:4096] for x in gradients(LAYOUT, 3)], 60
    free = LatticeRounds(xs, topology, step=STEP, code=code)
    free.mean()
    size = {workers: int(0.7 * max(wanted)) // 32 * 32 for workers, wanted in free.wanted.items()}
    tight = LatticeRounds(xs, topology, step=STEP, code=code, size=size)
    exact, total, single = mean_of(xs), torch.zeros(4096, dtype=torch.float64), 0.0
    for seed in range(seeds):
        error = tight.mean(seed).double() - exact
        total, single = total + error / seeds, single + float(error.square().sum()) / seeds
    assert single > 1.5 * float((free.mean() - exact).square().sum()), "nothing overflows"
    assert float(total.square().sum()) < 1.35 * single / seeds


def adversarial(seed: int) -> Tensor:
    """Integers of two slots that are hard on a code: spikes, dense large ones, alternating signs, some of
    everything."""
    draw = torch.Generator().manual_seed(seed)
    q = torch.randint(-(2**29), 2**29, (2, 5, 256), generator=draw)
    q = q >> torch.randint(0, 30, (2, 5, 256 if seed % 2 else 1), generator=draw)
    if seed % 3 == 0:
        q = q * (torch.rand(2, 5, 256, generator=draw) < 0.02)
    return q


@every_code
@pytest.mark.parametrize("seed", range(8))
def test_no_slot_is_larger_than_what_it_gets(code: str, seed: int) -> None:
    """Neither partial sums nor sealed ones, whatever they are, in slots of few bits: and what is sent is near
    to what was given, in the steps that are left."""
    q, made = adversarial(seed), CODES[code]
    order, zero = torch.arange(10).view(2, 5), torch.zeros(2, 5, dtype=torch.int64)
    shifts = Shifts(Draws(stream_key(seed, 0, 1), 0), order)
    for bits in (0.2, 1, 3):
        size = int(slot_bits(zero)[0] + 8 * 5 + bits * 5 * 256) // 32 * 32
        found, wanted = shifts.fitted(Sum(q, zero, zero), made, size, 1)
        assert torch.equal(wanted, slot_bits(lengths(Sum(q, zero, zero), made)))
        assert int(slot_bits(lengths(found, made)).max()) <= size
        assert int((found.shift.amax(dim=1) - found.shift.amin(dim=1)).max()) <= 3
        off = (found.whole - q).abs().amax(dim=2)
        assert bool((off < 1 << found.shift).all()) and (bits < 3 or int(found.shift.max()) < 31)
        sealed, number, _ = finest(q.float(), torch.rand(2, 5, 256), made, size)
        assert int(slot_bits(lengths(Sum(sealed, zero, zero), made)).max()) <= size
        assert int(number.max()) < 1023


def test_sums_with_shifts_add_up_to_within_the_larger_one() -> None:
    q = [torch.randint(-1000, 1000, (2, 5, 256), generator=torch.Generator().manual_seed(k)) for k in (0, 1)]
    shift = [torch.randint(0, 4, (2, 5), generator=torch.Generator().manual_seed(k)) for k in (2, 3)]
    mark = torch.zeros(2, 5, dtype=torch.int64)
    a, b = (Sum(q[k], shift[k], mark) for k in (0, 1))
    exact = exactly_added(a, b)
    assert torch.equal(exact.q, (q[0] << shift[0][..., None]) + (q[1] << shift[1][..., None]))
    shifts = Shifts(Draws(stream_key(0, 0, 1), 0), torch.arange(10).view(2, 5))
    found = shifts.added(a, b, turn=2)
    assert torch.equal(found.shift, torch.maximum(*shift))
    assert bool(((found.whole - exact.q).abs() < 1 << found.shift[..., None]).all())
    total = sum((shifts.added(a, b, turn=turn).whole - exact.q).double() for turn in range(2, 202))
    assert abs(float(total.mean())) / 200 < 5 * 8 / (200 * 2560) ** 0.5  # type: ignore[union-attr]


def test_marks_of_sums_are_those_of_both() -> None:
    kinds = (0, SILENT, BROKEN)
    zero = torch.zeros(1, 1, 256, dtype=torch.int64)
    for a in kinds:
        for b in kinds:
            marks = [torch.tensor([[kind]]) for kind in (a, b)]
            sums = [Sum(zero, torch.zeros(1, 1, dtype=torch.int64), mark) for mark in marks]
            expected = BROKEN if BROKEN in (a, b) else SILENT if a == b == SILENT else 0
            assert exactly_added(*sums).mark.item() == expected
