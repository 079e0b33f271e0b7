"""Demands on the lattice codec that take many rounds, many workers or real gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch
from codec_rounds import Cluster, as_bytes, gradients, layout_of, mean_of, vnmse
from lattice_rounds import LatticeRounds
from real_gradients import gpt2_gradients
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.codecs.lattice.codec import CODES
from gradwire.codecs.lattice.sizes import too_small
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.wrappers.decisions import decision_of

every_code = pytest.mark.parametrize("code", sorted(CODES))


def agreed(cluster: Cluster, xs: Sequence[Tensor], layout: Layout) -> Tensor:
    """The mean of a step without the hashes of `Cluster.step`: all ranks must have the same bits."""
    ranks = cluster.world.ranks
    results = cluster.world.run({rank: cluster._collective(rank, layout, xs, 0, False) for rank in ranks})
    cluster._end_step(skip=False)
    first = as_bytes(results[0])
    assert all(torch.equal(first, as_bytes(results[rank])) for rank in ranks), cluster.steps
    return results[0]


@every_code
@pytest.mark.parametrize("rounds", [60, pytest.param(10_000, marks=pytest.mark.full)])
def test_all_ranks_agree_in_every_round(code: str, rounds: int) -> None:
    """In the smallest bucket with slots, whose gradients change their magnitude and shape all the time."""
    layout = layout_of({"a": (10, 256)})
    assert not too_small(Slots(layout.numel, 3, 64), 3, 5.0)
    given = [gradients(layout, 3, step) for step in range(16)]
    scales = [10.0 ** ((7 * step) % 11 - 5) for step in range(11)]
    cluster = Cluster(3, "ring", "lattice", code=code)
    for step in range(rounds):
        xs = [x * scales[step % 11] for x in given[step % 16]]
        if step % 13 == 5:
            xs[step % 3] = torch.zeros(layout.numel)
        if step % 29 == 7:
            xs[step % 3][:: step % 7 + 1] *= 1e3
        agreed(cluster, xs, layout)
        if step % 500 == rounds % 500:
            decisions = [decision_of(codec) for codec in cluster.codecs]
            assert all(each == decisions[0] for each in decisions)


@pytest.mark.full
@every_code
@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
def test_the_energy_of_the_bias_is_below_a_2000th_of_the_error(
    code: str, topology: str, share: float
) -> None:
    """Also where slots have 0.7 of the bits that they want. The mean error of `rounds` rounds has the energy
    of the bias and that of single errors divided by their number."""
    rounds, xs = 500, [x[:2048] for x in gradients(layout_of({"a": (8, 256)}), 3)]
    step = -11 * 64
    free = LatticeRounds(xs, topology, step=step, code=code, compiled=True)
    free.mean()
    size = {workers: int(share * max(wanted)) // 32 * 32 + 32 for workers, wanted in free.wanted.items()}
    tried = LatticeRounds(xs, topology, step=step, code=code, size=size, compiled=True)
    exact, total, single = mean_of(xs), torch.zeros(2048, dtype=torch.float64), 0.0
    for seed in range(rounds):
        error = tried.mean(seed).double() - exact
        total, single = total + error / rounds, single + float(error.square().sum()) / rounds
    bias = (float(total.square().sum()) - single / rounds) / (1 - 1 / rounds)
    assert bias < 5e-4 * single


@pytest.mark.full
@every_code
def test_a_ring_of_64_is_stable(code: str) -> None:
    """Its error grows as the number of roundings does, and no more: a step of the same bits grows with sums
    of gradients that resemble one another as their mean does."""
    layout, errors = layout_of({"a": (260, 256)}), dict[int, list[float]]()
    for size in (8, 64):
        cluster, errors[size] = Cluster(size, "ring", "lattice", code=code), []
        for step in range(4):
            xs = gradients(layout, size, step)
            errors[size].append(vnmse(cluster.quick(xs, layout), xs))
    assert max(errors[64]) < 0.02 and errors[64][-1] < 1.2 * errors[64][0]
    assert errors[64][-1] < 63 / 7 * errors[8][-1]


@lru_cache(maxsize=1)
def real_steps() -> list[list[Tensor]]:
    """Gradients of four workers in five consecutive steps of a tiny GPT-2."""
    return list(gpt2_gradients(4, 5))


def errors_of(codec: str, topology: str, bits: float, loud: float = 1.0) -> float:
    """The sum of the errors of the last three real steps in a row; one worker's gradients are `loud` times as
    large."""
    layout = Layout.flat(real_steps()[0][0].numel())
    cluster, found = Cluster(4, topology, codec, bits=bits), 0.0
    for step, own in enumerate(real_steps()):
        xs = [x * loud if rank == 1 else x for rank, x in enumerate(own)]
        mean = cluster.quick(xs, layout)
        found += vnmse(mean, xs) * (step >= 2)
    return found


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("bits", [3.0, 4.0, 5.0])
def test_real_steps_in_a_row_have_half_the_error_of_dynamiq_plus(topology: str, bits: float) -> None:
    assert errors_of("lattice", topology, bits) < 0.5 * errors_of("dynamiq_plus", topology, bits)


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("bits", [3.0, 5.0])
def test_a_worker_with_ten_times_the_norm_costs_little(topology: str, bits: float) -> None:
    lattice, plus = (errors_of(codec, topology, bits, loud=10.0) for codec in ("lattice", "dynamiq_plus"))
    assert lattice < 1.1 * plus
