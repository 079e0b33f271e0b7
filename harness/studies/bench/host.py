"""The host's work for one bucket: PyTorch's operations, kernel calls and CPU time of one rank.

All ranks run in this process, connected by mailboxes. Rank 0 is observed between messages; the transport's
work (here copies, elsewhere sends and receives) and the time of kernels do not count as the host's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.native.call import Call
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.channel import CollectiveTask, Handle, TaggedMessage, Traffic
from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local
from gradwire.harness.studies.bench.measure import intra_op_threads

WARM_UP = 3
"""Rounds before the observed ones, in which a codec creates its persistent tensors."""

FEWEST, MOST = 3, 25
"""The smallest and the largest number of rounds for a median; as many as fit into the given time are run."""

TOPOLOGY = "butterfly"


@dataclass(frozen=True)
class HostRow:
    """One codec's bucket among `workers` on a butterfly.

    `operations` counts those of PyTorch that a dispatch mode sees in a round, `calls` those of kernels.
    `host_s` is the CPU time of a round without kernels, `kernels_s` that of kernels; each is a median over
    its own rounds.
    """

    codec: str
    implementation: str
    workers: int
    coordinates: int
    operations: int
    calls: int
    host_s: float
    kernels_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts PyTorch's operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Watch:
    """Observes the work of one rank between messages. Observation slows it down, so each instance either
    counts operations, or times kernels, or measures the total time."""

    def __init__(self, *, counts: bool = False, kernels: bool = False) -> None:
        self._operations = _Operations() if counts else None
        self._sees_kernels = counts or kernels
        self._since = 0.0
        self.calls, self.total_s, self.kernels_s = 0, 0.0, 0.0

    @property
    def operations(self) -> Mapping[str, int]:
        """The number of calls of each of PyTorch's operations."""
        return {} if self._operations is None else self._operations.names

    def resume(self) -> None:
        if self._operations is not None:
            self._operations.__enter__()  # type: ignore[no-untyped-call]
        self._since = time.thread_time()

    def pause(self) -> None:
        self.total_s += time.thread_time() - self._since
        if self._operations is not None:
            self._operations.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Counts and times kernel calls within the block, if this instance does that."""
        if not self._sees_kernels:
            yield
            return
        run_call = Call.run

        def watched(call: Call) -> None:
            start = time.thread_time()
            run_call(call)
            self.kernels_s += time.thread_time() - start
            self.calls += 1

        Call.run = watched  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Call.run = run_call  # type: ignore[method-assign]


class _WatchedOperation:
    """A rank's coroutine that is observed while it runs."""

    def __init__(self, coroutine: Coroutine[Handle, None, Tensor], watch: Watch) -> None:
        self._coroutine, self._watch = coroutine, watch

    def __await__(self) -> Generator[Handle, None, Tensor]:
        while True:
            with self._watch.kernels():
                self._watch.resume()
                try:
                    handle = self._coroutine.send(None)
                except StopIteration as end:
                    result: Tensor = end.value
                    return result
                finally:
                    self._watch.pause()
            yield handle


class _WatchedChannel(LocalChannel):
    """A channel whose copies are not observed."""

    watch: Watch

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        self.watch.pause()
        handle = super()._post(sends, receives, phase)
        self.watch.resume()
        return handle


class Buckets:
    """Rounds of one bucket on every rank, with rank 0's observed."""

    def __init__(self, codec: str, workers: int, numel: int, seed: int, device: torch.device) -> None:
        self.codec, self.workers, self.numel = codec, workers, numel
        self._fabric = Fabric(partial(make_schedule, TOPOLOGY))
        self._codecs = [make_codec(name=codec) for _ in range(workers)]
        self._arenas = [Arena(device) for _ in range(workers)]
        self._traffic = [Traffic() for _ in range(workers)]
        generator = torch.Generator().manual_seed(seed)
        self._x = [torch.randn(numel, generator=generator).to(device) for _ in range(workers)]
        self._layout, self._seed, self._step = Layout.flat(numel, device=device), seed, 0

    def round(self, watch: Watch) -> Tensor:
        """Runs one round; returns rank 0's mean."""
        mailboxes, results = Mailboxes(), dict[int, Tensor]()
        tasks = [
            self._task(rank, mailboxes, watch if rank == 0 else None, results)
            for rank in range(len(self._codecs))
        ]
        run_local(tasks, mailboxes, time.perf_counter)
        for codec in self._codecs:
            codec.end_step(self._step)
        self._step += 1
        return results[0]

    def _task(
        self, rank: int, mailboxes: Mailboxes, watch: Watch | None, results: dict[int, Tensor]
    ) -> CollectiveTask:
        kind = LocalChannel if watch is None else _WatchedChannel
        channel = kind(rank, len(self._codecs), self._step, self._traffic[rank], mailboxes)
        if watch is not None:
            assert isinstance(channel, _WatchedChannel)
            channel.watch = watch
        coroutine = self._synchronize(self._codecs[rank], rank, channel, watch)

        def fail(error: BaseException) -> None:
            """Does nothing, because `run_local` raises the error."""

        return CollectiveTask(coroutine, partial(results.__setitem__, rank), fail)

    async def _synchronize(
        self, codec: Codec, rank: int, channel: LocalChannel, watch: Watch | None
    ) -> Tensor:
        self._arenas[rank].begin_round()
        this_round = Round(self._step, self._layout, rank, len(self._codecs), self._seed)

        async def run() -> Tensor:
            comm = ScheduledCollectives(channel, self._fabric, self._arenas[rank])
            return await codec.synchronize(self._x[rank], this_round, comm)

        return await (run() if watch is None else _WatchedOperation(run(), watch))


def refusal(codec: str, workers: int, numel: int, device: torch.device) -> str | None:
    """None, or the reason why a bucket of this codec cannot be observed. Raises ValueError for an unknown
    codec."""
    made = make_codec(name=codec)
    if made.traits.uses_backend or made.traits.needs_matrices:
        return f"codec={codec} does not work by messages about one vector; leave it out"
    return made.supports_stages(1) or made.supports(TOPOLOGY, workers, Layout.flat(numel, device=device))


def host_row(buckets: Buckets, *, kernels: str, seconds: float) -> HostRow:
    """The host's work for a bucket of float32 coordinates with these kernels, on one thread."""
    with using_kernels(kernels), intra_op_threads(1):
        for _ in range(WARM_UP):
            buckets.round(Watch())
        counted = Watch(counts=True)
        buckets.round(counted)
        timed, kernel_rounds = list[Watch](), list[Watch]()
        end = time.perf_counter() + seconds
        while len(timed) < FEWEST or (time.perf_counter() < end and len(timed) < MOST):
            timed.append(Watch())
            kernel_rounds.append(Watch(kernels=True))
            for watch in (timed[-1], kernel_rounds[-1]):
                buckets.round(watch)
    kernels_s = median(watch.kernels_s for watch in kernel_rounds)
    return HostRow(
        codec=buckets.codec,
        implementation=kernels,
        workers=buckets.workers,
        coordinates=buckets.numel,
        operations=sum(counted.operations.values()),
        calls=counted.calls,
        host_s=max(0.0, median(watch.total_s for watch in timed) - kernels_s),
        kernels_s=kernels_s,
    )
