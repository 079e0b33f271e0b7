"""The size of the error and its causes: clamping, rounding, small blocks; and the effect of error
feedback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thc_rounds import exact_mean, gradients, mean_and_losses, vnmse
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.codecs.thc import THC
from gradwire.codecs.thc.blocks import optimal_table, uniform_table

LARGE = Layout.flat(1 << 20)


def shares(xs: list[Tensor], steps: int, **options: Any) -> Tensor:
    """The share of the exact mean in a round's, ⟨mean, exact⟩/⟨exact, exact⟩, by step."""
    exact = exact_mean(xs)
    means = (mean_and_losses(xs, step, **options)[0].double() for step in range(steps))
    return torch.stack([mean @ exact / (exact @ exact) for mean in means])


@pytest.mark.parametrize("table", ["uniform", "nonuniform"])
def test_without_clamping_it_is_unbiased(table: str) -> None:
    """t_p = √block is never exceeded. The same block 2000 times over: every coordinate's mean is its own,
    within the noise."""
    xs, times = [x.repeat(2000) for x in gradients(64, 2)], 2000
    options = {"block": 64, "t_p": 8.0, "table": table}
    assert THC(**options).traits.unbiased
    means = mean_and_losses(xs, **options)[0].double().view(times, 64)
    exact = exact_mean(xs).view(times, 64)[0]
    deviation = (means.mean(dim=0) - exact) / (means.std(dim=0) / times**0.5)
    assert float(deviation.abs().max()) < 4
    assert 0.5 < float(deviation.square().mean()) < 1.7


def test_clamping_takes_1_of_32() -> None:
    """E(z·clamp(z)) = P(|z| < t) for a normal z: the share of the gradient that arrives is 31/32, not 1."""
    xs = gradients(8192, 2, spread=0.5)
    assert not THC().traits.unbiased
    share = shares(xs, 12)
    assert abs(float(share.mean()) - 31 / 32) < 4 * float(share.std()) / 12**0.5
    unclamped = shares(xs, 12, t_p=5.0)
    assert abs(float(unclamped.mean()) - 1) < 4 * float(unclamped.std()) / 12**0.5
    assert float(share.mean()) < 0.98


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({}, uniform_table(4)),
        ({"quantization_bits": 3}, uniform_table(3)),
        ({"table": "nonuniform"}, optimal_table(4, 30, 2.154)),
    ],
)
def test_one_worker_loses_the_share_a_normal_distribution_would(options: dict[str, Any], table: Any) -> None:
    """This holds although the gradient is far from normal, because it is rotated."""
    x = gradients(8192, 1)[0]
    steps = [mean_and_losses([x], step, **options)[1][0] for step in range(40)]
    lost = float(torch.stack(steps).square().sum(dim=1).mean() / x.square().sum())
    assert lost == pytest.approx(table.expected_error(2.154), rel=0.04)


def test_blocks_that_share_a_range_are_much_worse_when_small() -> None:
    """Layers that differ in magnitude: a block of few of them exceeds a range that follows the whole bucket,
    as in THC's own partial rotation. A range for every block makes up for it."""
    xs = gradients(16384, 2, spread=2.0, layer=1024)
    whole, shared, own = (
        vnmse(mean_and_losses(xs, **options)[0], xs)
        for options in ({}, {"block": 512, "norm": "bucket"}, {"block": 512})
    )
    assert shared > 5 * whole
    assert own == pytest.approx(whole, rel=0.2)


def test_small_blocks_are_worse_where_workers_differ() -> None:
    """Only some workers have certain rows, like an embedding's: in a small block the largest norm among
    workers is far above the mean."""
    generator = torch.Generator().manual_seed(3)
    xs = [torch.randn(256, 64, generator=generator) for _ in range(4)]
    for x in xs:
        x[torch.rand(256, generator=generator) < 0.95] = 0
    buckets = [x.flatten() for x in xs]
    errors = [vnmse(mean_and_losses(buckets, block=block)[0], buckets) for block in (0, 1024, 64)]
    assert 2.5 * errors[0] < errors[2]
    assert errors[0] < errors[1] < errors[2]


def residuals(xs: list[Tensor], steps: int, **options: Any) -> list[float]:
    """With error feedback: the residuals' norm relative to that of the gradients, by step."""
    kept, norms = [torch.zeros_like(x) for x in xs], []
    for step in range(steps):
        _, kept = mean_and_losses([x + loss for x, loss in zip(xs, kept, strict=True)], step, **options)
        norms.append(float(torch.cat(kept).norm() / torch.cat(xs).norm()))
    return norms


@pytest.mark.parametrize("options", [{}, {"norm": "bucket", "block": 64}, {"quantization_bits": 2}])
def test_residuals_stay_where_feedback_is_accepted(options: dict[str, Any]) -> None:
    norms = residuals(gradients(500, 3), 60, **options)
    assert THC(**options).refuses_feedback(3, LARGE) is None
    assert max(norms[30:]) < 1.5 * max(norms[10:30]) < 3


@pytest.mark.parametrize("options", [{"quantization_bits": 1}, {"quantization_bits": 2, "t_p": 4.0}])
def test_residuals_grow_where_feedback_is_refused(options: dict[str, Any]) -> None:
    norms = residuals(gradients(500, 3), 40, **options)
    refusal = THC(**options).refuses_feedback(3, LARGE)
    assert refusal is not None
    assert "codec.quantization_bits" in refusal
    assert norms[39] > 2 * norms[19] > 4 * norms[0]
