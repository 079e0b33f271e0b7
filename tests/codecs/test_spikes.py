"""A spike (one coordinate of one rank in one step) costs a codec with error feedback that one step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from codec_rounds import MODEL, Cluster, gradients, layout_of, mean_of
from torch import Tensor

from gradwire.codecs.hop_codec import ReportsLosses
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import OWN, codec_class, make_codec
from gradwire.codecs.step_memory import LATEST, MARGIN, LatestNorms, Memories, bounded, without_excess

SIZE = 4
SMALL = layout_of({"matrix": (40, 50), "norm": (100,)})
LARGE = layout_of({"matrix": (128, 130), "norm": (300,)})
"""A bucket with enough super-groups for DynamiQ to accept error feedback."""


def taking_feedback() -> set[str]:
    """The codecs of this package with error feedback, around them or their own."""
    return {name for name in OWN if issubclass(codec_class(name), ReportsLosses) or has_own_feedback(name)}


def has_own_feedback(codec: str) -> bool:
    return make_codec(codec).about.own_feedback


SET: list[tuple[str, str, dict[str, Any], Layout]] = [
    *[(name, "ring", {}, LARGE) for name in ("dynamiq", "dynamiq_plus")],
    ("dynamiq", "butterfly", {"rounding": "independent"}, LARGE),
    ("uniform", "butterfly", {}, SMALL),
    ("mxfp4", "broadcast", {}, SMALL),
    ("thc", "butterfly", {"block": 256, "norm": "bucket"}, SMALL),
    ("qsgd", "broadcast", {"bits": 5, "norm": "max"}, SMALL),
    ("tfp", "ring", {"bits": 12, "rounding": "truncate"}, SMALL),
    ("omnireduce", "ring", {"block": 32}, SMALL),
    ("terngrad", "broadcast", {"block": 8}, SMALL),
    ("onebit", "ring", {"block": 8}, SMALL),
    ("topk", "ring", {"fraction": 0.2, "values": "bf16"}, SMALL),
    ("randomk", "ring", {"fraction": 0.5}, SMALL),
    ("linear", "butterfly", {"hadamard": "fused", "rounding": "stochastic"}, SMALL),
    ("powersgd", "butterfly", {"rank": 6, "warm_start": False}, SMALL),
]
"""Codec, topology, settings and bucket, such that ordinary steps have a cosine above one half."""

NEEDS_SETTINGS = {
    *("dynamiq", "dynamiq_plus", "uniform", "omnireduce", "terngrad", "onebit", "topk", "randomk"),
    "edgc",  # it compresses after a warm-up
}
"""Codecs whose ordinary steps in a small bucket are worse at their defaults."""

CASES = [
    *((name, "ring", {}, SMALL) for name in sorted(taking_feedback() - NEEDS_SETTINGS)),
    *SET,
]


def ordinary(layout: Layout, step: int) -> list[Tensor]:
    """Every rank's gradient: in all steps the same direction, of rank 2, with noise."""
    directions = torch.Generator().manual_seed(0)
    parts = []
    for shape in layout.shapes:
        factors = [torch.randn(2, length, generator=directions) for length in shape]
        parts.append((factors[0].T @ factors[-1] if len(shape) > 1 else factors[0][0]).reshape(-1))
    noise = torch.Generator().manual_seed(1 + step)
    common = torch.cat(parts)
    return [1e-3 * (common + 0.5 * torch.randn(layout.numel, generator=noise)) for _ in range(SIZE)]


def lost_steps(cluster: Cluster, layout: Layout, spikes: dict[int, float], steps: int) -> list[int]:
    """The steps that were skipped, or whose mean has a cosine below 0.5 to that of the ordinary gradients."""
    found = []
    for step in range(steps):
        xs = ordinary(layout, step)
        true = mean_of(xs)
        if step in spikes:
            xs[1][777] = spikes[step]
        mean = cluster.one(xs, layout, skip=None).double()
        cosine = mean @ true / (mean.norm() * true.norm())
        if not (mean.float().norm().isfinite() and cosine >= 0.5):
            found.append(step)
    return found


def feedback(codec: str) -> dict[str, Any]:
    return {} if has_own_feedback(codec) else {"ef": True}


def test_codecs_with_settings_of_their_own_are_tried_with_them() -> None:
    assert {name for name, *_ in SET} | {"edgc"} >= NEEDS_SETTINGS


@lru_cache
def lost_without_feedback(topology: str, layout: Layout, spikes: tuple[tuple[int, float], ...]) -> list[int]:
    """The steps that a spike costs BF16."""
    return lost_steps(Cluster(SIZE, topology, "bf16"), layout, dict(spikes), spikes[-1][0] + 3)


@pytest.mark.parametrize(("codec", "topology", "options", "layout"), CASES, ids=lambda value: str(value)[:40])
def test_a_spike_costs_no_more_than_without_feedback(
    codec: str, topology: str, options: dict[str, Any], layout: Layout
) -> None:
    """The spike is finite and its step never skipped, or its square overflows; it may come in the first
    step."""
    for spikes in (((4, 1e12), (7, 1e30)), ((0, 1e12),)):
        reference = lost_without_feedback(topology, layout, spikes)
        assert reference == [step for step, _ in spikes]
        cluster = Cluster(SIZE, topology, codec, **feedback(codec), **options)
        assert cluster.supports(layout) is None
        found = lost_steps(cluster, layout, dict(spikes), spikes[-1][0] + 3)
        assert set(found) <= set(reference)


def test_two_spikes_one_after_the_other_cost_two_steps() -> None:
    for codec in ("mxfp4", "thc"):
        assert lost_steps(Cluster(SIZE, "ring", codec, ef=True), SMALL, {3: 1e12, 4: -1e9}, 8) == [3, 4]


@pytest.mark.parametrize("rank", [2, 8])
def test_powersgd_goes_on_from_before_a_skipped_spike(rank: int) -> None:
    """The spike does not turn Q: the steps after it are those of a run without that step, bit for bit.

    With gradients of full rank some of these have a cosine below one half, as they do without a spike.
    """
    means = []
    for spiked in (True, False):
        cluster, found = Cluster(SIZE, "ring", "powersgd", rank=rank), []
        for step in range(9):
            xs = gradients(MODEL, SIZE, step)
            if step == 4:
                xs[1][1234] = 1e30
                if not spiked:
                    cluster.steps += 1
                    continue
            found.append(cluster.one(xs, MODEL, skip=None))
        if spiked:
            assert not found.pop(4).norm().isfinite()
        means.append(found)
    assert all(torch.equal(one, other) for one, other in zip(*means, strict=True))


@pytest.mark.parametrize(("codec", "topology", "options", "layout"), CASES, ids=lambda value: str(value)[:40])
def test_ordinary_gradients_are_never_bounded(
    codec: str, topology: str, options: dict[str, Any], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Residuals are not bounded even if blocks differ in magnitude and norms fall to a twentieth."""
    calls = []

    def checked(residual: Tensor, norm: Tensor, times: float) -> Tensor:
        calls.append(bounded(residual, norm, times) is residual)
        return residual

    for module in ("wrappers.feedback", "powersgd"):
        monkeypatch.setattr(f"gradwire.codecs.{module}.bounded", checked)
    xs = gradients(layout, SIZE)
    cluster = Cluster(SIZE, topology, codec, **feedback(codec), **options)
    for step in range(12):
        cluster.one([x * (1.0 - step / 12) for x in xs], layout)
    assert len(calls) >= 11 * SIZE and all(calls)


def test_what_fits_stays_and_what_does_not_goes() -> None:
    norm, ten = torch.tensor(2.0), 10.0
    within = torch.tensor([12.0, -16.0, 0.0])
    assert bounded(within, norm, ten) is within, "its norm is 20"
    assert bounded(torch.tensor([12.0, -17.0, 1.5]), norm, ten).tolist() == [0.0, 0.0, 1.5]
    assert bounded(torch.tensor([3e38, 1.0]), norm, ten).tolist() == [0.0, 1.0], "the square overflows"
    assert not bounded(torch.full((500,), 1.9), norm, ten).any(), "each is small, but there are many"
    unknown = torch.tensor([1e30, 1.0])
    assert bounded(unknown, torch.tensor(torch.nan), ten) is unknown
    for residual in (within, unknown, torch.tensor([12.0, -17.0, 1.5]), torch.full((500,), 1.9)):
        for norm in (torch.tensor(2.0), torch.tensor(torch.nan), torch.tensor(torch.inf)):
            asked, unasked = bounded(residual, norm, ten), without_excess(residual, norm, ten)
            assert torch.equal(asked, unasked), "as on a GPU, where the host does not wait"


def test_the_norm_that_counts_is_a_median() -> None:
    norms = LatestNorms()
    seen = [float(norms.median("a", torch.tensor([value]))) for value in (4.0, 1e12, 1e13, 3.0, 2.0, 1.0)]
    assert seen == pytest.approx([4.0, 4.0, 1e12, 4.0, 4.0, 3.0])
    for nothing in (0.0, float("nan"), float("inf"), -float("inf"), 1e30):
        assert float(norms.median("a", torch.tensor([nothing, nothing]))) == 3.0
    assert torch.isnan(norms.median("b", torch.zeros(3)))
    restored, saved = Memories({"norms/": LatestNorms()}), Memories({"norms/": norms}).state_dict()
    assert restored.load({**saved, "residual/a": torch.ones(1)}).keys() == {"residual/a"}
    assert restored.state_dict().keys() == {"norms/a", "norms/b"}
    assert restored.state_dict()["norms/a"].tolist() == pytest.approx([1e12, 1e13, 3.0, 2.0, 1.0])
    assert len(restored.state_dict()["norms/b"]) == LATEST


def test_sparse_codecs_may_keep_more() -> None:
    """Coordinates that are not sent add up until they are."""
    of = {
        name: codec.largest_residual(Round(0, Layout.flat(10_000), 0, 4, 0))
        for name, codec in {
            "bf16": make_codec("bf16"),
            "topk": make_codec("topk", fraction=0.01),
            "randomk": make_codec("randomk", fraction=1.0),
            "omnireduce": make_codec("omnireduce", bits=1.6),
        }.items()
    }
    assert of == pytest.approx({"bf16": 12, "topk": 199, "randomk": 12, "omnireduce": 79}, rel=0.01)
    assert MARGIN > 1
