"""dynamiq_plus on a language model's gradients: against DynamiQ at equal bits, and what each change gains."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from dynamiq_cluster import Cluster
from dynamiq_rounds import make_hops, run_ring, vnmse
from real_gradients import gpt2_gradients
from torch import Tensor

from gradwire.codecs.dynamiq import DynamiQ, DynamiQPlus
from gradwire.codecs.dynamiq.allocation import WIDTH_ERRORS
from gradwire.codecs.dynamiq.format import to_super_groups


@pytest.fixture(scope="module")
def gradients() -> list[Tensor]:
    """The gradients of 16 workers in the eleventh step, (120576,) float32 each."""
    return list(gpt2_gradients(workers=16, steps=11))[-1]


def error_and_bits(codec: DynamiQ, xs: list[Tensor], topology: str = "ring") -> tuple[float, float]:
    """vNMSE, and bits on the wire per coordinate."""
    cluster = Cluster([codec] * len(xs), topology)
    error = vnmse(cluster.step(xs), xs)
    sent = sum(cluster.bytes_sent(phase) for phase in ("metadata", "reduce_scatter", "all_gather"))
    return error, 8 * sent / (2 * (len(xs) - 1) * xs[0].numel())


CASES = [(4, bits, topology) for bits in (3, 4, 5, 6) for topology in ("ring", "butterfly")]
CASES += [(8, 3, "ring"), (8, 6, "butterfly"), (16, 4, "ring"), (16, 5, "butterfly")]


@pytest.mark.parametrize(("workers", "bits", "topology"), CASES)
def test_it_has_less_than_half_of_dynamiqs_error_at_equal_bits(
    gradients: list[Tensor], workers: int, bits: int, topology: str
) -> None:
    xs = [x[40_000:90_000] if workers > 8 else x for x in gradients[:workers]]
    (paper, paper_bits), (plus, plus_bits) = (
        error_and_bits(codec, xs, topology) for codec in (DynamiQ(bits=bits), DynamiQPlus(bits=bits))
    )
    assert plus < 0.45 * paper
    alignment = 8 * 16 * (workers + 1) / xs[0].numel()
    assert bits - alignment < plus_bits <= bits and abs(plus_bits - paper_bits) < alignment


STEPS: list[dict[str, Any]] = [
    {"widths": [2, 3, 4, 5, 6, 8]},
    {"errors": "measured"},
    {"mean": False},
    {"values": "distinct"},
    {"group": 32},
    {"codebooks": 4},
    {"scale_rounding": "ceil"},
    {"widths": [2, 3, 4, 5, 6, 8, 16]},
]


@pytest.mark.parametrize("bits", [4, 6])
def test_each_change_gains_or_costs_next_to_nothing(gradients: list[Tensor], bits: int) -> None:
    """One after another, from DynamiQ to dynamiq_plus; at 6 bits, groups of 32 pay only with what follows."""
    options: dict[str, Any] = {}
    errors = [error_and_bits(DynamiQ(bits=bits), gradients[:4])[0]]
    for step in STEPS:
        options |= step
        errors.append(error_and_bits(DynamiQ(bits=bits, **options), gradients[:4])[0])
    assert errors[-1] == error_and_bits(DynamiQPlus(bits=bits), gradients[:4])[0]
    assert all(after < 1.1 * before for before, after in pairwise(errors)), errors
    assert sum(after < 0.97 * before for before, after in pairwise(errors)) >= 5, errors


def test_it_is_far_better_where_a_few_super_groups_hold_the_energy(gradients: list[Tensor]) -> None:
    """The 8 bits of random scales are then the only error, whatever the budget."""
    xs = [x.clone() for x in gradients[:4]]
    for x in xs:
        x[: 256 * 12] *= 300
    assert error_and_bits(DynamiQPlus(), xs)[0] < 0.05 * error_and_bits(DynamiQ(), xs)[0]


@pytest.mark.parametrize("group", [16, 32])
def test_measured_errors_are_what_one_rounding_costs(gradients: list[Tensor], group: int) -> None:
    """The mean over super-groups of error over energy: within a quarter."""
    rows = to_super_groups(gradients[0])
    rows = rows[rows.abs().amax(dim=1) > 0][-300:]
    energy = rows.double().square().sum(dim=1)
    for width, expected in WIDTH_ERRORS[group].items():
        codec = DynamiQPlus(widths=[width], bits=None, group=group, codebooks=1, rounding="independent")
        lost = run_ring(make_hops(codec, [rows.flatten()]))[0].view_as(rows).double() - rows
        share = (lost.square().sum(dim=1) / energy).mean()
        assert float(share) == pytest.approx(expected, rel=0.25)


def test_the_measured_table_has_every_width_on_its_hull() -> None:
    """The benefit per bit falls from width to width, so that no width is skipped."""
    for errors in WIDTH_ERRORS.values():
        widths = sorted(errors)
        benefits = [(errors[a] - errors[b]) / (b - a) for a, b in pairwise(widths)]
        assert benefits == sorted(benefits, reverse=True) and min(benefits) > 0
    assert torch.tensor([WIDTH_ERRORS[32][w] / WIDTH_ERRORS[16][w] for w in WIDTH_ERRORS[16]]).min() > 1.1
