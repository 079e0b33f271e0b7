"""A channel between ranks on one device of one process that behaves as NCCL does.

A message takes part when its poster's stream comes to it, a copy has a stream of its own, and what waits
for it is the current stream. Unlike with NCCL the host waits, too, until the peer has posted. On a CPU, which
has no streams, that is all.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.comm.transport.channel import Channel, Handle, TaggedMessage, Traffic
from gradwire.harness.comm.transport.process import ProcessHandle

Delay = Callable[[], None]
"""Called before each copy, on the copy's stream."""


def stream_on(device: torch.device) -> torch.cuda.Stream | None:
    """A stream of its own, where there are streams."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def current(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Within the block, the stream is the current one, if there is one."""
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        yield


@dataclass
class Delivery:
    """One end of a message, from its post to its copy: what `torch.distributed` calls a work."""

    buffer: Tensor
    tag: int
    posted: torch.cuda.Event | None
    timeout_s: float
    copied: torch.cuda.Event | None = None
    matched: threading.Event = field(default_factory=threading.Event)
    error: str | None = None

    def wait(self) -> None:
        """Waits on the host until the peer has posted, and on the current stream until the bytes are there.

        Raises RuntimeError for a message that does not fit its counterpart, or has none in time.
        """
        if not self.matched.wait(self.timeout_s):
            raise RuntimeError("no answer in time")
        if self.error is not None:
            raise RuntimeError(self.error)
        if self.copied is not None:
            torch.cuda.current_stream(self.buffer.device).wait_event(self.copied)


class Communicator:
    """Matches sends with receives by their order, as NCCL does, and copies on a stream of each receiver."""

    def __init__(self, size: int, device: torch.device, timeout_s: float, delay: Delay) -> None:
        self._device, self._timeout_s, self._delay = device, timeout_s, delay
        self._streams = [stream_on(device) for _ in range(size)]
        self._lock = threading.Lock()
        self._sends: dict[tuple[int, int], deque[Delivery]] = defaultdict(deque)
        self._receives: dict[tuple[int, int], deque[Delivery]] = defaultdict(deque)

    def post(self, source: int, to: int, buffer: Tensor, tag: int, *, sends: bool) -> Delivery:
        """Starts one message, of which the caller is one end; it begins where its current stream is now."""
        on_streams = self._streams[0] is not None
        posted = torch.cuda.current_stream(self._device).record_event() if on_streams else None
        own = Delivery(buffer, tag, posted, self._timeout_s)
        mine, theirs = (self._sends, self._receives) if sends else (self._receives, self._sends)
        with self._lock:
            if not theirs[source, to]:
                mine[source, to].append(own)
                return own
            other = theirs[source, to].popleft()
            self._deliver(*((own, other) if sends else (other, own)), to)
        return own

    def _deliver(self, sent: Delivery, received: Delivery, to: int) -> None:
        if (sent.tag, sent.buffer.shape) == (received.tag, received.buffer.shape):
            self._copy(sent, received, self._streams[to])
        else:
            sent.error = received.error = (
                f"message {sent.tag} of {sent.buffer.numel()} bytes meets the receive of message "
                f"{received.tag} of {received.buffer.numel()} bytes"
            )
        for end in (sent, received):
            end.matched.set()

    def _copy(self, sent: Delivery, received: Delivery, stream: torch.cuda.Stream | None) -> None:
        with current(stream):
            for end in (sent, received):
                if stream is not None and end.posted is not None:
                    stream.wait_event(end.posted)
            self._delay()
            received.buffer.copy_(sent.buffer)
            if stream is not None:
                sent.copied = received.copied = stream.record_event()


class StreamChannel(Channel):
    """A channel over a communicator; what is posted together are works of one `ProcessHandle`, as on NCCL."""

    def __init__(
        self,
        rank: int,
        size: int,
        number: int,
        traffic: Traffic,
        communicator: Communicator,
        timestamp: Callable[[], object],
    ) -> None:
        super().__init__(rank, size, number, traffic)
        self._communicator, self._timestamp = communicator, timestamp

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        handle = ProcessHandle(self.rank, None, self._timestamp())
        post: Callable[..., Any] = self._communicator.post
        for peer, buffer, tag in receives:
            handle.add(peer, post(peer, self.rank, buffer, tag, sends=False))
        for peer, buffer, tag in sends:
            handle.add(peer, post(self.rank, peer, buffer, tag, sends=True))
        return handle

    def backend_sum(self, x: Tensor) -> Handle:
        raise ValueError("there is no backend")
