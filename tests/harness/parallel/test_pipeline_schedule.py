"""Schedules of pipelines: proven without running, and refused where they cannot work."""

from __future__ import annotations

import pytest

from gradwire.harness.parallel.pipeline.schedule import (
    ORDERS,
    Action,
    Pass,
    Schedule,
    check,
    make_schedule,
)


@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize("micro_batches", range(1, 10))
def test_every_schedule_works_and_holds_what_it_should(stages: int, micro_batches: int) -> None:
    held = {
        name: check(make_schedule(order, stages, micro_batches), micro_batches)
        for name, order in ORDERS.items()
    }
    assert held["gpipe"] == (micro_batches,) * stages
    assert held["1f1b"] == tuple(min(micro_batches, stages - stage) for stage in range(stages))


def changed(stage: int, index: int, *actions: Action) -> Schedule:
    """1F1B of 2 stages and 2 micro-batches with other actions at one place."""
    made = [list(own) for own in make_schedule(ORDERS["1f1b"], 2, 2)]
    made[stage][index : index + 1] = actions
    return tuple(map(tuple, made))


def test_broken_schedules_are_refused() -> None:
    first, second = make_schedule(ORDERS["1f1b"], 2, 2)
    assert first[0] == Action("compute", Pass("forward", 0))
    assert second[0] == Action("receive", Pass("forward", 0))
    with pytest.raises(ValueError, match=r"stage 0 computes the micro-batches \[1\] forward"):
        check(changed(0, 0), 2)
    with pytest.raises(ValueError, match=r"stage 0 computes the micro-batches \[0, 0, 1\] forward"):
        check(changed(0, 0, first[0], first[0]), 2)
    with pytest.raises(ValueError, match="stage 0 computes micro-batch 0 backward before forward"):
        check((first[::-1], second), 2)
    with pytest.raises(ValueError, match=r"stuck: stages \[0, 1\] wait"):
        check((tuple(one for one in first if one.kind != "send"), second), 2)
    with pytest.raises(ValueError, match="where it needs"):
        check(changed(1, 0), 2)
    other = Action("send", Pass("forward", 1)), Action("receive", Pass("forward", 1))
    for stage, kind in ((0, "send"), (1, "receive")):  # what comes, or what was waited for, is another one
        own = (first, second)[stage]
        at = own.index(Action(kind, Pass("forward", 0)))
        with pytest.raises(ValueError, match="where it needs"):
            check(changed(stage, at, other[stage]), 2)
    with pytest.raises(ValueError, match="is left on the way from stage 0 to 1"):
        check(changed(0, len(first) - 1, first[-1], Action("send", Pass("forward", 1))), 2)
    with pytest.raises(ValueError, match="stage 1 sends the result of .* which no stage needs"):
        check(changed(1, 1, second[1], Action("send", Pass("forward", 0))), 2)
