"""Rounds of a hop-wise codec without a harness: statistics, their reduction and a ring, in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.collectives import Op
from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.dynamiq.hops import DynamiQHops
from gradwire.codecs.interface import Layout, Round


def combine(a: Tensor, b: Tensor, op: Op) -> Tensor:
    """One hop of the metadata reduction; the result travels in the tensors' dtype."""
    first, second = a.to(torch.float32), b.to(torch.float32)
    if op == "sum":
        return (first + second).to(a.dtype)
    assert op == "norm"
    largest = torch.maximum(first, second)
    scale = (largest.view(torch.int32) & 0x7F80_0000).clamp(0x0D80_0000, 0x7F00_0000).view(torch.float32)
    norm = ((first / scale).square() + (second / scale).square()).sqrt() * scale
    return norm.to(a.dtype)


def make_hops(
    codec: DynamiQ, xs: Sequence[Tensor], seed: int = 0, step: int = 0, num_chunks: int | None = None
) -> list[DynamiQHops]:
    """Every rank's hops for one synchronization of `xs`, one bucket per rank."""
    size = len(xs)
    layout = Layout.flat(xs[0].numel())
    rounds = [Round(step=step, layout=layout, rank=rank, size=size, seed=seed) for rank in range(size)]
    parts = [codec.statistics(x, this_round) for x, this_round in zip(xs, rounds, strict=True)]
    reduced = [values for values, _ in parts[0]]
    for contribution in parts[1:]:
        reduced = [combine(r, values, op) for r, (values, op) in zip(reduced, contribution, strict=True)]
    chunks = num_chunks or size
    return [codec.plan(x, this_round, reduced, chunks) for x, this_round in zip(xs, rounds, strict=True)]


def empty_message(hops: DynamiQHops, chunks: range) -> Tensor:
    """An arena slot for `chunks`, filled with stale bytes."""
    return torch.full((hops.message_bytes(chunks, 1),), 0xAB, dtype=torch.uint8)


def run_ring(hops: list[DynamiQHops], num_chunks: int | None = None) -> list[Tensor]:
    """Ring all-reduce: chunk c starts at rank c + 1 and is sealed by rank c; every rank's result."""
    size = len(hops)
    for c in range(num_chunks or size):
        chunk = range(c, c + 1)
        message: Tensor | None = None
        for hop in range(size):
            rank, out = (c + 1 + hop) % size, empty_message(hops[0], chunk)
            if hop == size - 1:
                hops[rank].seal(message, chunk, out, hop, size)
            elif message is None:
                hops[rank].encode(chunk, out, 1)
            else:
                hops[rank].accumulate_encode(message, chunk, out, hop, hop + 1)
            message = out
        assert message is not None
        for rank in range(size):
            if rank != c % size:
                hops[rank].decode(message, chunk, size)
    return [each.finish() for each in hops]


def simulate_ring(codec: DynamiQ, xs: Sequence[Tensor], seed: int = 0, step: int = 0) -> list[Tensor]:
    """Every rank's mean of `xs` after one ring all-reduce."""
    return run_ring(make_hops(codec, xs, seed, step))


def heavy_tailed(numel: int, workers: int, seed: int = 0, spread: float = 2.0) -> list[Tensor]:
    """Gradients whose super-groups differ in energy by orders of magnitude, similar across workers."""
    generator = torch.Generator().manual_seed(seed)
    super_groups = -(-numel // 256)
    energy = torch.exp(spread * torch.randn(super_groups, generator=generator)).repeat_interleave(256)[:numel]
    common = torch.randn(numel, generator=generator)
    noises = (torch.randn(numel, generator=generator) for _ in range(workers))
    return [energy * (0.5 * common + noise) * 1e-3 for noise in noises]


def vnmse(estimate: Tensor, xs: Sequence[Tensor]) -> float:
    """‖estimate − mean‖² / ‖mean‖², in float64."""
    mean = torch.stack([x.double() for x in xs]).mean(dim=0)
    return float((estimate.double() - mean).square().sum() / mean.square().sum())
