"""Top-k: choice and means against sorting, bytes, edges, and what error feedback keeps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from codec_rounds import as_bytes, mean_of
from sparse_rounds import Ranks, heavy, kept_by_feedback
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.codecs.topk import TopK, largest_coordinates

LARGE = Layout.flat(1 << 20)

TOPOLOGY_NAMES = ["ring", "butterfly", "broadcast"]
WIRE = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}


def reference(xs: list[Tensor], count: int, values: str) -> np.ndarray:
    """The mean of every worker's `count` largest coordinates, found by sorting Python numbers."""
    total = np.zeros(xs[0].numel(), np.float32)
    for x in xs:
        own = x.float().numpy()
        chosen = sorted(range(len(own)), key=lambda i: (-abs(float(own[i])), i))[:count]
        total[chosen] += own[chosen].astype(WIRE[values]).astype(np.float32)
    mean: np.ndarray = total / np.float32(len(xs))
    return mean


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
@pytest.mark.parametrize("values", ["fp32", "bf16"])
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_means_are_the_references_bit_for_bit(workers: int, values: str, topology: str) -> None:
    """This holds on every topology, on all ranks (hashes are compared), at any size and for each dtype."""
    for numel, fraction in ((1, 0.01), (7, 0.5), (255, 0.01), (1000, 0.1), (1000, 1.0)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            xs = [x.to(dtype) for x in heavy(numel, workers, seed=numel)]
            layout = Layout(("a",), ((numel,),), (0,), numel, dtype)
            mean = Ranks(lambda f=fraction: TopK(fraction=f, values=values), workers, topology).one(
                xs, layout
            )
            expected = torch.from_numpy(reference(xs, max(round(fraction * numel), 1), values))
            assert torch.equal(as_bytes(mean), as_bytes(expected.to(dtype)))


@pytest.mark.parametrize("count", [1, 3, 6, 7, 8])
def test_of_magnitudes_alike_the_first_are_chosen(count: int) -> None:
    x = torch.tensor([0.0, -2.0, 2.0, 1.0, -2.0, 3.0, 2.0, -0.0])
    order = [5, 1, 2, 4, 6, 3, 0, 7]
    assert largest_coordinates(x, count).tolist() == sorted(order[:count])


@pytest.mark.parametrize(("values", "num_bytes"), [("fp32", 8), ("bf16", 6)])
@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
def test_bytes_are_an_index_and_a_value_to_everybody(topology: str, values: str, num_bytes: int) -> None:
    ranks = Ranks(lambda: TopK(fraction=0.02, values=values), 4, topology)
    ranks.one(heavy(1003, 4))
    assert ranks.bytes_sent() == 4 * 3 * 20 * num_bytes


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_what_is_not_finite_comes_first(values: str) -> None:
    """NaN before infinity before the largest number, of any rank."""
    xs = heavy(1000, 3)
    xs[0][500], xs[1][7], xs[2][999] = torch.nan, -torch.inf, torch.inf
    mean = Ranks(lambda: TopK(fraction=0.001, values=values), 3).one(xs)
    assert mean.nonzero()[:, 0].tolist() == [7, 500, 999]
    assert mean[500].isnan()
    assert mean[7] == -torch.inf
    assert mean[999] == torch.inf
    assert largest_coordinates(torch.tensor([3e38, torch.inf, -torch.nan, 1.0]), 1).tolist() == [2]


def test_the_ends_of_float32() -> None:
    x = torch.tensor([1e-45, -1e38, 1e-30, -0.0])
    assert Ranks(lambda: TopK(fraction=0.75), 2).one([x, x]).tolist() == [*(x / 1).tolist()[:3], 0.0]
    zeros = Ranks(TopK, 2).one([-torch.zeros(300)] * 2)
    assert torch.equal(as_bytes(zeros), as_bytes(torch.zeros(300)))


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_losses_are_a_workers_own(values: str) -> None:
    """Residuals hold what was not sent, and what rounding took from what was."""
    xs = heavy(1003, 4)
    mean, losses = Ranks(lambda: TopK(fraction=0.1, values=values), 4).one_with_losses(xs)
    for x, loss in zip(xs, losses, strict=True):
        alone = torch.from_numpy(reference([x], 100, values))
        assert torch.equal(loss, x - alone)
    np.testing.assert_allclose(
        sum(loss.double() for loss in losses), 4 * (mean_of(xs) - mean.double()), atol=1e-7
    )


@pytest.mark.parametrize(("workers", "topology"), [(2, "ring"), (5, "butterfly")])
def test_error_feedback_converges(workers: int, topology: str) -> None:
    """With one coordinate in twenty sent, residuals stop growing."""
    kept = [*kept_by_feedback(lambda: TopK(fraction=0.05, values="bf16"), workers, 100, topology)]
    assert max(kept[80:]) < 1.2 * max(kept[40:60]) < 10
    assert TopK().refuses_feedback(64, LARGE) is None


@pytest.mark.parametrize(("field", "value"), [("fraction", 0.0), ("fraction", 1.5), ("values", "fp8")])
def test_settings_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"codec\.{field}={value}: choose"):
        TopK(**{field: value})


def test_buckets_it_cannot_send_are_refused() -> None:
    assert "int32" in (TopK().supports("ring", 4, Layout(("a",), ((4,),), (0,), 4, torch.int32)) or "")
    assert "indices" in (TopK().supports("ring", 4, Layout.flat(1 << 31)) or "")
    assert TopK().supports("ring", 4, Layout.flat((1 << 31) - 1)) is None
