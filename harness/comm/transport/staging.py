"""Messages between ranks that share a device: through host memory, which gloo carries.

NCCL refuses two ranks on one GPU. So a message is copied to host memory on the stream that made it, sent from
there once the copy has ended, and copied to the receiver's device on the stream that awaits it. No link is
measured in this way: both copies and gloo's take the place of the network.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.harness.runtime.threads import end_at_exit

REFUSES_CAPTURE = "the host carries messages between ranks that share a device"
"""Why no round of such ranks is captured: a graph has no place for the host's part."""


class Moment(Protocol):
    """A point of a stream, such as a `torch.cuda.Event`."""

    def synchronize(self) -> None:
        """Has the host wait until the work before it has ended."""
        ...


class Waitable(Protocol):
    """A message in flight: a `dist.Work`, or one on its way through host memory."""

    def wait(self, timeout: timedelta = ...) -> object: ...


def wait_for(flight: Waitable | None, timeout: timedelta | None) -> None:
    """Waits for a work if there is one, for as long as the group does if no `timeout` is given."""
    if flight is None:
        return
    if timeout is None:
        flight.wait()
    else:
        flight.wait(timeout)


class _Past:
    """The only moment of a device that works at once: the CPU."""

    def synchronize(self) -> None:
        """Does nothing: it has passed."""


class HostCopies:
    """Copies between a device and host memory, in the order of the current stream; on the CPU they are
    immediate.

    Host memory of a GPU is pinned, so that copies do not hold up the host. PyTorch's allocator does not hand
    it out again before the copies from and to it have ended.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"

    def room(self, like: Tensor) -> Tensor:
        """Host memory for a contiguous tensor of the device; contents undefined."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=self._is_gpu)

    def to_host(self, x: Tensor) -> tuple[Tensor, Moment]:
        """A copy of `x` in host memory, and the moment from which it is there."""
        host = self.room(x)
        host.copy_(x, non_blocking=True)
        return host, self.moment()

    def to_device(self, host: Tensor, x: Tensor) -> None:
        """Fills `x` with the contents of host memory, which must be there."""
        x.copy_(host, non_blocking=True)

    def moment(self) -> Moment:
        """The current stream's work so far. To wait for it takes no time of a core."""
        if not self._is_gpu:
            return _Past()
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


_Departure = tuple[Moment, Callable[[], "dist.Work | None"], "Future[dist.Work | None]"]


class Staging:
    """The thread that hands copied messages to gloo, and the ways through host memory and back.

    A communication thread cannot do this itself: it would hold up other buckets until the device has come so
    far. Nothing that the device does waits for the host, so messages may depart one after another.
    """

    def __init__(self, copies: HostCopies) -> None:
        self._copies = copies
        self._departures: queue.SimpleQueue[_Departure | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="staging", daemon=True)
        self._thread.start()
        end_at_exit(self)

    def send(self, group: dist.ProcessGroup, peer: int, buffer: Tensor, tag: int) -> Waitable:
        """Sends the contents that `buffer` has on the current stream, which may overwrite it from now on."""
        host, ready = self._copies.to_host(buffer)
        return _Sent(self._depart(ready, lambda: dist.isend(host, group_dst=peer, group=group, tag=tag)))

    def receive(self, group: dist.ProcessGroup, peer: int, buffer: Tensor, tag: int) -> Waitable:
        """Receives into `buffer`, which is filled on the stream that waits. Raises RuntimeError if the
        connection is broken."""
        host = self._copies.room(buffer)
        work = dist.irecv(host, group_src=peer, group=group, tag=tag)
        return _Received(self._copies, work, host, buffer, self._copies.moment())

    def sum(self, group: dist.ProcessGroup, x: Tensor) -> Waitable:
        """Sums `x` over all ranks by gloo's all-reduce; the sum replaces it on the stream that waits."""
        host, ready = self._copies.to_host(x)
        work = self._depart(ready, lambda: dist.all_reduce(host, group=group, async_op=True))
        return _Summed(self._copies, work, host, x)

    def _depart(self, ready: Moment, issue: Callable[[], dist.Work | None]) -> Future[dist.Work | None]:
        issued: Future[dist.Work | None] = Future()
        self._departures.put((ready, issue, issued))
        return issued

    def _run(self) -> None:
        while (departure := self._departures.get()) is not None:
            ready, issue, issued = departure
            try:
                if self._closed.is_set():
                    raise RuntimeError("the connection was closed before the message left")
                ready.synchronize()
                issued.set_result(issue())
            except BaseException as error:  # whatever it is, it must reach the waiting thread
                issued.set_exception(error)

    def drop(self) -> None:
        """Drops messages that have not left, and later ones: waiting for them raises an error."""
        self._closed.set()

    def close(self) -> None:
        """Ends the thread, after the threads that send; messages that have not left are dropped."""
        self.ask_to_end()
        self.join()

    def ask_to_end(self) -> None:
        self.drop()
        self._departures.put(None)

    def join(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)


class _Sent:
    """A message that leaves when its copy has ended. Only its delivery has a time limit: the device may be
    behind the host by as much as it likes."""

    def __init__(self, issued: Future[dist.Work | None]) -> None:
        self._issued = issued

    def wait(self, timeout: timedelta | None = None) -> None:
        wait_for(self._issued.result(), timeout)


class _Received:
    """A message that is copied to the device once it has arrived; the time limit begins when the device has
    come to where it is awaited."""

    def __init__(
        self, copies: HostCopies, work: dist.Work | None, host: Tensor, buffer: Tensor, posted: Moment
    ) -> None:
        self._copies, self._work, self._posted = copies, work, posted
        self._host, self._buffer = host, buffer

    def wait(self, timeout: timedelta | None = None) -> None:
        self._posted.synchronize()
        wait_for(self._work, timeout)
        self._copies.to_device(self._host, self._buffer)


class _Summed:
    """A sum that is copied to the device once it is made."""

    def __init__(self, copies: HostCopies, issued: Future[dist.Work | None], host: Tensor, x: Tensor) -> None:
        self._copies, self._issued, self._host, self._x = copies, issued, host, x

    def wait(self, timeout: timedelta | None = None) -> None:
        wait_for(self._issued.result(), timeout)
        self._copies.to_device(self._host, self._x)
