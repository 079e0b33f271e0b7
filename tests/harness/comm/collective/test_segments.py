"""Messages cut into segments: the same sums, and work that overlaps sending."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from collective_jobs import fabric, synchronize_buckets, synchronize_virtually
from driven import DrivenChannel, Event, drive, integers, watched_sum
from pool import Workers

from gradwire.codecs.casts import CastHops
from gradwire.codecs.slices import chunk_bounds
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.topology.registry import TOPOLOGIES

SEGMENTS = [1, 2, 3, 4]

every_topology = pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
every_segments = pytest.mark.parametrize("segments", SEGMENTS)


def summed(topology: str, size: int, segments: int, numel: int, **options: Any) -> list[DrivenChannel]:
    """Run an all-reduce, check its sums, and return what the ranks wrote down."""
    results, channels = drive(fabric(topology, segments=segments), size, watched_sum(numel), **options)
    expected = torch.stack([integers(rank, numel) for rank in range(size)]).sum(0)
    assert all(torch.equal(result, expected) for result in results)
    return channels


@every_topology
@every_segments
@pytest.mark.parametrize("size", range(1, 10))
def test_sums_are_exact_in_whatever_order_messages_arrive(topology: str, segments: int, size: int) -> None:
    """Buffers are guarded: they are neither read before they are filled nor written before they are sent."""
    for seed, numel in enumerate([1000, 333, 9, 1, 0]):
        for channel in summed(topology, size, segments, numel, seed=seed):
            assert most_in_flight(channel.events) <= segments


@pytest.mark.parametrize("topology", sorted({*TOPOLOGIES} - {"broadcast"}))
@every_segments
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_reduce_scatter_leaves_each_sink_its_segments(topology: str, segments: int, size: int) -> None:
    numel, cut = 1000, fabric(topology, segments=segments)
    results, channels = drive(cut, size, watched_sum(numel, scatter_only=True))
    expected = torch.stack([integers(rank, numel) for rank in range(size)]).sum(0)
    _, schedule = cut.schedules(size)
    bounds = chunk_bounds(numel, schedule.num_chunks)
    for result, chunks in zip(results, schedule.kept, strict=True):
        own = [expected[bounds[chunk] : bounds[chunk + 1]] for chunk in chunks]
        assert torch.equal(result, torch.cat([expected[:0], *own]))
    assert sum(channel.traffic.total for channel in channels) == (size - 1) * numel * 4
    assert not any("all_gather" in channel.traffic.by_phase for channel in channels)


def most_in_flight(events: list[Event]) -> int:
    """The most posts that a rank had not waited for."""
    in_flight = largest = 0
    for event in events:
        in_flight += (event[0] == "post") - (event[0] == "wait")
        largest = max(largest, in_flight)
    return largest


def order(events: list[Event]) -> list[str]:
    """The actions of a rank: `encode 0` by its first chunk, `post 0` and `wait 0` by number."""
    hops = [event for event in events if event[0] != "lap"]
    return [f"{kind} {what.start if isinstance(what, range) else what}" for kind, what, *_ in hops]


def test_without_segments_a_rank_waits_for_each_step() -> None:
    """A ring of three: rank 0 begins with chunk 0, passes chunk 2 on, seals chunk 1."""
    channel = summed("ring", 3, 1, 99)[0]
    assert order(channel.events) == [
        *("encode 0", "post 0", "wait 0"),
        *("accumulate_encode 2", "post 1", "wait 1"),
        *("accumulate_encode 1", "decode 1", "post 2", "wait 2"),  # sealed: what all others get, too
        *("post 3", "decode 0", "wait 3"),
        "decode 2",
    ]


def test_in_a_ring_work_overlaps_sending() -> None:
    """Each segment is encoded and decoded while all others are under way."""
    segments = 4
    for channel in summed("ring", 3, segments, 999):
        done = order(channel.events)
        assert [event.split()[0] for event in done[: 2 * segments]] == ["encode", "post"] * segments
        assert most_in_flight(channel.events) == segments
        in_flight = 0
        for event in done[:-1]:
            in_flight += event.startswith("post") - event.startswith("wait")
            if event.startswith("accumulate_encode"):
                assert in_flight == segments - 1
            if event.startswith("decode"):
                assert in_flight >= 1
        assert done[-1].startswith("decode")
        waits = [event for event in done if event.startswith("wait")]
        assert waits == [f"wait {post}" for post in range(4 * segments)], "in the order posted"


def test_a_broadcast_posts_all_its_segments_at_once() -> None:
    for channel in summed("broadcast", 4, 3, 999):
        assert order(channel.events)[:7] == [
            *("encode 0", "post 0", "encode 1", "post 1", "encode 2", "post 2"),
            "wait 0",
        ]


def test_a_butterflys_next_step_begins_before_the_last_has_ended() -> None:
    """Next, a rank gives away the lower or upper half of what it received, two segments of four."""
    for channel in summed("butterfly", 8, 4, 999):
        before = [event[0] for event in channel.events[: channel.events.index(("post", 4, "reduce_scatter"))]]
        assert before.count("wait") in (1, 3)


def test_the_trace_names_all_work_and_its_share_of_the_bucket() -> None:
    """A ring of three, two segments: a rank encodes one third, adds to one, seals one and decodes two.

    Metadata has two halves, which are sent as they lie. Rank 1 is folded into rank 0, which adds both of its
    halves to its own; then ranks 0 and 2 add one of each other's.
    """

    async def run(comm: ScheduledCollectives, channel: DrivenChannel) -> None:
        (total,) = await comm.reduce([(torch.ones(10), "sum")])
        assert comm.num_chunks == 6
        await comm.all_reduce(CastHops(total.repeat(50), comm.size, comm.num_chunks, torch.bfloat16))
        await comm.all_gather(total)

    _, channels = drive(fabric("ring", segments=2), 3, run)
    for rank, channel in enumerate(channels):
        laps = [event[1:] for event in channel.events if event[0] == "lap"]
        names = [name for name, _ in laps]
        first = ["statistics", "plan"] if rank == 1 else ["statistics", "metadata", "plan"]
        assert [*dict.fromkeys(names)][: len(first)] == first
        assert names[-2:] == ["finish", "prepare"]
        shares = {name: sum(share for label, share in laps if label == name) for name in names}
        once = dict.fromkeys(("statistics", "plan", "finish", "prepare"), 1)
        once |= ({"metadata": 1.5}, {}, {"metadata": 0.5})[rank]
        thirds = {"encode": 1, "accumulate_encode": 1, "seal": 1, "decode": 2}
        assert shares == pytest.approx(once | {name: count / 3 for name, count in thirds.items()})
        assert max(share for name, share in laps if name in ("encode", "seal", "decode")) == 1 / 6
        posts = [event for event in channel.events if event[0] == "post"]
        assert [phase for _, _, phase in posts].count("metadata") == (4, 2, 2)[rank], "metadata is not cut"


@every_topology
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_segments_change_no_bytes(topology: str, codec: str, size: int) -> None:
    totals = set()
    for segments in (1, 2, 3, 4, 8):
        _, sent = synchronize_virtually(size, topology, codec, {}, [1000, 7], segments)
        totals.add(tuple(sum(phases.get(name, 0) for phases in sent) for name in sorted({*sent[0]})))
    assert len(totals) == 1


CODECS: list[tuple[str, dict[str, Any]]] = [
    ("bf16", {}),
    ("dynamiq", {"bits": 5.0}),
    ("mxfp6", {}),
    ("thc", {}),
    ("qsgd", {}),
    ("omnireduce", {}),
]


@every_topology
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("codec", "options"), CODECS, ids=str)
def test_real_workers_get_what_virtual_ones_get(
    codec: str, options: dict[str, Any], size: int, topology: str, workers: Workers
) -> None:
    """Three segments of each message, several buckets at once: the same means and bytes, bit for bit."""
    sizes = [5000, 1, 3333]
    virtual, sent = synchronize_virtually(size, topology, codec, options, sizes, 3)
    real = workers(size)(synchronize_buckets, topology, codec, options, sizes, 3)
    for rank, (means, traffic) in enumerate(real):
        assert all(torch.equal(mean, other) for mean, other in zip(means, virtual[0], strict=True))
        assert traffic == sent[rank]
