"""Random-k: the draw against scalar hashing and chance, means, bytes, bias, edges, and error feedback."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from codec_rounds import as_bytes, mean_of
from sparse_rounds import Ranks, heavy, kept_by_feedback, ring_sums

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.exact import BF16, FP32
from gradwire.codecs.interface import Layout
from gradwire.codecs.randomk import RandomK, drawn_coordinates

LARGE = Layout.flat(1 << 20)

CPU = torch.device("cpu")
TOPOLOGY_NAMES = ["ring", "butterfly", "broadcast"]


def lowbias32(x: int) -> int:
    """The hash as its author writes it."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def scalar_draw(numel: int, count: int, key: tuple[int, int]) -> list[int]:
    hashes = [lowbias32((lowbias32(i ^ key[0]) + key[1]) % 2**32) for i in range(numel)]
    return sorted(sorted(range(numel), key=lambda i: hashes[i])[:count])


@pytest.mark.parametrize(("numel", "count"), [(1, 1), (7, 3), (1000, 10), (1000, 1000)])
def test_the_draw_is_the_scalar_ones(numel: int, count: int) -> None:
    for step in range(5):
        key = stream_key(3, step, 99)
        assert drawn_coordinates(numel, count, key, CPU).tolist() == scalar_draw(numel, count, key)


def test_a_long_draw_has_no_coordinate_twice() -> None:
    """There are more coordinates than are hashed at a time; every part of the bucket gets its share."""
    drawn = drawn_coordinates(200_000, 20_000, (1, 2), CPU)
    assert drawn.numel() == 20_000
    assert (drawn.diff() > 0).all()
    parts = torch.histc(drawn.double(), 20, 0, 200_000)
    assert float((parts - 1000).square().sum() / 900) < 45, "χ² of 19 degrees, 1 in 1000"


def test_every_coordinate_and_every_pair_is_equally_likely() -> None:
    """4000 draws of 8 of 32, seeds and steps as they occur: χ² of coordinates and of pairs."""
    draws, numel, count = 4000, 32, 8
    indicator = torch.zeros(draws, numel, dtype=torch.float64)
    for draw in range(draws):
        key = stream_key(draw % 5, draw // 5, 1234)
        indicator[draw, drawn_coordinates(numel, count, key, CPU)] = 1
    share = count / numel
    single = (indicator.sum(dim=0) - draws * share).square() / (draws * share * (1 - share))
    assert float(single.sum()) * (numel - 1) / numel < 62, "31 degrees, 1 in 1000"
    together = share * (count - 1) / (numel - 1)
    pairs = (indicator.T @ indicator).triu(diagonal=1)
    deviation = (pairs - draws * together).triu(diagonal=1) / math.sqrt(draws * together * (1 - together))
    assert deviation.abs().max() < 5
    assert float(deviation.square().sum()) == pytest.approx(numel * (numel - 1) / 2, rel=0.25)


def test_draws_differ_between_steps_seeds_and_buckets() -> None:
    def sent(step: int = 0, seed: int = 0, name: str = "a") -> list[int]:
        ranks = Ranks(RandomK, 2, seed=seed)
        ranks.steps = step
        return ranks.one([torch.ones(500)] * 2, Layout.flat(500, name)).nonzero()[:, 0].tolist()

    assert sent() == sent()
    assert len({tuple(each) for each in (sent(), sent(step=1), sent(seed=1), sent(name="b"))}) == 4


@pytest.mark.parametrize("scaled", [False, True])
def test_a_ring_is_the_references_bit_for_bit(scaled: bool) -> None:
    """Bfloat16 sums of the drawn coordinates, scaled before they are first rounded."""
    numel, workers, count = 1003, 3, 100
    xs = heavy(numel, workers)
    ranks = Ranks(lambda: RandomK(fraction=0.1, values="bf16", unbiased_scaling=scaled), workers)
    drawn = scalar_draw(numel, count, stream_key(0, 0, Layout.flat(numel).uid))
    factor = torch.tensor(numel / count if scaled else 1.0)
    expected = np.zeros(numel, np.float32)
    expected[drawn] = ring_sums([x[drawn] * factor for x in xs]) / np.float32(workers)
    np.testing.assert_array_equal(ranks.one(xs).numpy(), expected)


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_every_rank_gets_the_same_mean_at_any_size(workers: int, topology: str) -> None:
    """The result is the mean where coordinates were sent and zero elsewhere, in the gradients' dtype."""
    for numel, fraction in ((1, 0.01), (7, 0.5), (255, 0.01), (1000, 0.1)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            xs = [x.to(dtype) for x in heavy(numel, workers, seed=numel)]
            layout = Layout(("a",), ((numel,),), (0,), numel, dtype)
            mean = Ranks(lambda f=fraction: RandomK(fraction=f), workers, topology).one(xs, layout)
            sent = mean.nonzero()[:, 0]
            assert sent.numel() == max(round(fraction * numel), 1)
            torch.testing.assert_close(mean.double()[sent], mean_of(xs)[sent], rtol=0.01, atol=1e-5)


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
@pytest.mark.parametrize(("values", "plain"), [("fp32", FP32), ("bf16", BF16)])
def test_all_coordinates_are_the_plain_sum(topology: str, values: str, plain: type) -> None:
    xs = heavy(1003, 4)
    everything = Ranks(lambda: RandomK(fraction=1.0, values=values), 4, topology).one(xs)
    assert torch.equal(as_bytes(everything), as_bytes(Ranks(plain, 4, topology).one(xs)))


@pytest.mark.parametrize(("values", "num_bytes"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize(("topology", "copies"), [("ring", 6), ("butterfly", 6), ("broadcast", 12)])
def test_bytes_are_values_alone(topology: str, copies: int, values: str, num_bytes: int) -> None:
    ranks = Ranks(lambda: RandomK(fraction=0.1, values=values), 4, topology)
    ranks.one(heavy(1003, 4))
    assert ranks.bytes_sent() == copies * 100 * num_bytes


def test_scaled_sums_are_right_on_average() -> None:
    """The error of the mean over 400 seeds is that of one round divided by 400."""
    rounds, xs = 400, heavy(64, 3)
    estimates = [
        Ranks(lambda: RandomK(fraction=0.25, unbiased_scaling=True), 3, seed=s).one(xs) for s in range(rounds)
    ]
    errors = torch.stack(estimates).double() - mean_of(xs)
    single = float(errors.square().sum() / rounds)
    assert single == pytest.approx(3 * float(mean_of(xs).square().sum()), rel=0.2), "d/k − 1 times the energy"
    assert float(errors.mean(dim=0).square().sum()) < 2 * single / rounds
    assert RandomK(unbiased_scaling=True).traits.unbiased
    assert not RandomK(unbiased_scaling=True, values="bf16").traits.unbiased
    assert not RandomK().traits.unbiased


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
def test_what_is_not_finite_takes_the_whole_bucket(topology: str, bad: float) -> None:
    """The result has it, whether it was sent or not, on every rank; the next round is not affected."""
    for values in ("fp32", "bf16"):
        for position in (0, 500, 999):
            xs = heavy(1000, 3)
            xs[2][position] = bad
            ranks = Ranks(lambda v=values: RandomK(values=v), 3, topology)
            assert ranks.one(xs).isnan().all()
            assert ranks.one(heavy(1000, 3)).isfinite().all()


def test_the_ends_of_float32() -> None:
    x = torch.tensor([1e-45, -1e38, 1e-30, -0.0])
    assert torch.equal(Ranks(lambda: RandomK(fraction=1.0), 2).one([x, x]), x)
    assert not Ranks(RandomK, 2).one([-torch.zeros(300)] * 2).any()


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
@pytest.mark.parametrize("scaled", [False, True])
def test_losses_are_what_the_result_lacks(topology: str, scaled: bool) -> None:
    """Summed over the ranks they are n times the exact mean less n times the result."""
    xs = heavy(1003, 4)
    options = {"fraction": 0.3, "values": "bf16", "unbiased_scaling": scaled}
    mean, losses = Ranks(lambda: RandomK(**options), 4, topology).one_with_losses(xs)
    lacking = 4 * (mean_of(xs) - mean.double())
    np.testing.assert_allclose(sum(loss.double() for loss in losses), lacking, atol=1e-6)
    assert lacking.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "converges"),
    [
        ({"fraction": 0.2}, True),
        ({"fraction": 0.75, "unbiased_scaling": True}, True),
        ({"fraction": 0.45, "unbiased_scaling": True}, False),
    ],
)
def test_error_feedback_is_refused_where_it_diverges(options: dict[str, float], converges: bool) -> None:
    for workers in (2, 4):
        kept = [*kept_by_feedback(lambda: RandomK(**options), workers, 80)]
        assert (max(kept[60:]) < 2 * max(kept[20:40])) == converges
        assert (RandomK(**options).refuses_feedback(workers, LARGE) is None) == converges


@pytest.mark.parametrize(("field", "value"), [("fraction", 0.0), ("fraction", 1.5), ("values", "fp8")])
def test_settings_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"codec\.{field}={value}: choose"):
        RandomK(**{field: value})


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.6, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_declared_error_is_that_of_what_is_not_sent(fraction: float, scaled: bool) -> None:
    """Scaled up, a coordinate is lost with its variance, 1/p − 1; a fifth more is left to chance."""
    traits = RandomK(fraction=fraction, unbiased_scaling=scaled).traits
    if not scaled:
        assert traits.worst_vnmse == (0.999 if fraction < 0.1 else 0.95)
    else:
        assert traits.worst_vnmse == pytest.approx(1.2 * (1 - fraction) / fraction)
    assert bool(traits.large_error) == (traits.worst_vnmse >= 1)
