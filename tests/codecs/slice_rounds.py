"""Rounds of codecs that encode slices of a bucket anew at every hop, on all ranks of a world in this process,
and a ring in numpy for references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from dynamiq_reference import philox_words
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.slices import SliceCoder
from gradwire.codecs.wrappers.feedback import ErrorFeedback
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")

Vector = np.ndarray[Any, Any]

Quantize = Callable[[Vector, int, int], Vector]
"""float32 values, their first coordinate's index and the rank, to the float32 values that arrive."""


class Cluster:
    """`size` ranks with a codec each; step by step the same bucket's mean."""

    def __init__(
        self, make: Callable[[], Codec], size: int, topology: str = "ring", seed: int = 0, step: int = 0
    ) -> None:
        self.codecs = [make() for _ in range(size)]
        self.world = VirtualWorld(size, Fabric(lambda n: make_schedule(topology, n)), CPU, debug=True)
        self.seed, self.next_step = seed, step

    def step(self, xs: Sequence[Tensor]) -> Tensor:
        """The mean; all ranks have the same, bit for bit, and leave their gradients as they were."""
        copies = [x.clone() for x in xs]
        collectives = {rank: [self._collective(rank, x)] for rank, x in enumerate(xs)}
        means = list(run_collectives(self.world, collectives).values())
        self.next_step += 1
        assert all(torch.equal(as_bytes(mean), as_bytes(means[0][0])) for (mean,) in means)
        assert all(torch.equal(as_bytes(x), as_bytes(copy)) for x, copy in zip(xs, copies, strict=True))
        return means[0][0]

    def _collective(self, rank: int, x: Tensor) -> Collective[Tensor]:
        layout = Layout.flat(x.numel(), "bucket")
        this_round = Round(self.next_step, layout, rank, len(self.codecs), self.seed)
        return synchronization(self.codecs[rank], x, this_round, check_hashes=True)

    def bytes_sent(self) -> int:
        """Bytes sent by all ranks so far, without the hashes that are compared."""
        totals = (traffic.by_phase for traffic in self.world.traffic.values())
        return sum(by_phase["reduce_scatter"] + by_phase["all_gather"] for by_phase in totals)


def mean_of(
    make: Callable[[], Codec], xs: Sequence[Tensor], topology: str = "ring", **options: int
) -> Tensor:
    """One step's mean."""
    return Cluster(make, len(xs), topology, **options).step(xs)


def sent(coder: SliceCoder, values: Tensor, first: int = 0) -> Tensor:
    """The values that arrive if `values` are encoded."""
    out = torch.full((coder.num_bytes(values.numel()),), 0xAB, dtype=torch.uint8)
    coder.encode(values, first, out)
    return coder.decode(out, first, values.numel())


def refusal(codec: LossyHopCodec, largest_sum: int) -> str | None:
    """The reason why error feedback around `codec` diverges, or None."""
    return codec.refuses_feedback(largest_sum, Layout.flat(2048))


def residuals(
    make: Callable[[], LossyHopCodec], xs: Sequence[Tensor], topology: str, steps: int
) -> list[float]:
    """The residuals' energy after each step of error feedback, relative to that of gradients that never
    change."""
    cluster = Cluster(lambda: _Unrefused(make()), len(xs), topology)
    energy, found = sum(float(x.double().square().sum()) for x in xs), []
    for _ in range(steps):
        cluster.step(xs)
        states = [codec.state_dict() for codec in cluster.codecs]
        kept = [state[key].double() for state in states for key in state if key.startswith("residual/")]
        found.append(sum(float(value.square().sum()) for value in kept) / energy)
    return found


class _Unrefused(ErrorFeedback):
    """Error feedback without a bound on residuals, even around a codec that refuses it."""

    def __init__(self, codec: LossyHopCodec) -> None:
        super().__init__(codec)
        setattr(codec, "largest_residual", lambda this_round: float("inf"))  # noqa: B010

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        return None


def ring_mean(xs: Sequence[Vector], unit: int, quantize: Quantize) -> Vector:
    """Chunk c, a multiple of `unit` coordinates, begins at rank c and is sealed by rank c − 1."""
    workers, numel = len(xs), len(xs[0])
    per_chunk = -(-numel // (workers * unit)) * unit
    mean = np.empty(numel, np.float32)
    for c in range(workers):
        place = slice(min(c * per_chunk, numel), min((c + 1) * per_chunk, numel))
        arrived = np.zeros(place.stop - place.start, np.float32)
        for hop in range(workers):
            rank = (c + hop) % workers
            total = xs[rank][place] + arrived if hop else xs[rank][place]
            arrived = quantize(total, place.start, rank)
        mean[place] = arrived / np.float32(workers)
    return mean


def dither(coordinate: int, rank: int, seed: int = 0, step: int = 0) -> int:
    """The 16 bits by which a rank rounds a coordinate of the bucket."""
    key = stream_key(seed, step, Layout.flat(1, "bucket").uid)
    word = philox_words((coordinate // 8, rank, 0, 0), key)[coordinate % 8 // 2]
    return word >> 16 * (coordinate % 2) & 0xFFFF


def random_word(coordinate: int, rank: int, seed: int = 0, step: int = 0) -> int:
    """`dither` as 32 bits, of which the lower half is the middle of its range."""
    return (dither(coordinate, rank, seed, step) << 16) + (1 << 15)


def power_near(values: Vector) -> np.float32:
    """The power of two between a half and a quarter of the largest magnitude, not below 2⁻¹⁰¹."""
    exponent = max(int(np.frexp(np.abs(values).max())[1]) - 2, -101)
    return np.float32(2.0**exponent)


def tree_sum(values: Vector) -> np.float32:
    """Sums float32 values, a power of two of them, in the kernels' order: 16 neighbours, 32 of their sums, 8
    of these, each by halves. Beyond 4096 values, the first 4096 plus the next."""

    def halves(part: Vector) -> np.float32:
        while len(part) > 1:
            part = part[: len(part) // 2] + part[len(part) // 2 :]
        return np.float32(part[0])

    sums = np.array([halves(values[i : i + 16]) for i in range(0, len(values), 16)], np.float32)
    total = sums[:256]
    for start in range(256, len(sums), 256):
        total = total + sums[start : start + 256]
    return halves(np.array([halves(total[i : i + 32]) for i in range(0, len(total), 32)], np.float32))


def as_bytes(tensor: Tensor) -> Tensor:
    """A NaN equals the same NaN."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def heavy_tailed(numel: int, workers: int, seed: int = 0) -> list[Tensor]:
    """Gradients whose coordinates differ in magnitude by orders, partly common to the workers."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.randn(numel, generator=generator).exp()
    common = torch.randn(numel, generator=generator)
    noises = (torch.randn(numel, generator=generator) for _ in range(workers))
    return [1e-3 * magnitude * (0.5 * common + noise) for noise in noises]


def exact_mean(xs: Sequence[Tensor]) -> Tensor:
    """The mean in float64."""
    return torch.stack([x.double() for x in xs]).mean(dim=0)


def remaining_error(make: Callable[[], Codec], xs: Sequence[Tensor], topology: str, rounds: int) -> float:
    """The squared error of the mean of many results, relative to what independent and unbiased ones leave:
    about 1 for them, larger for others."""
    cluster, exact = Cluster(make, len(xs), topology), exact_mean(xs)
    results = torch.stack([cluster.step(xs).double() for _ in range(rounds)])
    variance = results.var(dim=0).sum()
    return float((results.mean(dim=0) - exact).square().sum() * rounds / variance)
