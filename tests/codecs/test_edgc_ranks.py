"""EDGC's ranks by window: the series of its specification, bounds, warm-up and stages."""

from __future__ import annotations

import math

import pytest

from gradwire.codecs.edgc.rank_control import Control, RankControl, RankPlan, Window
from gradwire.codecs.options.reduced import Alignment, Reference

SHAPE = (256, 1024)


def control(
    *, least: int = 16, limit: int = 8, warm_up: float = 0, alignment: Alignment = "aligned"
) -> RankControl:
    return RankControl(least, limit, warm_up, alignment, "activation")


def followed(
    ranks: RankControl, entropies: list[list[float]], *, most: int = 64, offset: float = 0.0
) -> list[list[int]]:
    """The ranks of each stage after each window of 10 steps, 0 in the warm-up; `entropies` by window and
    stage."""
    plan, found = RankPlan(max_rank=most), []
    for number, own in enumerate(entropies):
        windows = [Window(stage, *SHAPE, 2, nats) for stage, nats in enumerate(own)]
        plan = ranks.decide(plan, windows, 10 * (number + 1), offset)
        found.append([plan.rank(stage, SHAPE) for stage in range(len(own))])
    return found


def falling(by: float, windows: int) -> list[list[float]]:
    return [[-8.0 - by * number] for number in range(windows)]


@pytest.mark.parametrize(
    ("by", "reference", "expected"),
    [
        (0.05, "activation", [0, 64, 56, 48, 40, 32, 24, 16, 16]),
        (0.02, "activation", [0, 64, 60, 56, 51, 47, 42, 38, 33, 28, 24, 19, 16]),
        (0.0, "activation", [0, 0, 0, 0]),
        (0.05, "first", [0, 56, 48, 40, 32, 24, 16, 16]),
    ],
)
def test_ranks_follow_a_falling_entropy(by: float, reference: Reference, expected: list[int]) -> None:
    ranks = RankControl(16, 8, 0, "aligned", reference)
    assert followed(ranks, falling(by, len(expected))) == [[rank] for rank in expected]


def test_a_flat_entropy_keeps_the_largest_rank() -> None:
    entropies = [*falling(0.01, 2), *[[-8.01]] * 4]
    assert followed(control(), entropies) == [[0], *[[64]] * 5]


def test_ranks_rise_and_stay_within_bounds_and_limits() -> None:
    nats = [-8.0, *(-8.1 - 0.2 * math.sin(number) for number in range(40))]
    found = [rank for (rank,) in followed(control(limit=5), [[each] for each in nats])][1:]
    assert min(found) >= 16 and max(found) == 64
    changes = [after - before for before, after in zip(found, found[1:], strict=False)]
    assert min(changes) == -5 and max(changes) == 5


def test_a_warm_up_lasts_to_its_floor() -> None:
    assert followed(control(warm_up=45), falling(0.05, 6)) == [[0], [0], [0], [0], [64], [56]]


def test_compression_never_begins_while_the_entropy_rises() -> None:
    assert followed(control(), falling(-0.1, 6)) == [[0]] * 6


def test_unknown_entropies_leave_ranks_alone() -> None:
    entropies = [*falling(0.05, 4), [-math.inf], [-math.inf]]
    assert followed(control(), entropies) == [[0], [64], [56], [48], [48], [48]]
    assert followed(control(), [[-math.inf], *falling(0.05, 3)]) == [[0], [0], [64], [56]]


def test_a_quarter_is_the_least_unless_given() -> None:
    assert followed(control(least=0, limit=64), falling(1.0, 4)) == [[0], [64], [16], [16]]


def test_nothing_is_compressed_without_a_largest_rank() -> None:
    assert followed(control(), falling(0.05, 4), most=0) == [[0]] * 4


def test_a_matrix_never_has_all_its_ranks() -> None:
    plan = RankPlan(max_rank=64)
    for nats in (-8.0, -9.0):
        plan = control(least=0).decide(plan, [Window(0, 8, 512, 1, nats)], 10, 0.0)
    assert plan.rank(0, (8, 512)) == 7


def test_later_stages_have_larger_ranks_that_follow_the_first() -> None:
    entropies = [[each, -3.0, -3.0] for (each,) in falling(0.05, 5)]
    found = followed(control(), entropies, offset=3.5)
    assert found == [[0] * 3, [64] * 3, [56, 59, 63], [48, 51, 55], [40, 43, 47]]


def test_stages_share_the_mean_or_have_their_own() -> None:
    entropies = [[each, -3.0] for (each,) in falling(0.05, 4)]
    shared = followed(control(alignment="shared"), entropies)
    assert shared == [[each, each] for (each,) in followed(control(), falling(0.025, 4))]
    own = followed(control(alignment="own"), entropies)
    assert own == [[0, 0], [64, 64], [56, 64], [48, 64]]


def test_a_shape_of_later_stages_alone_has_its_own_ranks() -> None:
    plan, other = RankPlan(max_rank=64), (200, 800)
    for number in range(4):
        told = [Window(0, *SHAPE, 2, -8 - 0.05 * number), Window(1, *other, 1, -5 - 0.01 * number)]
        plan = control().decide(plan, told, 10 * number, 3.5)
    assert plan.rank(0, SHAPE) == 48 and 48 < plan.rank(1, other) < 64


def test_a_plan_is_its_decision() -> None:
    controls = (
        Control(0, 4, 8, 2, 3, -1.5, 0.25, 3, -1.25),
        Control(1, 4, 8, 1, 2, -math.inf, 1.0, 0, -math.inf),
    )
    plan = RankPlan(1, 3, 0.5, 0.25, 0.01, 2.0, 0.125, controls)
    assert RankPlan.of(plan.decision()) == plan
    assert RankPlan.of(RankPlan().decision()) == RankPlan()
    assert plan.figures() == {
        "compressing": 1,
        "max_rank": 3,
        "seconds_per_rank": 0.5,
        "model_error": 0.01,
        "rank_0": 3,
        "entropy_0": -1.5,
        "zeros_0": 0.25,
        "rank_1": 2,
        "zeros_1": 1.0,
    }
