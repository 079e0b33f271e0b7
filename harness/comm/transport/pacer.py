"""User-space pacing: a message is handed to the socket when its last bit would have arrived.

This needs no root privileges. One thread per rank emulates the uplink: messages leave in order, each after
`bytes / rate` on a serial link plus the latency. Receivers are not limited, because on a ring or a butterfly
only one message arrives at a time. Emulating contention needs shaped links.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from gradwire.harness.runtime.threads import end_at_exit


@dataclass
class PacedLink:
    """A serial uplink: messages leave one after another at `bytes_per_second`.

    `bytes_per_second = inf` and `latency_s = 0` is a link that takes no time.
    """

    bytes_per_second: float
    latency_s: float = 0.0
    free_at: float = 0.0

    def transmit(self, now: float, num_bytes: int) -> float:
        """Arrival time (s) of a message posted at `now`; the link is busy until its last bit left."""
        self.free_at = max(now, self.free_at) + num_bytes / self.bytes_per_second
        return self.free_at + self.latency_s


_Departure = tuple[float, Callable[[], "dist.Work | None"], "Future[dist.Work | None]"]


class Pacer:
    """Delays each send until the link model says it has arrived."""

    def __init__(self, link: PacedLink, timeout_s: float) -> None:
        self._link, self._timeout_s = link, timeout_s
        self._lock = threading.Lock()
        self._departures: queue.SimpleQueue[_Departure | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
        self._thread.start()
        end_at_exit(self)

    def send(
        self, group: dist.ProcessGroup, peer: int, buffer: Tensor, tag: int
    ) -> Callable[[], dist.Work | None]:
        """Queues a send. The returned function waits until the message has left and returns its work."""
        issued: Future[dist.Work | None] = Future()
        with self._lock:  # several communication threads share the link
            arrival = self._link.transmit(time.monotonic(), buffer.numel() * buffer.element_size())
            self._departures.put(
                (arrival, lambda: dist.isend(buffer, group_dst=peer, group=group, tag=tag), issued)
            )
        return lambda: issued.result(self._timeout_s + max(0.0, arrival - time.monotonic()))

    def _run(self) -> None:
        while (departure := self._departures.get()) is not None:
            arrival, issue, issued = departure
            try:
                if self._closed.wait(max(0.0, arrival - time.monotonic())):
                    raise RuntimeError("the link was closed before the message left")
                issued.set_result(issue())
            except BaseException as error:  # whatever it is, it must reach the waiting thread
                issued.set_exception(error)

    def close(self) -> None:
        """Ends the thread without waiting for a slow link; queued messages are dropped."""
        self.ask_to_end()
        self.join()

    def ask_to_end(self) -> None:
        self._closed.set()
        self._departures.put(None)

    def join(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)
