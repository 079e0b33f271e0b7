"""Statistics of gradients against closed forms and what transformations of a gradient must not change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwire.harness.studies.distribution import (
    bucket_energies,
    group_counts,
    group_energies,
    quantiles,
    share,
)
from gradwire.harness.studies.statistics.measures import (
    cosines,
    group_norms,
    inner_products,
    share_of_top,
    shuffle,
    super_group_energies,
    workers,
)
from gradwire.harness.studies.statistics.smoothing import (
    BINS,
    GROUP,
    LIMIT,
    code_counts,
    smoothing,
    some_groups,
    transformed,
)

NUMELS = [1, 7, 16, 255, 256, 257, 5000]


def gradients(rows: int, numel: int, neighbours: int = 16) -> Tensor:
    """Gradients whose neighbours share a magnitude while magnitudes differ: (rows, numel) float32."""
    generator = torch.Generator().manual_seed(0)
    magnitude = torch.exp(1.5 * torch.randn(-(-numel // neighbours), generator=generator))
    magnitude = magnitude.repeat_interleave(neighbours)
    return magnitude[:numel] * torch.randn(rows, numel, generator=generator)


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101, 1000])
def test_quantiles_are_values_that_so_many_do_not_exceed(count: int) -> None:
    values = torch.randperm(count, generator=torch.Generator().manual_seed(0)).double()
    found = quantiles(values)
    assert len(found) == 101 and found[0] == 0 and found[-1] == count - 1
    for percent, value in enumerate(found):
        assert int((values <= value).sum()) * 100 >= percent * count
        assert percent == 0 or int((values < value).sum()) * 100 < percent * count


@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize("size", [16, 128, 256])
def test_groups_are_consecutive_and_the_last_may_be_short(numel: int, size: int) -> None:
    x = gradients(1, numel)[0]
    expected = [float(part.double().square().sum()) for part in torch.split(x, size)]
    assert group_energies(x, size).tolist() == pytest.approx(expected, rel=1e-12)
    assert group_counts(numel, size).tolist() == [len(part) for part in torch.split(x, size)]


def test_groups_end_where_buckets_do() -> None:
    x = gradients(1, 1000)[0]
    together = bucket_energies(x, [300, 700], 256)
    apart = torch.cat([group_energies(x[:300], 256), group_energies(x[300:], 256)])
    assert torch.equal(together, apart) and len(together) == 2 + 3


@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e37])
def test_energies_neither_overflow_nor_vanish(scale: float) -> None:
    assert float(group_energies(torch.full((256,), scale), 256)) == pytest.approx(256 * scale**2, rel=1e-6)


@pytest.mark.parametrize("numel", NUMELS)
def test_norms_are_distributions(numel: int) -> None:
    """Quantiles rise; the numbers of groups are those of the buckets; shares are shares."""
    for found in group_norms(gradients(3, numel), [numel], seed=0):
        assert found.groups == 3 * -(-numel // found.size)
        assert found.quantiles == sorted(found.quantiles) and len(found.quantiles) == 101
        assert 0 <= found.below_100th <= found.below_10th <= 0.5 and 0 <= found.zeros <= 1


def test_a_shuffle_keeps_the_energy_and_loses_locality() -> None:
    """Norms of shuffled coordinates lie closer together, the seed decides which they are; a gradient without
    locality looks the same shuffled."""
    values = gradients(2, 40000, neighbours=256)
    order = shuffle(40000, seed=3)
    assert torch.equal(order.sort().values, torch.arange(40000))
    before, after = (bucket_energies(row, [40000], 16).sum() for row in (values[0], values[0][order]))
    assert float(before) == pytest.approx(float(after), rel=1e-12)

    found = {(each.size, each.shuffled): each for each in group_norms(values, [40000], seed=3)}
    for size in (16, 256):
        local, mixed = found[size, False], found[size, True]
        assert mixed.quantiles[90] / mixed.quantiles[10] < 0.7 * local.quantiles[90] / local.quantiles[10]
        assert mixed.below_10th <= local.below_10th
    assert group_norms(values, [40000], seed=3) == list(found.values())
    assert group_norms(values, [40000], seed=4) != list(found.values())

    even = group_norms(torch.randn(1, 40000, generator=torch.Generator().manual_seed(1)), [40000], seed=0)
    for same, mixed in zip(even[:2], even[2:], strict=True):
        assert mixed.quantiles[50] == pytest.approx(same.quantiles[50], rel=0.02)


def test_small_groups_are_counted() -> None:
    """Three of ten groups of 16 are zero; two are 1/20, and one is 1/200 of the others."""
    sizes = torch.tensor([0.0, 0.0, 0.0, 0.05, 0.05, 0.005, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    found = group_norms(sizes.repeat_interleave(16)[None], [16 * len(sizes)], seed=0)[0]
    assert found.zeros == pytest.approx(3 / 13)
    assert found.below_10th == pytest.approx(6 / 13) and found.below_100th == pytest.approx(4 / 13)


def test_equal_workers() -> None:
    x = gradients(1, 3000)[0]
    found = workers(torch.stack([x, x, x]), [3000])
    assert found.cosines == pytest.approx((1, 1, 1)) and found.energy_of_mean == pytest.approx(1)
    assert found.norms == pytest.approx([float(x.double().norm())] * 3)
    assert found.largest == pytest.approx(float(x.abs().max()))


def test_orthogonal_and_opposite_workers() -> None:
    """Four orthogonal gradients of one length: the mean keeps a quarter; opposite ones cancel."""
    found = workers(torch.eye(4).repeat_interleave(300, dim=1), [1200])
    assert found.cosines == pytest.approx((0, 0, 0)) and found.energy_of_mean == pytest.approx(1 / 4)
    x = gradients(1, 500)[0]
    found = workers(torch.stack([x, -x]), [500])
    assert found.cosines == pytest.approx((-1, -1, -1)) and found.energy_of_mean == pytest.approx(
        0, abs=1e-12
    )


def test_inner_products_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products do not depend on how coordinates are cut; workers without a gradient have no cosine."""
    values = gradients(3, 1000)
    values[1] = 0
    monkeypatch.setattr("gradwire.harness.studies.statistics.measures.TILE", 100)
    wide = values.double()
    products = inner_products(values)
    assert torch.allclose(products, wide @ wide.T, rtol=1e-12)
    expected = float(torch.nn.functional.cosine_similarity(wide[0], wide[2], dim=0))
    assert cosines(products) == pytest.approx((expected,) * 3)
    assert cosines(products[:2, :2]) is None


def test_energy_of_super_groups() -> None:
    """F_j is summed over workers; the top share is that of the largest, rounded up to whole super-groups."""
    values = torch.zeros(2, 100 * 256)
    values[0, :256], values[1, :256] = 3.0, 4.0
    values[1, 256:512] = 5.0
    energies = super_group_energies(values, [100 * 256])
    assert energies[:3].tolist() == [256 * 25.0, 256 * 25.0, 0.0]
    assert share_of_top(energies, 0.01) == 0.5 and share_of_top(energies, 0.1) == 1.0
    assert share_of_top(energies[:1], 0.01) == 1.0 and share_of_top(torch.zeros(5), 0.1) is None


def test_kurtosis_and_zeros() -> None:
    """±1 has kurtosis 1, k ones among N zeros N/k, Gaussians 3."""
    assert workers(torch.tensor([[1.0, -1.0] * 50]), [100]).kurtosis == pytest.approx(1)
    sparse = torch.zeros(2, 1000)
    sparse[0, :20] = 7.0
    found = workers(sparse, [1000])
    assert found.kurtosis == pytest.approx(100) and found.zeros == pytest.approx(0.99)
    gaussian = torch.randn(1, 400000, generator=torch.Generator().manual_seed(0))
    assert workers(gaussian, [400000]).kurtosis == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("numel", [1, 300])
def test_no_gradient_at_all(numel: int) -> None:
    """Figures that need energy are absent, not NaN."""
    values = torch.zeros(2, numel)
    found, smooth = workers(values, [numel]), smoothing(values)
    assert (found.cosines, found.energy_of_mean, found.kurtosis, found.top_1_percent) == (None,) * 4
    assert found.zeros == 1 and found.norms == [0, 0]
    for side in (smooth.before, smooth.after):
        assert side.kurtosis is None and side.peaks == side.group_histogram == []
        assert sum(side.histogram) == 1


def test_the_transform_keeps_norms_and_undoes_itself() -> None:
    x = gradients(1, 128 * 40)[0].double().view(-1, 128)
    once = transformed(x)
    blocks, same = (side.view(-1, 32).norm(dim=1) for side in (x, once))
    assert torch.allclose(blocks, same, rtol=1e-5)
    assert torch.allclose(transformed(once), x, atol=1e-5 * float(x.abs().max()))
    assert not torch.allclose(once, x, atol=0.1)


def test_one_outlier_is_spread_over_its_block() -> None:
    """One of 128 becomes 32 of one size: the peak falls from √128 to 2, the kurtosis from 128 to 4."""
    values = torch.zeros(1, 128)
    values[0, 77] = -2.5
    found = smoothing(values)
    assert found.before.peaks == pytest.approx([math.sqrt(128)] * 101)
    assert found.after.peaks == pytest.approx([2.0] * 101)
    assert found.before.kurtosis == pytest.approx(128) and found.after.kurtosis == pytest.approx(4)
    assert found.before.group_kurtosis[50] == pytest.approx(128)
    assert [code.zeros for code in found.before.codes] == [127 / 128] * 2
    assert [code.zeros for code in found.after.codes] == [96 / 128] * 2
    assert found.before.group_histogram[BINS // 2] == 127 / 128
    assert found.after.group_histogram[BINS // 2] == 96 / 128
    assert found.root_mean_square == pytest.approx(2.5 / math.sqrt(128))


def test_sparse_gradients_get_smoother_and_gaussian_ones_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(1, 1 << 17, generator=generator)
    sparse = gaussian * (torch.rand(1, 1 << 17, generator=generator) < 0.05)
    found = smoothing(sparse)
    assert found.before.kurtosis == pytest.approx(60, rel=0.1)
    assert found.after.kurtosis == pytest.approx(
        3 + 57 / 32, rel=0.1
    )  # sums of 32: the excess falls 32 times
    assert found.after.peaks[50] < 0.6 * found.before.peaks[50]
    same = smoothing(gaussian)
    for side in (same.before, same.after):
        assert side.kurtosis == pytest.approx(3, rel=0.03)
        assert sum(side.group_histogram) == pytest.approx(1)
    assert same.after.peaks[50] == pytest.approx(same.before.peaks[50], rel=0.03)


def test_histogram_of_gaussians() -> None:
    """Shares of a Gaussian's bins, in units of the root mean square at any scale; all shares sum to 1."""
    values = 3e-7 * torch.randn(1, 1 << 18, generator=torch.Generator().manual_seed(0))
    side = smoothing(values).before
    width = 2 * LIMIT / BINS
    assert sum(side.histogram) + side.outside == pytest.approx(1)
    assert side.histogram[BINS // 2] == pytest.approx(math.erf(width / 2 / math.sqrt(2)), rel=0.02)
    tail = sum(side.histogram[: BINS // 4])  # below −8 + 40 bins
    edge = -LIMIT + (BINS // 4) * width
    assert tail == pytest.approx((1 + math.erf(edge / math.sqrt(2))) / 2, rel=0.2)


def test_codes_are_sdp4bits() -> None:
    """round(x/s·7), ties to even, counted; a scalar loop gives the same."""
    groups = gradients(1, 128 * 10)[0].double().view(-1, 128)
    groups[3] = 0
    for bits in (4, 8):
        largest = 2 ** (bits - 1) - 1
        expected = [0] * (2 * largest + 1)
        for row in groups.tolist():
            scale = max(map(abs, row)) or 1.0
            for value in row:
                expected[round(value / scale * largest) + largest] += 1
        assert code_counts(groups, bits).tolist() == expected


def test_some_groups_of_long_gradients() -> None:
    """Whole groups, evenly spread; short gradients are taken whole."""
    x = torch.arange(10 * GROUP + 5)
    assert some_groups(x) is x
    chosen = some_groups(x, longest=4 * GROUP).view(-1, GROUP)
    assert chosen[:, 0].tolist() == [0, 3 * GROUP, 6 * GROUP, 9 * GROUP]
    assert torch.equal(chosen - chosen[:, :1], torch.arange(GROUP).expand(4, -1))


def test_share() -> None:
    assert share(torch.tensor([True, False, False, True])) == 0.5
