"""One rank per process: collectives run on the process's communication threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.codecs.interface import Observation
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives, all_gathering
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.pacer import PacedLink, Pacer
from gradwire.harness.comm.transport.process import (
    MessageGroup,
    ProcessChannel,
    communicators,
    private_group,
)
from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE, HostCopies, Staging
from gradwire.harness.comm.transport.thread import CommunicationThread, Task, Turn
from gradwire.harness.comm.world.interface import (
    Collective,
    CollectivePlace,
    RankProgram,
    Result,
    StepEnd,
    Submission,
)
from gradwire.harness.comm.world.process_captured import CapturedBuckets, CapturedPlace, CapturedWork
from gradwire.harness.comm.world.process_step import ProcessStep
from gradwire.harness.comm.world.started import ProcessStarted, StartedCollectives
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.measure.stopwatch import make_stopwatch
from gradwire.harness.timing.trace.log import LaneLog, LaneNotes, StepNotes, TaskLog
from gradwire.harness.timing.trace.observations import observations
from gradwire.harness.timing.trace.step import MEASURE, TRANSFERS, StepTrace, Urgency

if TYPE_CHECKING:
    from gradwire.harness.timing.simulate.clock import SimulatedClock

Line = tuple[str, int]
"""A direction (`to` or `from`) and the other rank."""


@dataclass(frozen=True)
class Connections:
    """The connections of a process with the other ranks of `group`, by default all.

    A rank that is silent for `timeout_s` is lost; connecting takes no longer than `connect_s`, by default as
    long. `link` paces what is sent between CPUs. Up to `in_flight` collectives run at once (on NCCL as many
    as there are `communicators`), without `overlap` only while the rank waits. With `host_copies`, ranks that
    share a device send through host memory, on gloo.
    """

    group: dist.ProcessGroup | None = None
    link: PacedLink | None = None
    timeout_s: float = 120.0
    connect_s: float | None = None
    in_flight: int = 2
    overlap: bool = True
    host_copies: HostCopies | None = None


class _ThreadPlace(NamedTuple):
    """The thread that a collective runs on, its number among those of the thread's group, and the name of its
    message buffers."""

    thread: CommunicationThread
    number: int
    buffers: str


class ProcessWorld:
    """This process's rank among those it is connected with, with process groups and threads of its own.

    `spans` records what happened when, `trace` every message. Both grow until they are taken out, which is to
    be done step by step. `captured` keeps captured rounds: with spans, their work is timed in the steps that
    `CapturedWork` chooses.
    """

    def __init__(
        self,
        fabric: Fabric,
        device: torch.device,
        connections: Connections = Connections(),
        *,
        spans: bool = False,
        trace: bool = False,
        captured: CapturedRounds | None = None,
    ) -> None:
        group, timeout_s, connect_s = connections.group, connections.timeout_s, connections.connect_s
        rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.rank, self.ranks, self.device = rank, (rank,), device
        self.traffic = {rank: Traffic(fabric.node(rank, self.size))}
        self._counted = self.traffic[rank].part()
        self.recorders = {rank: Recorder(make_stopwatch(device), enabled=spans)}
        self.clock: SimulatedClock | None = None
        self.measured: StepTrace = {}
        self._fabric, timeout = fabric, timedelta(seconds=timeout_s)
        self._on_gpu, copies = device.type == "cuda", connections.host_copies
        self._on_nccl = self._on_gpu and copies is None
        in_flight = connections.in_flight
        num_threads = communicators(in_flight) if self._on_nccl else in_flight
        backend, num_groups = ("nccl", num_threads) if self._on_nccl else ("gloo", 1)
        connect = timedelta(seconds=min(timeout_s, connect_s or timeout_s))
        groups = [private_group(group, backend, timeout, connect=connect) for _ in range(num_groups)]
        self._pacer = self._make_pacer(connections, timeout_s)
        self._staging = None if copies is None else Staging(copies)
        carried = self._on_nccl, self._pacer, self._staging
        self._groups = [MessageGroup(made, timeout, *carried) for made in groups]
        self._turn = Turn()
        recorder = self.recorders[rank]
        self._threads = [CommunicationThread(recorder, device, self._turn) for _ in range(num_threads)]
        self._control = self._threads[0]
        if not self._on_nccl:  # what a step leaves in flight does not hold up what is run between steps
            self._control = CommunicationThread(recorder, device, self._turn)
        self._lines: dict[Line, tuple[CommunicationThread, Iterator[int]]] = {}
        self._numbers, self._arenas = count(), dict[str, Arena]()  # twice a number, and odd ones on lines
        self.started, self._overlap = StartedCollectives(device), connections.overlap
        self._traces, self._logs, self._lane = trace, list[TaskLog](), LaneLog()
        self._buckets = 0  # of this step so far
        self._captured: CapturedWork | None = None
        if captured is not None:
            captured.watch(rank, timeout_s)
            if copies is not None:
                captured.refuse(REFUSES_CAPTURE)
            self._captured = CapturedWork(captured, recorder, spans=spans, traces=trace)
        self.closed = False

    @property
    def error(self) -> BaseException | None:
        """The first failure on a communication thread, or None."""
        return next((thread.error for thread in self._all_threads() if thread.error is not None), None)

    def _all_threads(self) -> set[CommunicationThread]:
        return {*self._threads, self._control, *(thread for thread, _ in self._lines.values())}

    def begin_step(self, now_s: float) -> None:
        """Does nothing, because real links follow real time."""

    def run_step(self, step: int, programs: Mapping[int, RankProgram[Result]]) -> StepEnd[Result]:
        rank_step = self.open_step(step)
        return StepEnd({self.rank: rank_step.drive(programs[self.rank](rank_step))}, None)

    def open_step(self, step: int = 0) -> ProcessStep:
        """Begins a step without a program, for a script that calls the returned step's methods itself."""
        self._lane, self._logs, self._buckets = LaneLog(self._traces), [], 0
        if self._captured is not None:
            self._captured.begin_step(step)
        return ProcessStep(self, step, self._lane, self._overlap)

    def submit(self, collective: Collective[Result], submission: Submission, future: Any) -> None:
        """Starts a step's collective on a communication thread; `future` gets its result or exception.

        `future` has `set_result` and `set_exception`, as torch's and concurrent's futures do. After the first
        failure on any thread all later collectives fail with it. If the world keeps traces, it logs the
        synchronization.
        """
        number, in_step, arena = 2 * next(self._numbers), self._buckets, submission.buffers
        index = 0 if submission.in_turn else in_step % len(self._threads)
        thread = self._threads[index]
        self._buckets += 1
        captured = None if self._captured is None else self._captured.due(collective, arena, index)
        log = None
        if captured is None or captured.is_marked:
            log = self._log(in_step, submission.coordinates, submission.in_turn, submission.urgency)
        make = partial(self._task, collective, _ThreadPlace(thread, number, arena), future, log)
        if captured is None:
            self._give(thread, future, make)
            return
        place = CapturedPlace(self._group_of(thread), number, index, self._fabric, self.device)
        task = captured.task(place, make, future, self._counted, log)
        self._give(thread, future, lambda: task)

    def transfer(
        self,
        collective: Collective[Result],
        line: Line,
        coordinates: int,
        urgency: Urgency,
        future: Any,
    ) -> None:
        """Starts to send data to a rank, or to receive it; `line` gives the direction and the rank. Otherwise
        like `submit`.

        Each line has its own thread, so that no transfer waits for another line's.
        """
        if self._on_nccl:
            raise ValueError(
                "ranks on GPUs can only send and receive inside collectives, because NCCL matches messages "
                "by order: start one on all ranks and call comm.send_and_receive there"
            )
        if line not in self._lines:
            thread = CommunicationThread(self.recorders[self.rank], self.device, self._turn)
            self._lines[line] = thread, count()
        thread, numbers = self._lines[line]
        log = self._log(TRANSFERS, coordinates, False, urgency)
        place = _ThreadPlace(thread, 2 * next(numbers) + 1, str(line))
        self._give(thread, future, partial(self._task, collective, place, future, log))

    def _give(self, thread: CommunicationThread, future: Any, make: Callable[[], Task]) -> None:
        """Has the thread run the task that `make` returns; if a collective has failed, `future` fails with
        the same error."""
        if self.closed:
            raise RuntimeError("these ranks' connections have been closed")
        if self.error is not None:  # the other ranks will not take part any more
            future.set_exception(self.error)
            return
        thread.submit(make())

    def _task(
        self,
        collective: Collective[Any],
        place: _ThreadPlace,
        future: Any,
        log: TaskLog | None = None,
        *,
        recorded: bool = True,
    ) -> CollectiveTask:
        buffers = self._arenas.setdefault(place.buffers, Arena(self.device))
        buffers.begin_round()
        group, timestamp = self._group_of(place.thread), self.recorders[self.rank].timestamp
        channel = ProcessChannel(group, place.number, self._counted, timestamp, log)
        coroutine = collective(ScheduledCollectives(channel, self._fabric, buffers))
        return CollectiveTask(coroutine, future.set_result, future.set_exception, log, recorded=recorded)

    def _group_of(self, thread: CommunicationThread) -> MessageGroup:
        return self._groups[self._threads.index(thread)] if self._on_nccl else self._groups[0]

    def _log(self, bucket: int, coordinates: int, in_turn: bool, urgency: Urgency) -> TaskLog | None:
        if not self._traces:
            return None
        timestamp = self.recorders[self.rank].timestamp
        self._logs.append(
            TaskLog(timestamp, bucket, coordinates, timestamp(), in_turn=in_turn, urgency=urgency)
        )
        return self._logs[-1]

    def resumed(self, rank: int, place: CollectivePlace, result: Result) -> ProcessStarted[Result]:
        started: ProcessStarted[Result] = ProcessStarted(place, self.started)
        self.started.begin()
        started.set_result(result)
        self.started.add(started)
        return started

    def windows(self) -> dict[int, tuple[float, float]]:
        return {}

    def settle(self) -> None:
        self.started.settle()
        with self._turn.taken(None):  # the thread that has set the last result is about to record its work
            pass
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        if self._captured is not None:
            self._captured.rounds.read_times(wait=True)

    def agree_on_timing(self) -> None:
        if self._captured is not None and self._captured.cost_is_open:
            shares = self.gather({self.rank: [self._captured.own_share()]})
            self._captured.cost.agree([share for (share,) in shares])

    @property
    def captures(self) -> bool:
        """True if rounds of this process may still be captured."""
        return self._captured is not None and self._captured.rounds.is_open

    def captured_buckets(self) -> CapturedBuckets | None:
        return None if self._captured is None else self._captured.report()

    def take_traffic(self) -> dict[int, Traffic]:
        taken, self._counted = self._counted, self.traffic[self.rank].part()
        return {self.rank: taken}

    def observations(self) -> dict[int, tuple[Observation, ...]]:
        if not self._traces:
            return {}
        if self._captured is not None:
            self._captured.rounds.read_times(wait=True)
        # Timestamps of collectives still in flight are missing, so only their start is reported.
        ended = [log if log.has_ended else log.begun() for log in self._logs]
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        seconds = self.recorders[self.rank].seconds
        trace = LaneNotes(self._lane, ended).resolve(0.0, 0.0, seconds)
        return {self.rank: observations(trace)}

    def take_notes(self) -> dict[int, StepNotes]:
        taken, self._logs = self._logs, []
        if self._captured is not None:  # by now the device has usually finished the step
            self._captured.rounds.read_times(wait=False)
        return {self.rank: LaneNotes(self._lane, taken)} if self._traces else {}

    def run(self, collectives: Mapping[int, Collective[Result]]) -> dict[int, Result]:
        future: Future[Result] = Future()
        place = _ThreadPlace(self._control, 2 * next(self._numbers), "run")
        make = partial(self._task, collectives[self.rank], place, future, recorded=False)
        self._give(place.thread, future, make)
        result = {self.rank: future.result()}
        if self._on_gpu:  # the result was made on the communication stream
            torch.cuda.synchronize(self.device)
        return result

    def _make_pacer(self, connections: Connections, timeout_s: float) -> Pacer | None:
        link = connections.link
        if link is None or link.bytes_per_second == float("inf"):
            return None
        if self._on_gpu or connections.host_copies is not None:
            raise ValueError("links can be paced between CPU workers only; leave the rate out on GPUs")
        return Pacer(link, timeout_s)

    def forget_buffers(self) -> None:
        """Frees the message buffers, for example those of an earlier bucket layout, and discards captures."""
        if self._captured is not None:
            self._captured.rounds.forget()
        self._arenas.clear()

    def forget(self) -> None:
        self.forget_buffers()
        self.traffic[self.rank].clear()
        self.recorders[self.rank].drain()
        self.recorders[self.rank].take_gap()
        self.take_notes()
        self.started.forget()

    def gather(self, rows: Mapping[int, Sequence[float]]) -> list[list[float]]:
        own = torch.tensor(list(rows[self.rank]), dtype=torch.float64, device=self.device)
        gathered = self.run({self.rank: all_gathering(own, MEASURE)})
        return [row.tolist() for row in gathered[self.rank]]

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        self.started.check_taken()
        return {}

    def load_state_dict(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        """Does nothing, because nothing is in flight when a process begins."""

    def close(self) -> None:
        """Ends the threads and leaves the group. Does nothing a second time, or if the script has already
        destroyed all process groups."""
        if self.closed:
            return
        self.closed = True
        if self._pacer is not None:  # first: the messages that it still holds back will not be received
            self._pacer.close()
        if self._staging is not None and self.error is not None:  # nor what waits for its copy
            self._staging.drop()
        for thread in self._all_threads():
            thread.close()
        if self._staging is not None:
            self._staging.close()
        if self._captured is not None:
            self._captured.rounds.close(failed=self.error is not None)
        self._arenas.clear()
        if dist.is_initialized():
            for group in self._groups:
                with contextlib.suppress(ValueError):  # the group is of an earlier initialization
                    dist.destroy_process_group(group.group)
