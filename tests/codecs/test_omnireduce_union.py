"""The union of the workers' choices settles at `codec.bits`, whatever the gradients look like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pytest
import torch
from real_gradients import gpt2_gradients
from torch import Tensor

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.omnireduce import OmniReduce, pack_mask, unpack_mask

BLOCK, BLOCKS = 4, 1024

Family = Callable[[int, torch.Generator], list[Tensor]]


def block_scales(generator: torch.Generator) -> Tensor:
    """Heavy-tailed."""
    return torch.exp(1.5 * torch.randn(BLOCKS, generator=generator)).repeat_interleave(BLOCK)


def independent(workers: int, generator: torch.Generator) -> list[Tensor]:
    """Every worker has large blocks of its own, others in every round."""
    return [
        block_scales(generator) * torch.randn(BLOCK * BLOCKS, generator=generator) for _ in range(workers)
    ]


def alike(workers: int, generator: torch.Generator) -> list[Tensor]:
    """All workers nearly agree."""
    common = block_scales(generator) * torch.randn(BLOCK * BLOCKS, generator=generator)
    return [common + 0.1 * torch.randn(BLOCK * BLOCKS, generator=generator) for _ in range(workers)]


def lasting(workers: int, generator: torch.Generator) -> list[Tensor]:
    """Blocks of the same magnitude for all workers in all rounds."""
    scales = block_scales(torch.Generator().manual_seed(0))
    return [scales * torch.randn(BLOCK * BLOCKS, generator=generator) for _ in range(workers)]


def union_shares(rounds: Iterable[list[Tensor]], bits: float, block: int) -> list[float]:
    """The union's share of all blocks in each round, as logged; all ranks' k stay the same."""
    shares, codecs = [], list[OmniReduce]()
    for step, xs in enumerate(rounds):
        codecs = codecs or [OmniReduce(bits=bits, block=block) for _ in xs]
        this_round = Round(step, Layout.flat(xs[0].numel()), 0, len(xs), 0)
        masks = [codec.statistics(x, this_round)[0][0] for codec, x in zip(codecs, xs, strict=True)]
        union = torch.stack(masks)
        for mask in masks:
            union = union.bitwise_or(mask)
        for codec, x in zip(codecs, xs, strict=True):
            codec.plan(x, this_round, [union[0]], len(xs))
        assert len({float(codec.state_dict()["k/flat"]) for codec in codecs}) == 1
        shares.append([codec.end_step(step) for codec in codecs][0]["union"])
    return shares


@pytest.mark.parametrize("bits", [4.0, 8.0, 12.0])
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("family", [independent, alike, lasting])
def test_the_union_settles_within_five_percent(family: Family, workers: int, bits: float) -> None:
    """With fresh gradients in each round: from the 21st to the 40th."""
    generator = torch.Generator().manual_seed(1)
    shares = union_shares((family(workers, generator) for _ in range(40)), bits, BLOCK)
    assert all(abs(share / (bits / 16) - 1) < 0.05 for share in shares[20:]), shares


@cache
def real_gradients() -> list[list[Tensor]]:
    return [*gpt2_gradients(workers=4, steps=40, micro_batch=4)]


@pytest.mark.parametrize("bits", [4.0, 8.0, 12.0])
def test_the_union_settles_in_training(bits: float) -> None:
    """The mean of rounds 21 to 40 counts: which blocks a worker's batch of 256 tokens stresses changes from
    round to round, for all blocks alike."""
    shares = union_shares(real_gradients(), bits, 256)[20:]
    assert sum(shares) / len(shares) == pytest.approx(bits / 16, rel=0.05)


def test_k_answers_unions_too_large_and_too_small() -> None:
    """The rule of equation 1, its limits, and the log; a share outlives a change of a bucket's size."""
    codec = OmniReduce(bits=8.0, block=16, gamma=0.8)
    codec.load_state_dict({"k/flat": torch.tensor(0.25, dtype=torch.float64)})
    x = torch.arange(1.0, 1601.0)
    this_round = Round(0, Layout.flat(1600), 0, 2, 0)
    for union, k in ((50, 0.25), (100, 0.225), (25, 0.27)):
        codec.plan(x, this_round, [pack_mask(torch.arange(100) < union)], 2)
        assert float(codec.state_dict()["k/flat"]) == pytest.approx(k)
    assert codec.end_step(0) == {"k": (25 + 25 + 22) / 300, "union": 175 / 300}
    assert codec.end_step(1) == {}
    ((packed, _),) = codec.statistics(x[:160], Round(1, Layout.flat(160), 0, 2, 0))
    assert unpack_mask(packed, 10).sum() == 3


def test_k_stays_between_one_block_and_all() -> None:
    x, this_round = torch.ones(160), Round(0, Layout.flat(160), 0, 2, 0)
    everything, one = pack_mask(torch.ones(10).bool()), pack_mask(torch.arange(10) < 1)
    small, large = OmniReduce(bits=0.01, block=16), OmniReduce(bits=16.0, block=16)
    for _ in range(60):
        small.plan(x, this_round, [everything], 2)
        large.plan(x, this_round, [one], 2)
    assert float(small.state_dict()["k/flat"]) == pytest.approx(0.1)
    assert float(large.state_dict()["k/flat"]) == 1.0
