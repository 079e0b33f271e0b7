"""All ranks in this process: a virtual cluster of any size on one machine, under a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import torch

from gradwire.harness.collective.arena import Arena
from gradwire.harness.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.measure.recorder import Recorder
from gradwire.harness.network.link import Link
from gradwire.harness.transport.channel import Traffic
from gradwire.harness.transport.local import LocalChannel, LocalRank, Mailboxes, run_local
from gradwire.harness.transport.task import Task
from gradwire.harness.world.interface import Collective, Result

TimedCollective = tuple[float, str, Collective[Any]]
"""(ready time in simulated seconds, arena name, what to run)"""


class VirtualWorld:
    """`size` ranks, each with its own simulated link, clock and counters."""

    def __init__(
        self,
        size: int,
        fabric: Fabric,
        device: torch.device,
        *,
        make_link: Callable[[], Link] | None = None,
        in_flight: int = 2,
        spans: bool = True,
        debug: bool = False,
    ) -> None:
        self.size, self.ranks, self.device = size, tuple(range(size)), device
        self.traffic = {rank: Traffic() for rank in self.ranks}
        self.recorders = {rank: Recorder(enabled=spans) for rank in self.ranks}
        self._fabric, self._in_flight, self._debug = fabric, in_flight, debug
        self._make_link = make_link or (lambda: Link(float("inf")))
        self._numbers, self._arenas = count(), dict[tuple[str, int], Arena]()
        self.end_s: dict[int, float] = {}
        """When each rank's last `run_step` ended, in simulated seconds."""

    def synchronize(self) -> None:
        """Wait for the device, so that wall stamps measure what was launched."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run_step(self, collectives: Mapping[int, Sequence[TimedCollective]]) -> dict[int, list[Any]]:
        """Run a step's collectives on all ranks from simulated time 0 on, with overlap.

        Every rank gives the same number of collectives, in the same order. Spans are recorded on
        each rank's simulated clock.
        """
        mailboxes = Mailboxes(self._debug)
        states = [
            LocalRank(rank, self._make_link(), self.traffic[rank], self.recorders[rank], self.synchronize)
            for rank in self.ranks
        ]
        numbers = [next(self._numbers) for _ in collectives[0]]
        futures: list[list[Future[Any]]] = [[Future() for _ in numbers] for _ in self.ranks]
        tasks = [
            [
                (ready, self._task(state, number, mailboxes, arena, collective, future))
                for number, future, (ready, arena, collective) in zip(
                    numbers, futures[state.rank], collectives[state.rank], strict=True
                )
            ]
            for state in states
        ]
        run_local(states, tasks, self._in_flight, mailboxes)
        self.end_s = {state.rank: state.now for state in states}
        return {rank: [future.result(0) for future in futures[rank]] for rank in self.ranks}

    def _task(
        self,
        state: LocalRank,
        number: int,
        mailboxes: Mailboxes,
        arena: str,
        collective: Collective[Any],
        future: Future[Any],
    ) -> Task:
        buffers = self._arenas.setdefault((arena, state.rank), Arena(self.device))
        buffers.begin_round()
        channel = LocalChannel(state, self.size, number, mailboxes)
        coroutine = collective(ScheduledCollectives(channel, self._fabric, buffers))
        return Task(coroutine, future.set_result, future.set_exception)

    def run(self, collectives: Mapping[int, Collective[Result]]) -> dict[int, Result]:
        suspended = {rank: recorder.suspend() for rank, recorder in self.recorders.items()}
        try:
            results = self.run_step({rank: [(0.0, "run", collectives[rank])] for rank in self.ranks})
        finally:
            for rank, recorder in self.recorders.items():
                recorder.resume(suspended[rank])
        return {rank: result[0] for rank, result in results.items()}

    def forget_buffers(self) -> None:
        self._arenas.clear()

    def gather(self, rows: Mapping[int, Sequence[float]]) -> list[list[float]]:
        return [list(map(float, rows[rank])) for rank in self.ranks]

    def close(self) -> None:
        self.forget_buffers()
