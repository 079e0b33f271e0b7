"""Timelines of threads that take turns and ranks that wait for each other."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from reference_engine import run_reference
from simulated_steps import (
    SOME_WORK,
    Tasks,
    all_reduce,
    ends,
    exact_ends,
    operations_of,
    post,
    receiving,
    sending,
    task,
    wait,
)

from gradwire.harness.network.links import star, unlimited, uplinks
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import POST, WAIT, WORK, compile_plan
from gradwire.harness.timing.trace.step import TaskTrace, Work

RATE: Any = Fraction(7, 3)
LATENCY: Any = Fraction(1, 11)


def exchange(bucket: int, num_bytes: int, rank: int, *before: Work) -> TaskTrace:
    """Two ranks send each other as much."""
    messages = [(1 - rank, num_bytes)]
    return task(*before, post(messages, messages), wait(), bucket=bucket)


def test_one_bucket_after_another() -> None:
    tasks = {rank: tuple(exchange(bucket, 10, rank) for bucket in range(3)) for rank in range(2)}
    found = exact_ends(tasks, star(2, RATE, LATENCY), in_flight=1)
    assert [found[0, bucket] for bucket in range(3)] == [k * (10 / RATE + LATENCY) for k in (1, 2, 3)]


@pytest.mark.parametrize("links", [star, uplinks])
def test_two_buckets_in_flight_follow_each_other_on_the_connection(links: Any) -> None:
    """Latencies pass while the next message is under way."""
    tasks = {rank: tuple(exchange(bucket, 10, rank) for bucket in range(2)) for rank in range(2)}
    found = exact_ends(tasks, links(2, RATE, LATENCY), in_flight=2)
    assert [found[0, bucket] for bucket in range(2)] == [10 / RATE + LATENCY, 20 / RATE + LATENCY]


def test_buckets_in_turn_follow_each_other_with_two_in_flight() -> None:
    whole = {rank: tuple(exchange(bucket, 10, rank) for bucket in range(3)) for rank in range(2)}
    in_turn = {rank: tuple(own._replace(in_turn=True) for own in tasks) for rank, tasks in whole.items()}
    links = star(2, RATE, LATENCY)
    assert exact_ends(in_turn, links, in_flight=2) == exact_ends(whole, links, in_flight=1)


def test_work_of_two_buckets_is_done_by_turns() -> None:
    """Both are ready at 0: the second encodes while the first is sent, and is sent after it."""
    work = Fraction(3)
    tasks = {rank: tuple(exchange(bucket, 10, rank, SOME_WORK) for bucket in range(2)) for rank in range(2)}
    found = exact_ends(tasks, star(2, RATE, LATENCY), work_s=work, in_flight=2)
    assert work < 10 / RATE, "the second has encoded before the first is gone"
    assert found[0, 0] == work + 10 / RATE + LATENCY
    assert found[0, 1] == work + 20 / RATE + LATENCY


def test_messages_to_different_ranks_share_the_link() -> None:
    tasks = {
        0: (task(post(sends=[(1, 10), (2, 10)]), wait()),),
        1: (receiving(0, 10),),
        2: (receiving(0, 10),),
    }
    assert exact_ends(tasks, star(3, RATE, LATENCY))[1, 0] == 20 / RATE + LATENCY
    assert exact_ends(tasks, uplinks(3, RATE, LATENCY))[1, 0] == 10 / RATE + LATENCY


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_work_of_a_rank_never_overlaps(in_flight: int) -> None:
    tasks = all_reduce("ring", 4, 12, buckets=4, work=True)
    operations = operations_of(tasks)
    work_s = [Fraction(1 + index % 3, 5) for index in range(len(operations))]
    plan = compile_plan(tasks, in_flight)
    times = run_reference(plan, star(4, RATE, LATENCY), work_s, [0] * 16)
    per_rank = len(operations) // 4
    for rank in range(4):
        own = range(rank * per_rank, (rank + 1) * per_rank)
        worked = [index for index in own if isinstance(operations[index], Work)]
        spans = sorted((times.start[index], times.end[index]) for index in worked)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
        assert [times.end[index] - times.start[index] for index in worked] == [
            work_s[index] for index in worked
        ]


def test_the_first_waiting_thread_has_the_next_turn() -> None:
    """Bucket 0 works from 0 to 4; 1 and 2 become ready meanwhile, 2 first."""
    tasks = {0: tuple(task(SOME_WORK, bucket=bucket) for bucket in range(3))}
    ready = {(0, 0): Fraction(0), (0, 1): Fraction(2), (0, 2): Fraction(1)}
    found = exact_ends(tasks, unlimited(), work_s=Fraction(4), ready=ready, in_flight=3)
    assert [found[0, bucket] for bucket in range(3)] == [4, 12, 8]


def test_nothing_begins_before_it_is_ready() -> None:
    tasks = {0: (task(SOME_WORK, bucket=0), task(SOME_WORK, bucket=1))}
    found = exact_ends(tasks, unlimited(), work_s=1, ready={(0, 0): Fraction(9), (0, 1): Fraction(2)})
    assert found == {(0, 0): 10, (0, 1): 11}


def test_what_is_posted_may_be_waited_for_later_and_in_any_order() -> None:
    first, second = [(1, 10)], [(1, 20)]
    tasks = {
        0: (task(post(sends=first), SOME_WORK, post(sends=second), wait(1), wait(0)),),
        1: (task(post(receives=[(0, 10)]), post(receives=[(0, 20)]), wait(0), wait(1)),),
    }
    plan = compile_plan(tasks, 1)
    times = run_reference(plan, star(2, RATE, LATENCY), [0, Fraction(100), *[0] * 7], [0, 0])
    assert times.end[3:5] == [100 + 20 / RATE + LATENCY] * 2
    assert times.start[4] == times.end[3]
    assert times.end[7] == 10 / RATE + LATENCY


def test_thousands_of_messages_that_take_no_time() -> None:
    """Each task continues from the one before it, without recursion."""
    number = 5000
    tasks = {
        rank: (
            task(*(post([(1 - rank, 0)], [(1 - rank, 0)]) for _ in range(number)), *map(wait, range(number))),
        )
        for rank in range(2)
    }
    assert set(exact_ends(tasks, unlimited()).values()) == {0}


def stuck() -> Tasks:
    """Rank 0 waits for rank 1 before it sends rank 2, rank 1 for rank 2, rank 2 for rank 0."""
    return {
        rank: (
            task(post(receives=[((rank + 1) % 3, 10)]), wait(0), post(sends=[((rank + 2) % 3, 10)]), wait(1)),
        )
        for rank in range(3)
    }


@pytest.mark.parametrize("engine", [run, run_reference])
def test_a_deadlock_says_who_waits_for_whom(engine: Any) -> None:
    message = "the collective is stuck: rank 0 for rank 1, rank 1 for rank 2, rank 2 for rank 0$"
    with pytest.raises(RuntimeError, match=message):
        ends(stuck(), star(3, 1.0, 0.0), engine=engine)


@pytest.mark.parametrize("engine", [run, run_reference])
def test_a_deadlock_names_only_those_who_are_missing(engine: Any) -> None:
    """Rank 0's message from rank 1 comes through, that from rank 2 is stuck behind one that is not sent
    yet."""
    tasks = {
        0: (task(post(receives=[(1, 10), (2, 10)]), wait(0), post(sends=[(2, 10)]), wait(1)),),
        1: (sending(0, 10),),
        2: (task(post(receives=[(0, 10)]), wait(0), post(sends=[(0, 10)]), wait(1)),),
    }
    with pytest.raises(RuntimeError, match="stuck: rank 0 for rank 2, rank 2 for rank 0$"):
        ends(tasks, star(3, 1.0, 0.0), engine=engine)


def test_the_same_inputs_give_the_same_times() -> None:
    tasks = all_reduce("butterfly", 6, 12, buckets=5, work=True)
    plan, links = compile_plan(tasks, 2), star(6, 1.1, 0.07)
    work_s = [0.1 * (index % 7) for index in range(len(plan.kinds))]
    ready = [0.3 * (index % 5) for index in range(30)]
    again = compile_plan(tasks, 2)
    for engine in (run, run_reference):
        found = engine(plan, links, work_s, ready)
        assert engine(plan, links, work_s, ready) == found
        assert engine(again, links, work_s, ready) == found


def test_ranks_may_be_given_in_any_order() -> None:
    tasks, links = all_reduce("ring", 5, 12, buckets=2, work=True), star(5, 1.1, 0.07)
    turned = dict(reversed(tasks.items()))
    assert ends(turned, links, work_s=0.1, in_flight=2) == ends(tasks, links, work_s=0.1, in_flight=2)


def test_messages_match_in_their_order() -> None:
    tasks = {
        0: (task(post(sends=[(1, 10)]), post(sends=[(1, 20)]), wait(0), wait(1)),),
        1: (task(post(receives=[(0, 10)]), wait(0), post(receives=[(0, 20)]), wait(1)),),
    }
    plan = compile_plan(tasks, 1)
    assert plan.kinds.tolist() == [POST, POST, WAIT, WAIT, POST, WAIT, POST, WAIT]
    assert plan.values.tolist() == [0, 1, 0, 1, 2, 2, 3, 3]
    assert plan.senders.tolist() == [0, 1] and plan.receivers.tolist() == [2, 3]
    assert plan.sizes.tolist() == [10, 20] and plan.routes == [(0, (1,))]


def test_a_message_that_only_the_sender_knows_of() -> None:
    for tasks in ({0: (sending(1, 10),), 1: ()}, {0: (), 1: (receiving(0, 10),)}):
        with pytest.raises(ValueError, match="bucket 0: a message between ranks 0 and 1 has one end"):
            compile_plan(tasks, 1)


def test_a_message_of_another_bucket_is_not_the_one_expected() -> None:
    with pytest.raises(ValueError, match="bucket 0: a message between ranks 0 and 1 has one end"):
        compile_plan({0: (sending(1, 10, bucket=0),), 1: (receiving(0, 10, bucket=1),)}, 1)


def test_a_message_of_another_size_than_expected() -> None:
    with pytest.raises(ValueError, match="rank 0 sends rank 1 other messages than that expects"):
        compile_plan({0: (sending(1, 10),), 1: (receiving(0, 11),)}, 1)


def test_kinds_of_a_task() -> None:
    plan = compile_plan({0: (task(SOME_WORK, SOME_WORK),)}, 1)
    assert plan.kinds.tolist() == [WORK, WORK]
    assert (plan.num_posts, len(plan.sizes), plan.first_operations.tolist()) == (0, 0, [0, 2])
