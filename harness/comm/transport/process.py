"""Messages between real processes: torch.distributed point-to-point, on gloo or NCCL, or through host memory.

gloo matches messages by tag, and is twice as fast on a butterfly if receives are posted before sends: the
receiver's ready message otherwise queues behind this rank's bulk data. NCCL ignores tags and matches by
order, so there every hop is one grouped batch, and each collective in flight has a communicator. Ranks that
share a device have gloo carry their messages through host memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.harness.comm.settings import MOST_COMMUNICATORS
from gradwire.harness.comm.transport.channel import Channel, Handle, TaggedMessage, Traffic
from gradwire.harness.comm.transport.pacer import Pacer
from gradwire.harness.comm.transport.staging import Staging, Waitable, wait_for
from gradwire.harness.runtime.threads import NoAnswerError, within
from gradwire.harness.timing.trace.log import TaskLog
from gradwire.harness.timing.trace.step import BACKEND, MEASURE

Result = TypeVar("Result")

CPU = torch.device("cpu")

SLACK_S = 1.0
"""Seconds that connecting may take beyond its limit, for gloo, which enforces the limit itself while the
store answers."""


def private_group(
    group: dist.ProcessGroup | None, backend: str, timeout: timedelta, *, connect: timedelta
) -> dist.ProcessGroup:
    """Makes a process group of the same ranks for this package's messages alone; only its members take part.

    gloo connects rank by rank, within `connect`. A rank that returned early and left would cut off ranks that
    are still connecting, so all ranks wait for one another. NCCL connects with its first message.
    """
    members = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
    part = len(members) < dist.get_world_size()
    make = partial(dist.new_group, members, backend=backend, use_local_synchronization=part)

    def connected() -> dist.ProcessGroup:
        found: dist.ProcessGroup = make(timeout=connect)
        dist.barrier(found)
        return found

    with connecting(connect):
        if backend != "gloo":
            made: dist.ProcessGroup = make(timeout=timeout)
            return made
        try:
            made = within(connect.total_seconds() + SLACK_S, connected)
        except NoAnswerError as error:  # the store that ranks find each other by does not answer
            raise RuntimeError(f"timed out: {error}") from None
    if timeout != connect:
        made._get_backend(CPU)._set_default_timeout(timeout)
    return made


class NotConnectedError(RuntimeError):
    """Ranks could not connect with each other, and the rank at fault is unknown."""

    missed = "not connected within cluster.timeout_s"

    def __init__(self, timeout: timedelta, cause: BaseException) -> None:
        reason = _reason(cause)
        self.waited = any(sign in reason.lower() for sign in _LATE + _DISCONNECTED)
        """True if another rank was late or has gone; else it may be this one's network."""
        late = any(sign in reason.lower() for sign in _LATE)
        what = f"within {timeout.total_seconds():g} s" if late else f": {reason}"
        super().__init__(f"not all ranks have connected{' ' * late}{what}")


_LATE = ("timeout", "timed out")
_DISCONNECTED = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket closed",
)
"""Words with which gloo, NCCL and the stores report a rank that has left or does not answer."""


@contextmanager
def connecting(timeout: timedelta) -> Iterator[None]:
    """Raises NotConnectedError for a failure in the block, in which all ranks connect with each other."""
    try:
        yield
    except RuntimeError as error:
        raise NotConnectedError(timeout, error) from error


def _reason(error: BaseException) -> str:
    """The first line of an error, without gloo's source location and advice."""
    first_line = next(iter(str(error).splitlines()), "no answer in time")
    return first_line.split("] ")[-1].split(". This is typically")[0]


def communicators(in_flight: int) -> int:
    """The number of communicators of a GPU for `in_flight` buckets in flight.

    It is 1 where all streams share a queue: a communicator's messages could then wait behind another's, and
    ranks start them in different orders, which would deadlock.
    """
    single = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    return 1 if single else min(in_flight, MOST_COMMUNICATORS)


class PeerError(RuntimeError):
    """Raised when a message from or to `peer` was lost or late."""

    def __init__(self, rank: int, peer: int, cause: BaseException) -> None:
        reason = _reason(cause)
        super().__init__(f"rank {rank} lost rank {peer}: {reason}")
        self.rank, self.peer = rank, peer
        self.is_late = isinstance(cause, TimeoutError) or "imed out" in reason
        """True if it did not come in time, rather than that the connection broke."""


class _Paced:
    """A send that is held back; `leave` waits until it has left, and returns its work."""

    def __init__(self, leave: Callable[[], dist.Work | None]) -> None:
        self._leave = leave

    def wait(self, timeout: timedelta | None = None) -> None:
        wait_for(self._leave(), timeout)


class ProcessHandle(Handle):
    """The works in flight, each with the peer of its message.

    `posted` is the timestamp of the moment they were posted. Without a `timeout` (CUDA) the stream
    waits, not the host.
    """

    def __init__(self, rank: int, timeout: timedelta | None, posted: object) -> None:
        self._rank, self._timeout, self.posted = rank, timeout, posted
        self._works: list[tuple[int, Waitable | None]] = []

    def add(self, peer: int, work: Waitable | None) -> None:
        self._works.append((peer, work))

    def block(self) -> None:
        """Waits for every message (gloo), or makes the current stream wait for it (NCCL).

        Raises PeerError naming the peer when one is lost or late.
        """
        for peer, work in self._works:
            try:
                wait_for(work, self._timeout)
            except (RuntimeError, TimeoutError) as error:
                raise PeerError(self._rank, peer, error) from error


@dataclass(frozen=True)
class MessageGroup:
    """A process group that `private_group` has made, and how messages travel in it: `batched` hop by hop (on
    NCCL), or one by one, each waited for as long as `timeout`, what is sent held back by the `pacer`, or all
    of them through host memory by `staging`."""

    group: dist.ProcessGroup
    timeout: timedelta
    batched: bool
    pacer: Pacer | None = None
    staging: Staging | None = None


class ProcessChannel(Channel):
    """A channel over its own process group; `timestamp` reads the clock, which is also the log's."""

    def __init__(
        self,
        carrier: MessageGroup,
        number: int,
        traffic: Traffic,
        timestamp: Callable[[], object],
        log: TaskLog | None = None,
    ) -> None:
        group = carrier.group
        super().__init__(dist.get_rank(group), dist.get_world_size(group), number, traffic, log)
        self._group, self._timestamp = group, timestamp
        self._batched, self._pacer, self._staging = carrier.batched, carrier.pacer, carrier.staging
        self._timeout = None if carrier.batched else carrier.timeout

    def _handle(self) -> ProcessHandle:
        """The handle of what has just been posted: a log has taken the moment, and on a GPU each one is an
        event."""
        posted = self._timestamp() if self._log is None else self._log.posted
        return ProcessHandle(self.rank, self._timeout, posted)

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        handle = self._handle()
        if self._batched:
            self._post_batch(handle, sends, receives)
            return handle
        if self._staging is not None:
            self._post_staged(handle, self._staging, sends, receives)
            return handle
        for message in receives:
            handle.add(message[0], self._issue(self._group.recv, *message))
        for message in sends:
            if self._pacer is None or phase == MEASURE:
                handle.add(message[0], self._issue(self._group.send, *message))
            else:
                handle.add(message[0], _Paced(self._pacer.send(self._group, *message)))
        return handle

    def _issue(
        self, operation: Callable[[list[Tensor], int, int], dist.Work], peer: int, buffer: Tensor, tag: int
    ) -> dist.Work:
        """Starts one message with the group's own method, around which `dist.isend` and `dist.irecv` only
        check what holds here. Raises PeerError if the connection is already broken."""
        try:
            return operation([buffer], peer, tag)
        except RuntimeError as error:
            raise PeerError(self.rank, peer, error) from error

    def _post_staged(
        self,
        handle: ProcessHandle,
        staging: Staging,
        sends: Sequence[TaggedMessage],
        receives: Sequence[TaggedMessage],
    ) -> None:
        for peer, buffer, tag in receives:
            try:
                handle.add(peer, staging.receive(self._group, peer, buffer, tag))
            except RuntimeError as error:
                raise PeerError(self.rank, peer, error) from error
        for peer, buffer, tag in sends:
            handle.add(peer, staging.send(self._group, peer, buffer, tag))

    def _post_batch(
        self, handle: ProcessHandle, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage]
    ) -> None:
        operations = [
            *(
                dist.P2POp(dist.isend, buffer, group=self._group, group_peer=peer)
                for peer, buffer, _ in sends
            ),
            *(
                dist.P2POp(dist.irecv, buffer, group=self._group, group_peer=peer)
                for peer, buffer, _ in receives
            ),
        ]
        if not operations:
            return
        peer = (*receives, *sends)[0][0]
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise PeerError(self.rank, peer, error) from error
        for work in works:
            handle.add(peer, work)

    def backend_sum(self, x: Tensor) -> Handle:
        number = 0 if self._log is None else self._log.post(BACKEND, (), ())
        handle = self._handle()
        handle.number = number
        if self._staging is not None:
            handle.add(self.rank, self._staging.sum(self._group, x))
        else:
            handle.add(self.rank, dist.all_reduce(x, group=self._group, async_op=True))
        return handle


def driven(coroutine: Coroutine[Handle, None, Result]) -> Result:
    """Runs a collective of this rank to its end and returns its result. The host waits for its messages; on a
    GPU, the stream does."""
    try:
        while True:
            handle = coroutine.send(None)
            assert isinstance(handle, ProcessHandle)
            handle.block()
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        coroutine.close()
