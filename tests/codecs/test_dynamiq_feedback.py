"""Error feedback around DynamiQ and uniform quantization: what a round loses is kept, where that helps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dynamiq_cluster import Cluster
from dynamiq_rounds import empty_message, heavy_tailed, make_hops, run_ring
from torch import Tensor

from gradwire.codecs.dynamiq import DynamiQ, UniformQuantization
from gradwire.codecs.dynamiq.allocation import LOST_SHARES, lost_share
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Layout
from gradwire.codecs.wrappers.feedback import ErrorFeedback

LARGE = Layout.flat(1 << 20)

SETTINGS: list[tuple[type[DynamiQ], dict[str, Any]]] = [
    (DynamiQ, {}),
    (DynamiQ, {"mean": False, "group": 32}),
    (DynamiQ, {"widths": [2, 3, 4, 5, 6, 8], "values": "distinct", "errors": "measured"}),
    (UniformQuantization, {}),
    (UniformQuantization, {"widths": [3]}),
]


class Unchecked(ErrorFeedback):
    """A codec with unbounded error feedback, even where the codec refuses it."""

    def __init__(self, codec: LossyHopCodec) -> None:
        super().__init__(codec)
        setattr(codec, "largest_residual", lambda this_round: float("inf"))  # noqa: B010

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        return None


def residuals(cluster: Cluster, numel: int) -> Tensor:
    """The residuals by rank, (ranks, numel) float64; zeros at first."""
    states = [codec.state_dict().get("residual/flat", torch.zeros(numel)) for codec in cluster.codecs]
    return torch.stack(states).double()


@pytest.mark.parametrize(("codec", "options"), SETTINGS, ids=str)
@pytest.mark.parametrize(("topology", "size"), [("ring", 3), ("butterfly", 5), ("broadcast", 3)])
def test_nothing_is_lost_for_good(
    codec: type[DynamiQ], options: dict[str, Any], topology: str, size: int
) -> None:
    """Σ(x_i + e_i) = n·mean + Σe_i', in every round, up to float32 rounding."""
    numel = 1800
    cluster = Cluster([ErrorFeedback(codec(**options)) for _ in range(size)], topology)
    for step in range(3):
        xs, before = heavy_tailed(numel, size, seed=step), residuals(cluster, numel)
        mean, after = cluster.step(xs), residuals(cluster, numel)
        given = torch.stack(xs).double().sum(dim=0) + before.sum(dim=0)
        difference = given - (size * mean.double() + after.sum(dim=0))
        assert after.abs().sum() > 0
        scale = (torch.stack(xs).abs().sum(dim=0) + after.abs().sum(dim=0)).view(-1, 8).amax(dim=1)
        assert (difference.view(-1, 8).abs().amax(dim=1) <= 4e-6 * scale.amax()).all()
        assert difference.norm() < 1e-5 * given.norm()


def test_losses_are_sums_less_their_decoding() -> None:
    """A worker that only encodes keeps its values minus what the receiver decodes, padding and mean aside."""
    x = heavy_tailed(1000, 1)[0]
    for codec in (DynamiQ(), UniformQuantization()):
        sender, receiver = (make_hops(codec, [x], num_chunks=2)[0] for _ in range(2))
        sender.keep_losses()
        for chunk in (range(1), range(1, 2)):
            message = empty_message(sender, chunk)
            sender.encode(chunk, message, 1)
            receiver.decode(message, chunk, 2)
        losses = sender.losses()
        assert losses.shape == (1000,) and losses.dtype == torch.float32
        torch.testing.assert_close(losses, x - receiver.finish(), rtol=0, atol=1e-6 * float(x.abs().max()))


def test_keeping_losses_changes_no_result() -> None:
    xs = heavy_tailed(3000, 3)
    for codec in (DynamiQ(), UniformQuantization()):
        plain, kept = make_hops(codec, xs), make_hops(codec, xs)
        for hops in kept:
            hops.keep_losses()
        assert torch.equal(run_ring(plain)[0], run_ring(kept)[0])


def test_a_residual_goes_on_where_it_was() -> None:
    """A state saved after two rounds and loaded into new codecs gives the same third round, bit for bit."""
    xs = heavy_tailed(2000, 3)
    first = Cluster([ErrorFeedback(DynamiQ()) for _ in range(3)])
    for _ in range(2):
        first.step(xs)
    second = Cluster([ErrorFeedback(DynamiQ()) for _ in range(3)])
    for old, new in zip(first.codecs, second.codecs, strict=True):
        new.load_state_dict(old.state_dict())
    second.steps = first.steps
    assert torch.equal(first.step(xs), second.step(xs))


def kept_energy(codec: LossyHopCodec, size: int, rounds: int, spread: float = 1.0) -> list[float]:
    """After each round with the same gradients: the energy of all residuals over that of the gradients."""
    numel = 256 * 24
    xs = heavy_tailed(numel, size, spread=spread)
    cluster = Cluster([Unchecked(codec) for _ in range(size)])
    energy, kept = sum(float(x.double().square().sum()) for x in xs), []
    for _ in range(rounds):
        cluster.step(xs)
        kept.append(float(residuals(cluster, numel).square().sum()) / energy)
    return kept


@pytest.mark.parametrize(
    ("codec", "options", "size"),
    [
        (DynamiQ, {}, 4),
        (DynamiQ, {"bits": 3.5}, 4),
        (UniformQuantization, {}, 4),
        (UniformQuantization, {"widths": [3]}, 8),
        (UniformQuantization, {"widths": [2], "values": "distinct", "group": 16}, 2),
    ],
    ids=str,
)
def test_what_is_kept_stays_bounded_where_feedback_is_accepted(
    codec: type[DynamiQ], options: dict[str, Any], size: int
) -> None:
    assert codec(**options).refuses_feedback(size, LARGE) is None
    kept = kept_energy(codec(**options), size, 24)
    assert max(kept[12:]) < 5
    assert max(kept[18:]) < 2 * max(kept[6:18])


@pytest.mark.parametrize(
    ("codec", "options", "size", "growth"),
    [
        (UniformQuantization, {"widths": [1]}, 2, 1e6),
        (DynamiQ, {"widths": [1, 2, 4], "bits": 2.0}, 4, 1e6),
        (UniformQuantization, {"widths": [2]}, 8, 100),
    ],
    ids=str,
)
def test_what_is_kept_outgrows_the_gradients_where_feedback_is_refused(
    codec: type[DynamiQ], options: dict[str, Any], size: int, growth: float
) -> None:
    """The round runs along a ring of workers whose gradients never change."""
    reason = codec(**options).refuses_feedback(size, LARGE)
    assert reason is not None and "\n" not in reason and f"sums of {size} gradients" in reason
    assert kept_energy(codec(**options), size, 12)[-1] > growth


def test_more_bits_and_fewer_workers_are_never_refused_instead() -> None:
    for widths in ([1], [2], [3], [4], [8]):
        refused = [
            UniformQuantization(widths=widths).refuses_feedback(n, LARGE) is not None for n in range(1, 257)
        ]
        assert refused == sorted(refused)
    for workers in (2, 4, 8, 64):
        allowed = [DynamiQ(bits=bits / 8).refuses_feedback(workers, LARGE) is None for bits in range(22, 69)]
        assert allowed == sorted(allowed) and allowed[-1]
    assert DynamiQ().refuses_feedback(64, LARGE) is None
    assert UniformQuantization(widths=[1]).refuses_feedback(1, LARGE) is not None
    # ω·(n + 1)/2 < 1, hence n < 2/ω − 1.
    for width, largest in ((2, 1), (3, 18), (4, 105)):
        codec = UniformQuantization(widths=[width])
        assert [codec.refuses_feedback(n, LARGE) is None for n in (largest, largest + 1)] == [True, False]


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("values", ["nonuniform", "uniform", "distinct"])
def test_the_lost_shares_are_what_is_lost(values: str, group: int) -> None:
    """The shares hold within 6 % for normally distributed coordinates that are rounded once."""
    x = torch.randn(256 * 120, generator=torch.Generator().manual_seed(0))
    for width, share in LOST_SHARES[values, group].items():  # type: ignore[index]
        codec = DynamiQ(
            widths=[width], bits=None, mean=False, values=values, group=group, rounding="independent"
        )
        lost = run_ring(make_hops(codec, [x]))[0] - x
        assert float(lost.square().sum() / x.square().sum()) == pytest.approx(share, rel=0.06)
    assert lost_share([2, 4, 8], 2.0, "uniform", group) == LOST_SHARES["uniform", group][2]
    middle = LOST_SHARES["uniform", group][2] * LOST_SHARES["uniform", group][4]
    assert lost_share([2, 4, 8], 3.0, "uniform", group) == pytest.approx(middle**0.5)
