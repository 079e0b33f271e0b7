"""AQGB on all ranks: a payload and its planes are the longer truncation, and all ranks have the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from aqgb_ranks import LAYOUT, SIZE, Ranks, decided, round_of, times
from codec_rounds import CPU, gradients
from torch import Tensor

from gradwire.codecs.aqgb.payload import Payload, mean_of, plane_of
from gradwire.codecs.registry import make_codec
from gradwire.harness.parallel.synchronize import synchronization


def truncated(xs: Sequence[Tensor], bits: Sequence[int]) -> Tensor:
    """The mean of these gradients, each cut to as many bits at once."""
    parts = [Payload.of(x, own) for x, own in zip(xs, bits, strict=True)]
    for part in parts:
        part.refined = True  # 32 bits of the embedded base, too
    if any(own == 32 for own in bits):
        parts = [
            _refined_fully(x) if own == 32 else part for x, own, part in zip(xs, bits, parts, strict=True)
        ]
    return mean_of(parts, CPU)


def _refined_fully(x: Tensor) -> Payload:
    part = Payload.of(x, 31)
    part.refine(plane_of(x, 31, 32), 32)
    return part


@pytest.mark.parametrize(("first", "more"), [(4, 0), (4, 3), (2, 30), (9, 14), (31, 1)])
def test_base_and_planes_are_the_longer_truncation(first: int, more: int) -> None:
    ranks, xs = Ranks(), gradients(LAYOUT, SIZE)
    mean = ranks.synchronize(xs, decided(first, more))
    assert torch.equal(mean, truncated(xs, [first] * SIZE))
    assert torch.equal(ranks.refine(mean), truncated(xs, [first + more] * SIZE))


def test_whoever_is_late_sends_less_and_all_have_the_same() -> None:
    """Bits are sent five at a time: rank 0 has time for all 12, rank 1 for the first five, rank 2 for
    none."""
    ranks, xs = Ranks(step_bits=5), gradients(LAYOUT, SIZE)
    mean = ranks.synchronize(xs, decided(4, 12))
    refined = ranks.refine(mean, [times(0.0), times(0.9, 1.1), times(2.0)])
    assert torch.equal(refined, truncated(xs, [16, 9, 4]))
    assert [codec._sent[5][0] for codec in ranks.codecs] == [[12, 5, 0]] * SIZE


def test_a_replay_sends_what_was_sent() -> None:
    ranks, xs = Ranks(step_bits=5), gradients(LAYOUT, SIZE)
    mean = ranks.synchronize(xs, decided(4, 12, sent=[12, 5, 0]))
    assert torch.equal(ranks.refine(mean, [times(9.0)] * SIZE), truncated(xs, [16, 9, 4]))


def test_full_precision_is_the_uncompressed_mean() -> None:
    ranks, xs = Ranks(), gradients(LAYOUT, SIZE)
    exact = [make_codec("fp32") for _ in range(SIZE)]
    rounds = {rank: round_of(rank, {}) for rank in range(SIZE)}
    uncompressed = ranks.world.run(
        {rank: synchronization(exact[rank], xs[rank], own, True) for rank, own in rounds.items()}
    )
    mean = ranks.synchronize(xs, decided(32, 0))
    assert torch.equal(mean, uncompressed[0]) and torch.equal(ranks.refine(mean), mean)


def test_a_skipped_step_is_not_refined_and_remembers_nothing() -> None:
    ranks, xs = Ranks(), gradients(LAYOUT, SIZE)
    ranks.synchronize(xs, decided(4, 8))
    for codec in ranks.codecs:
        codec.skip_step(5)
        assert not codec._open


def test_a_value_that_is_not_finite_shows() -> None:
    ranks, xs = Ranks(), gradients(LAYOUT, SIZE)
    xs[1][40] = torch.inf
    assert not ranks.synchronize(xs, decided(4, 0)).isfinite().all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"floor": 1 / 32}, r"codec.floor=0.03125: choose a number from 0.0625 to 1 "),
        ({"floor": 1.5}, r"codec.floor=1.5: choose"),
        ({"rounding": "stochastic"}, r"codec.rounding=stochastic: choose one of truncate"),
        ({"packet": 2000}, r"codec.packet=2000 holds no partition of codec.partition=1024 coordinates"),
        ({"ef": True}, r"codec.ef=true: codec=aqgb reports no loss"),
    ],
)
def test_refusals(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_codec("aqgb", **given)  # type: ignore[arg-type]
