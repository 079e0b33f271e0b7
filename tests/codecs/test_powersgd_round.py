"""Rounds of PowerSGD: what comes out, what is sent, on all topologies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from powersgd_jobs import MATRICES, SEED, SHAPES, Cluster, gradients_of, layout_of, start_of
from powersgd_reference import Reference, as_matrix
from torch import Tensor

from gradwire.codecs.collectives import Hops
from gradwire.codecs.interface import Round
from gradwire.codecs.powersgd import PowerSGD, effective_rank
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule


def follow(cluster: Cluster, rank: int, steps: int, **options: bool) -> None:
    """Some steps of a cluster, each compared with the reference and the exact mean of the biases."""
    size = len(cluster.codecs)
    references = {
        name: Reference(size, lambda step, name=name: start_of(name, rank, step), **options)
        for name in MATRICES
    }
    for step in range(steps):
        by_rank = gradients_of(size, step)
        means = cluster.step(by_rank)
        for name, reference in references.items():
            expected = torch.from_numpy(reference.step([as_matrix(own[name]) for own in by_rank]))
            scale = float(expected.abs().max())
            found = means[name].reshape(expected.shape).double()
            torch.testing.assert_close(found, expected, rtol=0, atol=5e-5 * scale)
        bias = torch.stack([own["first.bias"] for own in by_rank]).double().mean(0)
        torch.testing.assert_close(means["first.bias"].double(), bias, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_rounds_are_those_of_the_reference(size: int, topology: str) -> None:
    """With feedback and warm start; `Cluster.step` asserts that all ranks hold the same bits."""
    rank = 1 + size % 3
    follow(Cluster(size, topology, rank=rank), rank, 3)


@pytest.mark.parametrize(
    ("rank", "options"),
    [
        (3, {"feedback": False}),
        (3, {"warm_start": False}),
        (2, {"feedback": False, "warm_start": False}),
    ],
)
def test_without_feedback_or_warm_start(rank: int, options: dict[str, bool]) -> None:
    cluster = Cluster(2, rank=rank, **options)
    follow(cluster, rank, 4, **options)
    kept = {key.partition("/")[0] for key in cluster.codecs[0].state_dict()}
    left_out = {"feedback": {"error", "norms"}, "warm_start": {"q"}}
    assert kept == {"error", "norms", "q"}.difference(*(left_out[option] for option in options))


@pytest.mark.parametrize("method", ["gram_schmidt", "qr"])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_way_of_orthogonalization_does_not_matter(rank: int, method: str) -> None:
    follow(Cluster(2, rank=rank, orthogonalization=method), rank, 3)


def test_a_single_worker_would_see_the_best_approximation_of_a_constant_gradient() -> None:
    """Without feedback, warm starts make rounds on one matrix a power iteration: its singular vectors."""
    gradients = gradients_of(2)
    cluster = Cluster(2, rank=2, feedback=False)
    for _ in range(30):
        means = cluster.step(gradients)
    mean = (gradients[0]["first.weight"] + gradients[1]["first.weight"]) / 2
    left, values, right = torch.linalg.svd(mean.double(), full_matrices=False)
    best = left[:, :2] * values[:2] @ right[:2]
    torch.testing.assert_close(means["first.weight"].double(), best, rtol=0, atol=1e-4 * float(values[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_not_delivered_is_kept(dtype: torch.dtype) -> None:
    """Gradient and error before = result, in the caller's dtype, and error after; on every rank."""
    cluster = Cluster(3, rank=2)
    before = {name: [torch.zeros(math.prod(SHAPES[name]))] * 3 for name in MATRICES}
    for step in range(4):
        by_rank = [{name: own.to(dtype) for name, own in each.items()} for each in gradients_of(3, step)]
        means = cluster.step(by_rank)
        for name in MATRICES:
            assert means[name].dtype == dtype
            after = cluster.errors(name)
            for rank in range(3):
                had = by_rank[rank][name].reshape(-1).double() + before[name][rank].double()
                has = means[name].reshape(-1).double() + after[rank].double()
                torch.testing.assert_close(has, had, rtol=0, atol=1e-7 * float(had.abs().max()))
            assert max(float(error.abs().max()) for error in after) > 0
            before[name] = after


def test_the_mean_error_stays_bounded_while_the_workers_own_grow() -> None:
    """With heavy-tailed gradients that never change the workers' differences add up, but the mean error does
    not."""
    generator = torch.Generator().manual_seed(0)
    shape = (32, 64)
    by_rank = [
        {"a": torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator).exp()}
        for _ in range(3)
    ]
    cluster, mean, own = Cluster(3, rank=4), [], []
    for _ in range(80):
        cluster.step(by_rank)
        errors = torch.stack(cluster.errors("a"))
        mean.append(float(errors.mean(0).norm()))
        own.append(float(errors[0].norm()))
    assert mean[79] < 1.1 * mean[39]
    assert own[79] == pytest.approx(2 * own[39], rel=0.1)


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_full_rank_is_exact(topology: str) -> None:
    """A rate of 0 compresses them nevertheless; the residual is rounding."""
    cluster = Cluster(3, topology, rank=1000, min_compression_rate=0)
    for step in range(3):
        by_rank = gradients_of(3, step)
        means = cluster.step(by_rank)
        for name in SHAPES:
            exact = torch.stack([own[name] for own in by_rank]).double().mean(0)
            torch.testing.assert_close(
                means[name].double(), exact, rtol=0, atol=2e-6 * float(exact.abs().max())
            )
    ranks = {name: len(cluster.codecs[0].state_dict()[f"q/{name}"]) for name in MATRICES}
    assert ranks == {"first.weight": 24, "conv.weight": 16, "last.weight": 24}


@pytest.mark.parametrize(
    ("shape", "rank", "rate", "expected"),
    [
        ((24, 40), 4, 1.0, 4),
        ((24, 40), 15, 1.0, 0),  # 15 · 64 = 24 · 40 saves nothing
        ((24, 40), 14, 1.0, 14),
        ((24, 40), 7, 2.0, 7),
        ((24, 40), 8, 2.0, 0),
        ((24, 40), 99, 0.0, 24),
        ((16, 3, 5, 5), 4, 1.0, 4),
        ((24, 40), 0, 1.0, 0),
        ((1, 7), 4, 1.0, 0),
        ((1, 7), 4, 0.0, 1),
        ((960,), 1, 0.0, 0),
        ((), 1, 0.0, 0),
        ((0, 5), 1, 0.0, 0),
    ],
)
def test_which_parameters_are_compressed(
    shape: tuple[int, ...], rank: int, rate: float, expected: int
) -> None:
    assert effective_rank(shape, rank, rate) == expected


class Alone:
    """Collectives of one worker that note the sizes of the all-reduces, in bytes."""

    rank, size, num_chunks = 0, 1, 1

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def all_reduce(self, hops: Hops) -> Tensor:
        self.sizes.append(hops.message_bytes(range(1), 1))
        return hops.finish()


def all_reduces(step: int, **options: Any) -> list[int]:
    comm: Any = Alone()
    codec, (gradients,) = PowerSGD(**options), gradients_of(1)
    x = torch.cat([gradient.reshape(-1) for gradient in gradients.values()])
    coroutine: Any = codec.synchronize(x, Round(step, layout_of(gradients), 0, 1, SEED), comm)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    sizes: list[int] = comm.sizes
    return sizes


def test_a_bucket_takes_two_all_reduces_of_stated_sizes() -> None:
    """All P and the uncompressed parameters, then all Q; whatever is uncompressed goes in one."""
    rank, numel = 3, sum(math.prod(shape) for shape in SHAPES.values())
    rows, columns = 24 + 16 + 24, 40 + 75 + 40
    assert all_reduces(0, rank=rank) == [4 * (rank * rows + 24), 4 * rank * columns]
    assert all_reduces(0, rank=40) == [4 * numel]
    assert all_reduces(4, rank=rank, start_step=5) == [4 * numel]
    assert len(all_reduces(5, rank=rank, start_step=5)) == 2
    assert len(all_reduces(-1, rank=rank, start_step=5)) == 2, "a warm-up is like what follows"


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_bytes_on_the_wire(topology: str) -> None:
    """32 · rank · (1/rows + 1/columns) bits a coordinate of a matrix, per gradient the topology sends."""
    rank, size = 3, 4
    cluster = Cluster(size, topology, rank=rank)
    cluster.step(gradients_of(size))
    bits = 32.0 * math.prod(SHAPES["first.bias"])
    for rows, columns in ((24, 40), (16, 75), (24, 40)):
        bits += rows * columns * 32 * rank * (1 / rows + 1 / columns)
    measured = 8 * sum(
        traffic.by_phase[phase]
        for traffic in cluster.world.traffic.values()
        for phase in ("reduce_scatter", "all_gather")
    )
    assert measured == pytest.approx(make_schedule(topology, size).gradients_sent * bits, rel=1e-12)
    assert cluster.sent() * 8 == measured


def test_what_is_uncompressed_is_the_float32_mean() -> None:
    """There are two workers, because their sum has only one order."""
    cluster = Cluster(2, rank=2, start_step=2)
    for step in range(3):
        first, second = gradients_of(2, step)
        means = cluster.step([first, second])
        for name in SHAPES if step < 2 else ["first.bias"]:
            assert torch.equal(means[name], (first[name] + second[name]) / 2)
    assert not torch.equal(means["first.weight"], (first["first.weight"] + second["first.weight"]) / 2)


def test_other_buckets_give_the_same_result() -> None:
    """Another division into buckets, even one that changes on the way, gives the same run up to rounding."""
    divisions = [
        [list(SHAPES)],
        [["last.weight", "first.bias"], ["conv.weight", "first.weight"]],
        [["conv.weight"], ["first.bias"], ["first.weight", "last.weight"]],
    ]
    together, divided = Cluster(3, rank=2), Cluster(3, rank=2)
    for step in range(6):
        gradients = gradients_of(3, step)
        expected = together.step(gradients, divisions[0])
        found = divided.step(gradients, divisions[step % 3])
        for name in SHAPES:
            scale = float(expected[name].abs().max())
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-5 * scale)


def test_matrices_of_one_shape_begin_in_different_directions() -> None:
    codec = Cluster(2, rank=2, feedback=False)
    gradient = {name: torch.ones(24, 40) + torch.eye(24, 40) for name in ("first", "second")}
    means = codec.step([gradient, gradient])
    assert not torch.allclose(means["first"], means["second"], atol=1e-3)
