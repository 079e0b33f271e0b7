"""Ranks on one device of one process, each with the communication threads that `ProcessWorld` has on GPUs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from stream_channel import Communicator, Delay, StreamChannel, current, stream_on
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.thread import CommunicationThread, Turn
from gradwire.harness.comm.world.interface import Collective, CollectivePlace
from gradwire.harness.comm.world.started import ProcessStarted, StartedCollectives
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.measure.stopwatch import make_stopwatch

IN_FLIGHT = 2
"""Buckets of a rank at a time, each on a thread and a communicator of its own."""


class RankOnDevice:
    """A stand-in for `ProcessWorld` on one rank: threads that take turns, an arena for each bucket, counted
    bytes.

    On a GPU `stream` is where its inputs are made and its results are used.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        fabric: Fabric,
        device: torch.device,
        communicators: Sequence[Communicator],
        timeout_s: float,
    ) -> None:
        self.rank, self.stream, self.traffic = rank, stream_on(device), Traffic()
        self._size, self._fabric, self._device, self._timeout_s = size, fabric, device, timeout_s
        self._communicators = communicators
        self._recorder = Recorder(make_stopwatch(device), enabled=False)
        turn = Turn()
        self._threads = [CommunicationThread(self._recorder, device, turn) for _ in communicators]
        self._numbers, self._arenas, self._started = count(), dict[str, Arena](), StartedCollectives(device)

    def start(self, collective: Collective[Tensor], arena: str) -> ProcessStarted[Tensor]:
        """Starts a collective on the next thread, as `ProcessWorld.submit` does; it sees what the current
        stream has done so far."""
        number = next(self._numbers)
        which = number % len(self._threads)
        buffers = self._arenas.setdefault(arena, Arena(self._device))
        buffers.begin_round()
        channel = StreamChannel(
            self.rank,
            self._size,
            2 * number,
            self.traffic,
            self._communicators[which],
            self._recorder.timestamp,
        )
        coroutine = collective(ScheduledCollectives(channel, self._fabric, buffers))
        started: ProcessStarted[Tensor] = ProcessStarted(CollectivePlace(0, number), self._started)
        self._started.begin()
        self._threads[which].submit(CollectiveTask(coroutine, started.set_result, started.set_exception))
        return started

    def result(self, started: ProcessStarted[Tensor]) -> Tensor:
        """The result, for which the current stream waits. Raises the first failure of any collective, and
        TimeoutError where none has ended in time."""
        collectives = self._started
        with collectives.changed:
            if not collectives.changed.wait_for(
                lambda: started.future.done() or collectives.error is not None, self._timeout_s
            ):
                raise TimeoutError(f"rank {self.rank} waits for collective {started.place.number}")
        return started.result()

    def close(self) -> None:
        """Ends the threads, of which every wait for a peer has a timeout."""
        for thread in self._threads:
            thread.close()


@contextmanager
def ranks_on(
    device: torch.device, size: int, fabric: Fabric, delay: Delay, timeout_s: float = 60.0
) -> Iterator[list[RankOnDevice]]:
    """`size` ranks on a device; messages are copied after `delay`."""
    communicators = [Communicator(size, device, timeout_s, delay) for _ in range(IN_FLIGHT)]
    ranks = [RankOnDevice(rank, size, fabric, device, communicators, 4 * timeout_s) for rank in range(size)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


@dataclass(frozen=True)
class Rounds:
    """Steps of some buckets of a codec on `size` ranks. With an odd number of buckets each is on another
    thread in the next step, and so is its arena."""

    codec: str
    topology: str
    size: int
    lengths: tuple[int, ...] = (20_000, 3_001, 9_000)
    steps: int = 3
    seed: int = 7

    @property
    def fabric(self) -> Fabric:
        return Fabric(partial(make_schedule, self.topology))

    def layouts(self, device: torch.device) -> list[Layout]:
        return [Layout.flat(n, f"bucket {i}", device) for i, n in enumerate(self.lengths)]

    def collective(
        self, codec: Codec, x: Tensor, step: int, layout: Layout, rank: int, bucket: int
    ) -> Collective[Tensor]:
        this_round = Round(step, layout, rank, self.size, self.seed, bucket)
        return synchronization(codec, x, this_round, check_hashes=False)

    def gradients(self) -> list[list[list[Tensor]]]:
        """On the CPU, by step, rank and bucket."""
        generator = torch.Generator().manual_seed(self.seed)

        def bucket(numel: int) -> Tensor:
            x = torch.randn(numel, generator=generator)
            return x * torch.randn(numel, generator=generator).exp()

        return [
            [[bucket(numel) for numel in self.lengths] for _ in range(self.size)] for _ in range(self.steps)
        ]


@dataclass(frozen=True)
class Done:
    """The means on the CPU, by step, rank and bucket, and the bytes that each rank has sent."""

    means: list[list[list[Tensor]]]
    sent: list[dict[str, int]]


def virtually(rounds: Rounds, device: torch.device | None = None) -> Done:
    """Returns what is expected: one bucket after another, all ranks on one stream, by default on the CPU."""
    device = device or torch.device("cpu")
    world = VirtualWorld(rounds.size, rounds.fabric, device, debug=True)
    codecs = [make_codec(rounds.codec) for _ in range(rounds.size)]
    layouts, means = rounds.layouts(device), []
    for step, inputs in enumerate(rounds.gradients()):
        buckets = []
        for index, layout in enumerate(layouts):
            collectives = {
                rank: rounds.collective(codec, inputs[rank][index].to(device), step, layout, rank, index)
                for rank, codec in enumerate(codecs)
            }
            found = world.run(collectives)
            buckets.append([found[rank].to("cpu", copy=True) for rank in range(rounds.size)])
        for codec in codecs:
            codec.end_step(step)
        means.append([list(own) for own in zip(*buckets, strict=True)])
    return Done(means, [dict(world.traffic[rank].by_phase) for rank in range(rounds.size)])


def hold_up(device: torch.device, milliseconds: float) -> None:
    """Holds up the current stream, or this thread where there are no streams."""
    if device.type == "cuda":
        cycles = int(milliseconds * 2e6)  # of a clock of about 2 GHz
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
    else:
        time.sleep(milliseconds / 1e3)


def on_device(rounds: Rounds, device: torch.device, longest_ms: float) -> Done:
    """Does the same on a device, by threads and streams that are held up at random.

    That is up to `longest_ms` before a bucket's inputs are there, and a tenth of it before a message is
    copied.
    """
    chance = random.Random(rounds.seed)

    def delay(longest: float = longest_ms / 10) -> None:
        hold_up(device, chance.random() * longest)

    gradients = [[[x.to(device) for x in own] for own in step] for step in rounds.gradients()]
    inputs = [[torch.zeros_like(x) for x in own] for own in gradients[0]]  # kept, as a model's buckets are
    codecs, layouts = [make_codec(rounds.codec) for _ in range(rounds.size)], rounds.layouts(device)
    means = list[list[list[Tensor]]]()
    with ranks_on(device, rounds.size, rounds.fabric, delay) as ranks:
        _finish(device)
        for step, ready in enumerate(gradients):
            started: list[list[ProcessStarted[Tensor]]] = [[] for _ in ranks]
            for own, rank in enumerate(ranks):
                with current(rank.stream):
                    for index, layout in enumerate(layouts):
                        delay(longest_ms)
                        x = inputs[own][index].copy_(ready[own][index])
                        collective = rounds.collective(codecs[own], x, step, layout, own, index)
                        started[own].append(rank.start(collective, str(layout.uid)))
            means.append([])
            for own, rank in enumerate(ranks):
                with current(rank.stream):
                    means[-1].append([rank.result(each).clone() for each in started[own]])
                    codecs[own].end_step(step)
        _finish(device)
        sent = [dict(rank.traffic.by_phase) for rank in ranks]
    return Done([[[mean.cpu() for mean in own] for own in step] for step in means], sent)


def _finish(device: torch.device) -> None:
    """Waits for all that was launched, where the host does not do it itself."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def assert_same(found: Done, expected: Done) -> None:
    """Asserts that the bytes are equal, those of the means and the numbers of those sent."""
    assert found.sent == expected.sent
    for step, (own, wanted) in enumerate(zip(found.means, expected.means, strict=True)):
        for rank, (buckets, others) in enumerate(zip(own, wanted, strict=True)):
            for index, (a, b) in enumerate(zip(buckets, others, strict=True)):
                differing = int((a.view(torch.int32) != b.view(torch.int32)).sum())
                assert differing == 0, f"step {step}, rank {rank}, bucket {index}: {differing} of {a.numel()}"
