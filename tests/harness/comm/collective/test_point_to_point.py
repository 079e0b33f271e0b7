"""Messages from one rank to another on links that are paced, shaped and simulated: the same results, bytes
and messages, at the times that the links allow; and a real trace on the simulated clock."""

from __future__ import annotations

import pytest
import torch
from point_to_point_jobs import MESSAGE_BYTES, SIZE, Outcome, really, really_shaped, virtually
from pool import Workers

from gradwire.harness.comm.transport.pacer import PacedLink
from gradwire.harness.network.links import bytes_per_second, star, uplinks
from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.star import BURST_BYTES, LinkLimits
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.codec_times import NoTimes
from gradwire.harness.timing.trace.observations import observations
from gradwire.harness.timing.trace.rows import rows_of, trace_of
from gradwire.harness.timing.trace.step import ACTIVATIONS, Post, RankTrace, spans

RATE, LATENCY_S, SWAPPED_BYTES = 1e6, 0.01, 14


@pytest.fixture(scope="module")
def virtual() -> list[Outcome]:
    return virtually(SimulatedClock(star(SIZE, RATE, LATENCY_S), codec_times=NoTimes()))


def messages(trace: RankTrace) -> list[tuple[object, ...]]:
    """The messages that a rank posted, in order."""
    (task,) = trace.tasks
    return [(post.phase, post.sends, post.receives) for post in task.operations if isinstance(post, Post)]


def read_back(rank: int, trace: RankTrace) -> RankTrace:
    """A rank's trace as it is on disk."""
    return trace_of(rows_of(trace), rank, SIZE)


def took(outcomes: list[Outcome]) -> float:
    """Seconds from when the first rank began until the message was at the last one."""
    return outcomes[-1].ended - outcomes[0].began


def check(real: list[Outcome], virtual: list[Outcome]) -> None:
    """Compares results, bytes and messages, and checks what the trace says of the links."""
    for rank, (own, other) in enumerate(zip(real, virtual, strict=True)):
        assert all(torch.equal(*pair) for pair in zip(own.results, other.results, strict=True))
        assert own.sent == other.sent and set(own.sent) == {ACTIVATIONS}
        assert messages(own.trace) == messages(other.trace)
        (seen,) = [each for each in observations(own.trace) if each.phase == ACTIVATIONS]
        assert seen.num_bytes == own.sent[ACTIVATIONS]
        assert messages(read_back(rank, own.trace)) == messages(own.trace)
        assert any(span.kind == "comm" for span in spans(own.trace))


def retimed_s(real: list[Outcome]) -> float:
    """When the last rank of a real step has ended on the simulated star."""
    clock = SimulatedClock(star(SIZE, RATE, LATENCY_S), codec_times=NoTimes())
    return max(own.end for own in clock.step(0, {rank: own.trace for rank, own in enumerate(real)}).values())


def test_what_is_sent_and_how_long_it_takes(virtual: list[Outcome]) -> None:
    hop = MESSAGE_BYTES / RATE + LATENCY_S
    assert [own.sent[ACTIVATIONS] for own in virtual] == [MESSAGE_BYTES + SWAPPED_BYTES] * 2 + [0]
    assert took(virtual) == pytest.approx(2 * hop, rel=1e-12)


def test_paced_messages_are_no_faster_than_their_links(virtual: list[Outcome], workers: Workers) -> None:
    real = workers(SIZE)(really, PacedLink(RATE, LATENCY_S))
    check(real, virtual)
    modelled = virtually(SimulatedClock(uplinks(SIZE, RATE, LATENCY_S), codec_times=NoTimes()))
    assert took(real) >= took(modelled) == pytest.approx(2 * (MESSAGE_BYTES / RATE + LATENCY_S))


@pytest.mark.skipif(why_not() is not None, reason=f"links cannot be shaped here: {why_not()}")
def test_shaped_messages_are_no_faster_than_their_links(virtual: list[Outcome], workers: Workers) -> None:
    with ShapedNetwork(SIZE, LinkLimits(8, 256)) as network:
        entrances = [network.entrance(rank) for rank in range(SIZE)]
        real = workers(SIZE)(really_shaped, entrances)
        assert network.diagnose() == {}
    check(real, virtual)
    assert took(real) >= 2 * (MESSAGE_BYTES - BURST_BYTES) / bytes_per_second(8)


def test_a_real_step_takes_on_the_simulated_clock_what_the_virtual_one_does(
    virtual: list[Outcome], workers: Workers
) -> None:
    real = workers(SIZE)(really)
    check(real, virtual)
    assert retimed_s(real) == pytest.approx(max(own.ended for own in virtual), rel=1e-9)
