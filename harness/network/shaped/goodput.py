"""Measures the payload throughput of one link: a plain stream between two ranks on an idle network."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from gradwire.harness.network.shaped.commands import ShapingError
from gradwire.harness.network.shaped.namespace import Namespace
from gradwire.harness.network.shaped.star import address

SKIPPED_S = 0.15
"""Seconds of data that are sent first and not measured, until TCP has found the rate and the burst allowed
after idling is used up."""

MEASURED_S = 0.3
TIMEOUT_S = 5.0
BLOCK = 1 << 18


def measure_goodput(sender: Namespace, receiver: Namespace, receiving_rank: int) -> float:
    """The payload throughput of a TCP stream from `sender` to `receiver`, in 10⁶ bit/s.

    Takes about half a second. Raises ShapingError if nothing arrives.
    """
    here = address(receiving_rank)
    try:
        with receiver.run(lambda: _listener(here)) as listener:
            place = listener.getsockname()
            source = sender.run(lambda: socket.create_connection(place, TIMEOUT_S))
            with source, listener.accept()[0] as sink:
                sink.settimeout(TIMEOUT_S)
                return _received_per_second(source, sink) * 8e-6
    except OSError as error:
        raise ShapingError(f"nothing comes through to rank {receiving_rank}: {error}") from error


def _listener(here: str) -> socket.socket:
    listener = socket.create_server((here, 0))
    listener.settimeout(TIMEOUT_S)
    return listener


def _received_per_second(source: socket.socket, sink: socket.socket) -> float:
    """Bytes per second between two moments at which data has just arrived."""
    thread = threading.Thread(target=_send, args=(source,), daemon=True)
    thread.start()
    buffer = bytearray(BLOCK)
    start = time.monotonic()
    while (first := time.monotonic()) < start + SKIPPED_S:
        sink.recv_into(buffer)
    received, last = 0, first
    while last < first + MEASURED_S:
        received += sink.recv_into(buffer)
        last = time.monotonic()
    sink.close()  # the sender's next block is refused
    thread.join(TIMEOUT_S)
    return received / (last - first)


def _send(source: socket.socket) -> None:
    block = bytes(BLOCK)
    with contextlib.suppress(OSError):
        while True:
            source.sendall(block)
