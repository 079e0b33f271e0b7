"""A rank's plan: what is prepared once for a route, and the memory that a codec gives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.codecs.collectives import Hops
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.arena import Arena, Slot
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.collective.execute import Execution
from gradwire.harness.comm.collective.plan import RoutePlan, cut
from gradwire.harness.comm.collective.planner import Planner
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local

SIZE = 4
CPU = torch.device("cpu")


class Ranks:
    """Ranks whose arenas last from round to round."""

    def __init__(self, topology: str, size: int = SIZE, segments: int = 1) -> None:
        self._fabric = Fabric(partial(make_schedule, topology), segments=segments)
        self._arenas = [Arena(CPU) for _ in range(size)]

    def round(self, make: Callable[[int, ScheduledCollectives], Any]) -> list[Any]:
        """The results of each rank's coroutine that `make` gives."""
        mailboxes, results = Mailboxes(debug=True), dict[int, Any]()
        tasks = []
        for rank, arena in enumerate(self._arenas):
            arena.begin_round()
            channel = LocalChannel(rank, len(self._arenas), 0, Traffic(), mailboxes)
            coroutine = make(rank, ScheduledCollectives(channel, self._fabric, arena))
            tasks.append(CollectiveTask(coroutine, partial(results.__setitem__, rank), lambda error: None))
        run_local(tasks, mailboxes, time.perf_counter)
        return [results[rank] for rank in range(len(self._arenas))]

    def mean(self, codec: str, numel: int, step: int = 0) -> list[Tensor]:
        """The results of a round of this codec, by rank."""
        layout, made = Layout.flat(numel), make_codec(name=codec)

        def make(rank: int, comm: ScheduledCollectives) -> Any:
            x = torch.arange(numel, dtype=torch.float32).remainder(7) - rank
            return made.synchronize(x, Round(step, layout, rank, len(self._arenas), 1), comm)

        return self.round(make)


class Growing(Hops):
    """Messages that are longer the more contributions they hold: `unit` bytes for each."""

    def __init__(self, size: int, num_chunks: int, unit: int) -> None:
        self._size, self._unit, self._sums = size, unit, [1] * num_chunks

    def message_bytes(self, chunks: range, workers: int) -> int:
        return self._unit * workers * len(chunks)

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        assert {self._sums[chunk] for chunk in chunks} == {workers}
        assert out.numel() == self.message_bytes(chunks, workers)
        out.fill_(workers)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        self._check(message, chunks, workers)
        for chunk in chunks:
            self._sums[chunk] += workers

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        self._check(message, chunks, workers)
        for chunk in chunks:
            self._sums[chunk] = workers

    def _check(self, message: Tensor, chunks: range, workers: int) -> None:
        assert message.numel() == self.message_bytes(chunks, workers)
        assert bool((message == workers).all())

    def finish(self) -> Tensor:
        assert self._sums == [self._size] * len(self._sums)
        return torch.tensor(self._sums)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_sizes_may_follow_contributions_and_change_every_round(topology: str, segments: int) -> None:
    ranks = Ranks(topology, 6, 1 if topology == "broadcast" else segments)
    for unit in (16, 48, 16, 32, 0, 48):

        def make(rank: int, comm: ScheduledCollectives, unit: int = unit) -> Any:
            return comm.all_reduce(Growing(6, comm.num_chunks, unit))

        assert all(bool((result == 6).all()) for result in ranks.round(make))


def planned(monkeypatch: pytest.MonkeyPatch) -> tuple[list[RoutePlan], list[Slot]]:
    """The plans that are made, and the slots of which a view is made, from now on."""
    plans, views, plan, part = list[RoutePlan](), list[Slot](), Planner.plan, Slot.part

    def noted(planner: Planner) -> RoutePlan:
        plans.append(plan(planner))
        return plans[-1]

    def viewed(slot: Slot, start: int, stop: int) -> Tensor:
        views.append(slot)
        return part(slot, start, stop)

    monkeypatch.setattr(Planner, "plan", noted)
    monkeypatch.setattr(Slot, "part", viewed)
    return plans, views


@pytest.mark.parametrize("codec", ["dynamiq", "qsgd", "bf16"])
def test_what_is_the_same_in_every_round_is_made_once(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, (plans, views) = Ranks("ring"), planned(monkeypatch)
    first = ranks.mean(codec, 4096)
    assert plans
    made = len(plans), len(views)
    for step in range(1, 4):
        ranks.mean(codec, 4096, step)
    extra = len(plans) - made[0]
    assert extra <= made[0], "a leaf's memory is taken in the first round, which moves it there and then only"
    made = len(plans), len(views)
    again = ranks.mean(codec, 4096)
    assert (len(plans), len(views)) == made
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_plans_follow_memory_that_has_moved() -> None:
    ranks = Ranks("butterfly")
    sizes = (100, 9000, 100, 20000, 9000, 100)
    for numel in sizes:
        for codec in ("fp32", "qsgd", "dynamiq"):
            found = ranks.mean(codec, numel)
            expected = Ranks("butterfly").mean(codec, numel)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), (codec, numel)


CODECS = (
    "fp32",
    "bf16",
    "dynamiq",
    "mxfp8",
    "thc",
    "tfp",
    "qsgd",
    "terngrad",
    "linear",
    "omnireduce",
    "randomk",
)


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_are_those_of_the_messages(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of metadata, which most of these codecs have."""
    checked, prepare = list[Hops](), Execution._prepare

    def check(execution: Execution, scatter_only: bool) -> RoutePlan:
        hops, num_chunks = execution._hops, execution._schedule.num_chunks
        if (offsets := hops.message_offsets()) is not None:
            checked.append(hops)
            for workers in range(1, SIZE + 1):
                for start in range(num_chunks):
                    for stop in range(start + 1, num_chunks + 1):
                        expected = hops.message_bytes(range(start, stop), workers)
                        assert offsets[stop] - offsets[start] == expected
            assert offsets[0] == 0
        return prepare(execution, scatter_only)

    monkeypatch.setattr(Execution, "_prepare", check)
    Ranks("ring").mean(codec, 3001)
    assert checked


def test_given_memory_is_cut_into_every_buffer() -> None:
    chance = random.Random(0)
    room = torch.arange(40, dtype=torch.uint8)
    for _ in range(300):
        count = chance.randrange(1, 12)
        places = {tuple(sorted(chance.choices(range(41), k=2))) for _ in range(count)}
        buffers = [(at, start, stop) for at, (start, stop) in enumerate(sorted(places)) if start < stop]
        chance.shuffle(buffers)
        given = cut(buffers, 40)
        assert sum(given.sizes) == 40
        assert_filled(buffers, given, room)


def assert_filled(buffers: Sequence[tuple[int, int, int]], given: Any, room: Tensor) -> None:
    plan = RoutePlan(route=None, moves=(), buffers=[None] * 20, given=given)  # type: ignore[arg-type]
    found = plan.begin(room)
    for at, start, stop in buffers:
        assert torch.equal(found[at], room[start:stop])
        assert found[at].data_ptr() == room.data_ptr() + start
    assert sum(each is not None for each in found) == len(buffers)
    assert plan.begin(None) == [None] * 20
