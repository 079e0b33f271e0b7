"""EDGC on all ranks: uncompressed in the warm-up, PowerSGD after it, and nothing lost when ranks change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from codec_rounds import Cluster, gradients, layout_of
from torch import Tensor

from gradwire.codecs.edgc.codec import EDGC
from gradwire.codecs.edgc.rank_control import RankPlan
from gradwire.codecs.registry import make_codec
from gradwire.codecs.wrappers.decisions import Decisions

LAYOUT = layout_of({"a.weight": (24, 32), "a.bias": (24,), "b.weight": (24, 32), "c.weight": (40, 60)})
SIZE, WINDOW = 3, 5


def edgc(**given: Any) -> Cluster:
    options = {"window": WINDOW, "alpha": 0.5, "beta": 1.0, "max_rank": 8, "step_limit": 2} | given
    return Cluster(SIZE, "ring", "edgc", **options)


def shrinking(step: int) -> list[Tensor]:
    """Gradients whose entropy falls by 0.05 a step."""
    return [x * 0.95**step for x in gradients(LAYOUT, SIZE, step)]


def plan(cluster: Cluster) -> RankPlan:
    decisions = [codec.decision for codec in cluster.codecs if isinstance(codec, Decisions)]
    assert len(decisions) == SIZE and all(each == decisions[0] for each in decisions)
    return RankPlan.of(decisions[0])


def inner(cluster: Cluster) -> list[EDGC]:
    found = [codec.inner for codec in cluster.codecs if isinstance(codec, Decisions)]
    assert all(isinstance(each, EDGC) for each in found)
    return found  # type: ignore[return-value]


def test_a_warm_up_is_uncompressed_and_one_rank_is_powersgd() -> None:
    ours, exact = edgc(min_rank=8), Cluster(SIZE, "ring", "fp32")
    began = 2 * WINDOW + 1  # the second window's entropies are agreed on in the step after it
    powersgd = Cluster(SIZE, "ring", "powersgd", rank=8, start_step=began)
    for step in range(4 * WINDOW):
        xs = shrinking(step)
        means = [cluster.one(xs, LAYOUT) for cluster in (ours, exact, powersgd)]
        assert torch.equal(means[0], means[1]) == (step < began)
        assert torch.equal(means[0], means[2])
    assert plan(ours).compressing and {each.rank for each in plan(ours).controls} == {8}


def test_nothing_is_lost_where_ranks_change() -> None:
    cluster, ranks, sums = edgc(), [], torch.zeros(2, LAYOUT.numel, dtype=torch.float64)
    for step in range(8 * WINDOW):
        xs = shrinking(step)
        mean = cluster.one(xs, LAYOUT)
        sums += torch.stack([torch.stack(xs).double().mean(0), mean.double()])
        ranks.append(plan(cluster).rank(0, (24, 32)))
    assert ranks[0] == 0 and max(ranks) == 8 and min(rank for rank in ranks if rank) == 2
    assert {after - before for before, after in zip(ranks, ranks[1:], strict=False)} <= {0, 8, -2}
    given, delivered = sums
    errors = torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for codec in inner(cluster):
        for key, error in codec.state_dict().items():
            if key.startswith("error/"):
                start = LAYOUT.offsets[LAYOUT.names.index(key.removeprefix("error/"))]
                errors[start : start + error.numel()] += error.double() / SIZE
    assert torch.allclose(delivered + errors, given, rtol=1e-4, atol=1e-4 * float(given.abs().max()))


def test_the_kept_q_stays_warm() -> None:
    cluster = edgc()
    for step in range(3 * WINDOW + 1):
        cluster.one(shrinking(step), LAYOUT)
    before = inner(cluster)[0].state_dict()["q/a.weight"]
    assert len(before) == 8 and plan(cluster).rank(0, (24, 32)) == 6
    cluster.one(shrinking(3 * WINDOW + 1), LAYOUT)
    after = inner(cluster)[0].state_dict()["q/a.weight"]
    assert len(after) == 6
    # The subspaces are nearly the same, which those of random directions are not.
    angles = torch.linalg.svdvals(torch.linalg.qr(before.T).Q.T @ torch.linalg.qr(after.T).Q)
    assert float(angles.min()) > 0.2


def test_a_skipped_window_end_is_told_by_the_next_step() -> None:
    ours, skipping = edgc(), edgc()
    for step in range(2 * WINDOW + 4):
        ours.one(shrinking(step), LAYOUT)
        skipping.one(shrinking(step), LAYOUT, skip=step in (WINDOW - 1, 2 * WINDOW - 1))
    told = [plan(cluster).controls[0] for cluster in (ours, skipping)]
    assert told[0].rank == told[1].rank == 8
    assert told[0].entropy != told[1].entropy  # a step more or less has been sampled


@pytest.mark.parametrize("estimator", ["bits", "hist", "gaussian"])
def test_every_estimator_decides(estimator: str) -> None:
    cluster = edgc(estimator=estimator, alpha=1.0)
    for step in range(4 * WINDOW + 1):
        cluster.one(shrinking(step), LAYOUT)
    assert plan(cluster).rank(0, (24, 32)) == 4
    assert all(-9 < each.entropy < -5 for each in plan(cluster).controls)


def test_probes_leave_the_means_alone() -> None:
    probing, exact = edgc(max_rank=None), Cluster(SIZE, "ring", "fp32")
    for step in range(16):
        xs = shrinking(step)
        assert torch.equal(probing.one(xs, LAYOUT), exact.one(xs, LAYOUT))
    sent = probing.world.traffic[0].by_phase
    assert 0 < sent["probe"] < 16 * 4 * LAYOUT.numel
    assert sent["reduce_scatter"] == exact.world.traffic[0].by_phase["reduce_scatter"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_rank": 9, "max_rank": 8}, "codec.min_rank=9 is more than codec.max_rank=8; choose at most 8"),
        (
            {"window": 20, "steps": 10},
            "codec.window=20 is longer than the run of 10 steps; choose at",
        ),
        ({"window": 5, "alpha": 0.1}, "codec.window=5 may have no step to sample, because codec.alpha=0.1"),
        ({"alpha": 0}, "codec.alpha=0: choose a number from"),
        ({"beta": 1.5}, "codec.beta=1.5: choose a number from"),
        ({"alignment": "none"}, "codec.alignment=none: choose one of aligned, shared, own"),
    ],
)
def test_contradictions_are_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="^codec") as caught:
        make_codec("edgc", **given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_only_what_needs_a_clock_follows_it() -> None:
    def driven(**given: Any) -> bool:
        return make_codec("edgc", **given).traits.clock_driven

    assert driven() and driven(max_rank=8, stages=2)
    assert not driven(max_rank=8) and not driven(max_rank=8, stages=2, stage_offset=3.0)
    assert not driven(max_rank=8, stages=2, alignment="own")
