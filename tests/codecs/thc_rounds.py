"""Rounds of THC on every rank of an in-process world, or of its hops alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.thc import THC
from gradwire.codecs.thc.codec import THCHops
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")
SEED = 11


def rounds(xs: Sequence[Tensor], step: int = 0) -> list[Round]:
    """Every rank's round."""
    layout = Layout.flat(xs[0].numel())
    return [Round(step, layout, rank, len(xs), SEED) for rank in range(len(xs))]


def synchronize(
    xs: Sequence[Tensor], topology: str = "ring", step: int = 0, **options: Any
) -> tuple[Tensor, dict[str, int]]:
    """The mean, checked to be the same on all ranks, and the bytes that all ranks have sent by phase."""
    world = VirtualWorld(len(xs), Fabric(lambda n: make_schedule(topology, n)), CPU, debug=True)
    codecs = [THC(**options) for _ in xs]
    copies = [x.clone() for x in xs]
    collectives = {
        this_round.rank: [
            synchronization(codecs[this_round.rank], xs[this_round.rank], this_round, check_hashes=True)
        ]
        for this_round in rounds(xs, step)
    }
    results = run_collectives(world, collectives)
    assert all(torch.equal(as_bytes(x), as_bytes(copy)) for x, copy in zip(xs, copies, strict=True))
    sent: dict[str, int] = {}
    for traffic in world.traffic.values():
        for phase, count in traffic.by_phase.items():
            sent[phase] = sent.get(phase, 0) + count
    return results[0][0], sent


def make_hops(xs: Sequence[Tensor], num_chunks: int = 1, step: int = 0, **options: Any) -> list[THCHops]:
    """Every rank's hops before the first one."""
    codec = THC(**options)
    own = [codec.statistics(x, this_round)[0][0] for x, this_round in zip(xs, rounds(xs, step), strict=True)]
    largest = [torch.stack(own).amax(dim=0)]
    return [codec.plan(x, r, largest, num_chunks) for x, r in zip(xs, rounds(xs, step), strict=True)]


def mean_and_losses(xs: Sequence[Tensor], step: int = 0, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """A round by broadcast, without a world: what the first rank gets, and what each has lost."""
    hops, everything = make_hops(xs, step=step, **options), range(1)
    messages = []
    for own in hops:
        own.keep_losses()
        messages.append(torch.empty(own.message_bytes(everything, 1), dtype=torch.uint8))
        own.encode(everything, messages[-1], 1)
    for message in messages[1:]:
        hops[0].accumulate(message, everything, 1)
    return hops[0].finish(), [own.losses() for own in hops]


def as_bytes(tensor: Tensor) -> Tensor:
    """A NaN equals the same NaN."""
    return tensor.contiguous().view(torch.uint8)


def gradients(numel: int, workers: int, seed: int = 0, spread: float = 1.0, layer: int = 64) -> list[Tensor]:
    """Layers of `layer` coordinates that differ in magnitude, coordinates partly common to the workers."""
    generator = torch.Generator().manual_seed(seed)
    layers = torch.randn(-(-numel // layer), generator=generator)
    magnitude = torch.exp(spread * layers).repeat_interleave(layer)[:numel]
    common = torch.randn(numel, generator=generator)
    noises = (torch.randn(numel, generator=generator) for _ in range(workers))
    return [1e-3 * magnitude * (0.5 * common + noise) for noise in noises]


def exact_mean(xs: Sequence[Tensor]) -> Tensor:
    return torch.stack([x.double() for x in xs]).mean(dim=0)


def vnmse(estimate: Tensor, xs: Sequence[Tensor]) -> float:
    """‖estimate − mean‖² / ‖mean‖², in float64."""
    mean = exact_mean(xs)
    return float((estimate.double() - mean).square().sum() / mean.square().sum())
