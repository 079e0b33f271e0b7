"""Gradients that are zero, dependent, tiny, huge or not finite; orthonormal rows and random directions."""

from __future__ import annotations

import math

import pytest
import torch
from powersgd_jobs import CPU, SHAPES, Cluster, as_bytes, gradients_of
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from gradwire.codecs import powersgd
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.options.reduced import Orthogonalization
from gradwire.codecs.powersgd import (
    gram_schmidt,
    householder,
    orthonormal,
    projected,
    random_directions,
    resized,
)

RANKS = [1, 2, 4]
MATRIX = "first.weight"


def only(**gradients: Tensor) -> dict[str, Tensor]:
    return gradients


def zeros() -> dict[str, Tensor]:
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("method", ["gram_schmidt", "qr"])
@pytest.mark.parametrize("rank", RANKS)
def test_zeros_give_zeros_and_stop_nothing(rank: int, method: str) -> None:
    """Rounds of zeros, at first or later, change nothing in later rounds, bit for bit."""
    cluster, plain = (Cluster(3, rank=rank, orthogonalization=method, feedback=False) for _ in range(2))
    for step in range(6):
        if step in (0, 3, 4):
            assert not any(mean.any() for mean in cluster.step([zeros()] * 3).values())
            continue
        gradients = gradients_of(3, step)
        means, expected = cluster.step(gradients), plain.step(gradients)
        assert all(torch.equal(means[name], expected[name]) for name in SHAPES)
        assert all(mean.any() for mean in means.values())


@pytest.mark.parametrize("method", ["gram_schmidt", "qr"])
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_of_lower_rank_are_exact(rank: int, method: str) -> None:
    """One nonzero row, one nonzero column, an outer product: also in the rounds after."""
    generator = torch.Generator().manual_seed(0)
    outer = torch.outer(torch.randn(24, generator=generator), torch.randn(40, generator=generator))
    row, column = torch.zeros(24, 40), torch.zeros(24, 40)
    row[5], column[:, 7] = outer[5], outer[:, 7]
    cluster = Cluster(2, rank=rank, orthogonalization=method)
    for step in range(5):
        gradients = {"row": row, "column": column, "outer": outer * (step + 1)}
        means = cluster.step([gradients, {name: 3 * own for name, own in gradients.items()}])
        for name, own in gradients.items():
            torch.testing.assert_close(means[name], 2 * own, rtol=1e-5, atol=1e-5)


def test_dependent_columns_where_float32_goes_wrong() -> None:
    """torch's Gram–Schmidt gives vectors that are far from orthogonal, ours and QR do not."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(50, generator=generator)
    worst = {"torch": 0.0, "gram_schmidt": 0.0, "qr": 0.0}
    for _ in range(20):
        factors = torch.randn(2, 1, generator=generator)
        rows = factors * row
        theirs = rows.T.clone()[None]
        powerSGD_hook._orthogonalize(theirs)
        found = {"torch": theirs[0].T, "gram_schmidt": gram_schmidt(rows), "qr": householder(rows)}
        for name, q in found.items():
            worst[name] = max(worst[name], abs(float(q[0] @ q[1])))
    assert worst["torch"] > 0.1
    assert max(worst["gram_schmidt"], worst["qr"]) < 1e-5


@pytest.mark.parametrize("method", ["auto", "gram_schmidt", "qr"])
@pytest.mark.parametrize("exponent", [-100, 0, 60])
@pytest.mark.parametrize("rank", RANKS)
def test_powers_of_two_change_nothing_else(rank: int, exponent: int, method: str) -> None:
    """Results are equal bit for bit: squares of 1e-30 and of 1e18 stay within float32's range."""
    scaled = Cluster(2, rank=rank, orthogonalization=method)
    plain = Cluster(2, rank=rank, orthogonalization=method)
    for step in range(3):
        gradients = gradients_of(2, step)
        factor = 2.0**exponent
        means = scaled.step([{name: own * factor for name, own in each.items()} for each in gradients])
        for name, mean in plain.step(gradients).items():
            assert torch.equal(means[name], mean * factor)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("size", [2, 3])
def test_huge_values_are_right_or_nan_on_all_ranks(size: int, rank: int) -> None:
    """Values up to 1e36 are right; sums that overflow make the parameter NaN, and the state stays."""
    cluster = Cluster(size, rank=rank)
    for step in range(2):
        gradients = [{name: own * 1e38 for name, own in each.items()} for each in gradients_of(size, step)]
        means = cluster.step(gradients)
        assert all(mean.isfinite().all() for mean in means.values())
    before = {key: value.clone() for key, value in cluster.codecs[0].state_dict().items()}
    largest = [{MATRIX: torch.full(SHAPES[MATRIX], 3e38)} for _ in range(size)]
    assert cluster.step(largest)[MATRIX].isnan().all()
    after = cluster.codecs[0].state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rank", RANKS)
def test_what_is_not_finite_reaches_everybody_and_stays_nowhere(
    rank: int, value: float, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value of one worker: its matrix is NaN all over, the rest and the rounds after are untouched.

    Nor is anything orthogonalized that is not finite: QR may raise then.
    """

    def finite_only(rows: Tensor, method: Orthogonalization) -> Tensor:
        assert rows.isfinite().all()
        return orthonormal(rows, method)

    monkeypatch.setattr(powersgd, "orthonormal", finite_only)
    hit, spared = Cluster(3, topology, rank=rank), Cluster(3, topology, rank=rank)
    for step in range(4):
        gradients = gradients_of(3, step)
        wrong = [{name: own.clone() for name, own in each.items()} for each in gradients]
        if step in (0, 2):
            wrong[1][MATRIX][3, 5] = value
            wrong[2]["first.bias"][4] = value
        states = [dict(codec.state_dict()) for codec in hit.codecs]
        means = hit.step(wrong)
        if step in (0, 2):
            assert means[MATRIX].isnan().all()
            assert means["first.bias"].isfinite().logical_not().nonzero().tolist() == [[4]]
            for codec, before in zip(hit.codecs, states, strict=True):
                after = codec.state_dict()
                if step:
                    assert torch.equal(after[f"q/{MATRIX}"], before[f"q/{MATRIX}"])
                    assert torch.equal(after[f"error/{MATRIX}"], before[f"error/{MATRIX}"])
                assert all(kept.isfinite().all() for kept in after.values())
        else:
            assert all(mean.isfinite().all() for mean in means.values())
        exact = spared.step(gradients)
        for name in ("conv.weight", "last.weight"):
            assert torch.equal(as_bytes(means[name]), as_bytes(exact[name]))


def test_not_finite_where_a_direction_is_zero() -> None:
    """The worker's value meets a zero of Q and is seen nevertheless, even by a library that skips zeros: P is
    NaN everywhere, not only where arithmetic makes it so."""
    cluster = Cluster(2, rank=1)
    gradient = torch.zeros(8, 9)
    gradient[2, 0] = 1.0
    cluster.step([only(a=gradient), only(a=gradient)])
    start = cluster.codecs[0].state_dict()["q/a"]
    assert not start[0, 1:].any()
    wrong = gradient.clone()
    wrong[4, 6] = math.inf
    assert cluster.step([only(a=gradient), only(a=wrong)])["a"].isnan().all()
    assert torch.equal(cluster.codecs[0].state_dict()["q/a"], start)
    assert projected(wrong, start, "auto").isnan().all()


def test_overflow_of_the_callers_dtype_is_seen_and_not_kept() -> None:
    """The value is finite in float32 and infinite in float16."""
    cluster = Cluster(2, rank=1)
    gradient = torch.full((8, 9), 60000.0, dtype=torch.float16)
    for codec in cluster.codecs:
        codec.load_state_dict({"error/a": torch.full((72,), 60000.0)})
    assert cluster.step([only(a=gradient)] * 2)["a"].isinf().any()
    assert all(torch.equal(error, torch.full((72,), 60000.0)) for error in cluster.errors("a"))


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("size", [2, 3])
def test_small_and_odd_shapes(size: int, rate: float) -> None:
    shapes = {
        "a": (1, 1),
        "b": (1, 7),
        "c": (7, 1),
        "d": (),
        "e": (1,),
        "f": (255,),
        "g": (2, 1, 3),
        "h": (3, 85),
    }
    generator = torch.Generator().manual_seed(1)
    cluster = Cluster(size, rank=3, min_compression_rate=rate)
    for _ in range(3):
        by_rank = [
            {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
            for _ in range(size)
        ]
        means = cluster.step(by_rank, [["a"], ["b", "c", "d"], ["e", "f"], ["g", "h"]])
        for name, mean in means.items():
            exact = torch.stack([own[name] for own in by_rank]).mean(0)
            torch.testing.assert_close(mean, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["auto", "gram_schmidt", "qr"])
@pytest.mark.parametrize(("rank", "length"), [(1, 1), (1, 9), (2, 2), (3, 50), (16, 64), (64, 64)])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-42, 1e37])
def test_rows_become_orthonormal_and_span_the_same(
    rank: int, length: int, scale: float, method: Orthogonalization
) -> None:
    rows = torch.randn(rank, length, generator=torch.Generator().manual_seed(rank)) * scale
    found = orthonormal(rows, method)
    torch.testing.assert_close(found @ found.T, torch.eye(rank), rtol=0, atol=1e-5)
    unit = rows.double() / torch.linalg.vector_norm(rows.double(), dim=1, keepdim=True)
    projected = unit @ found.T.double() @ found.double()
    torch.testing.assert_close(projected, unit, rtol=0, atol=1e-5)


def test_rows_of_very_different_scale() -> None:
    """A warm start of gradients' size that is extended by directions of size 1."""
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    rows[:3] *= 1e-12
    for method in (gram_schmidt, householder):
        found = method(rows)
        torch.testing.assert_close(found @ found.T, torch.eye(6), rtol=0, atol=1e-5)
        first = method(rows[:3])
        torch.testing.assert_close(found[:3], first, rtol=0, atol=1e-5)


def test_random_directions_are_a_function_of_what_they_are_for() -> None:
    def draw(
        name: str = "a", rows: range = range(4), columns: int = 300, seed: int = 1, step: int = 5
    ) -> Tensor:
        return random_directions(name, rows, columns, Round(step, Layout.flat(1), 0, 2, seed))

    whole = draw()
    assert torch.equal(draw(rows=range(2, 4)), whole[2:])
    assert torch.equal(draw(columns=100)[:, 0], draw(columns=200)[:, 0])
    for other in (draw("b"), draw(seed=2), draw(step=6)):
        assert (other == whole).float().mean() < 0.01
    for rank in (0, 1):
        this_round = Round(5, Layout.flat(1), rank, 2, 1)
        assert torch.equal(random_directions("a", range(4), 300, this_round), whole)


def test_random_directions_are_nearly_gaussian_and_never_zero() -> None:
    this_round = Round(0, Layout.flat(1, device=CPU), 0, 2, 3)
    values = random_directions("a", range(64), 2000, this_round).double().flatten()
    assert values.abs().min() > 0
    deviation = math.sqrt(8 / 12)
    count = values.numel()
    assert abs(float(values.mean())) < 5 * deviation / math.sqrt(count)
    assert float(values.std()) == pytest.approx(deviation, rel=0.01)
    assert float((values / deviation).pow(4).mean()) == pytest.approx(3 - 1.2 / 8, abs=0.06)
    assert torch.linalg.matrix_rank(values.view(64, 2000)) == 64


def test_a_start_is_cut_or_extended() -> None:
    this_round = Round(3, Layout.flat(1), 0, 2, 1)
    kept = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    fresh = random_directions("a", range(5), 20, this_round)
    assert torch.equal(resized(None, 5, "a", 20, this_round), fresh)
    assert torch.equal(resized(kept, 2, "a", 20, this_round), kept[:2])
    assert torch.equal(resized(kept, 3, "a", 20, this_round), kept)
    assert torch.equal(resized(kept, 5, "a", 20, this_round), torch.cat([kept, fresh[3:]]))
