"""The formats' errors on a language model's gradients have the ratios of DynamiQ's Table 3."""

from __future__ import annotations

import pytest
from mxfp_rounds import Cluster, vnmse
from real_gradients import gpt2_gradients
from torch import Tensor

WORKERS = 4


@pytest.fixture(scope="module")
def gradients() -> list[list[Tensor]]:
    """The gradients of sixteen steps, because in a single step a few blocks hold most of the energy and
    decide the ratio."""
    return list(gpt2_gradients(WORKERS, steps=16))


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
def test_fewer_bits_cost_as_much_as_they_should(topology: str, gradients: list[list[Tensor]]) -> None:
    """MXFP6 has one mantissa bit less than MXFP8: four times the squared error of every cast."""
    errors = {
        name: sum(vnmse(Cluster(WORKERS, topology, name=name).step(xs)[0][0], xs) for xs in gradients)
        / len(gradients)
        for name in ("mxfp8", "mxfp6", "mxfp4")
    }
    assert 5e-4 < errors["mxfp8"] < 5e-3
    assert 3 < errors["mxfp6"] / errors["mxfp8"] < 5
    assert errors["mxfp4"] > 3 * errors["mxfp6"]
