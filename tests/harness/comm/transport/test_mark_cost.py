"""Marks are taken as often as their cost allows."""

from __future__ import annotations

import pytest

from gradwire.harness.comm.transport.mark_cost import FEWEST, MOST_STEPS, TRIES, UNKNOWN, MarkCost


def measured(plain: float, marked: float, bucket: str = "0", times: int = FEWEST) -> MarkCost:
    cost = MarkCost()
    for _ in range(times):
        cost.add(bucket, False, plain)
        cost.add(bucket, True, marked)
    return cost


@pytest.mark.parametrize(
    ("marked", "every"),
    [(0.9, 1), (1.0, 1), (1.019, 1), (1.021, 2), (1.299, 15), (9.0, MOST_STEPS)],
)
def test_marks_cost_two_percent_at_most(marked: float, every: int) -> None:
    cost = measured(1.0, marked)
    assert cost.takes(1) and not cost.takes(2), "every second step at first"
    cost.agree([0.0, cost.own_share()])
    assert cost.every == every and not cost.is_open
    assert cost.takes(every - 1) and (every == 1 or not cost.takes(every))


def test_it_stays_open_until_all_ranks_know_their_share() -> None:
    cost = measured(1.0, 1.5, times=FEWEST - 1)
    assert cost.own_share() == UNKNOWN
    cost.agree([UNKNOWN, 0.5])
    assert cost.is_open and cost.every == 2
    for _ in range(TRIES):
        cost.agree([UNKNOWN, 0.5])
    assert not cost.is_open and (cost.every, cost.share) == (2, None)


def test_a_share_is_of_all_buckets_together() -> None:
    cost = measured(1.0, 2.0, "small")
    for seconds in (9.0, 9.0, 100.0):  # a launch that waited for another rank
        cost.add("large", False, seconds)
        cost.add("large", True, 9.0)
    assert cost.own_share() == pytest.approx(0.1)
