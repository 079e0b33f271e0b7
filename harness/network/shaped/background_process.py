"""A rank's part of other jobs' ring all-reduces, as a program: `background_process.py <settings as JSON>`.

It enters the given namespace, prints `ready` when all jobs are connected, and runs until its input ends or
its parent is gone. Then it prints the number of bytes received. It imports nothing from the package, only
Python's standard library, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence

NEW_NET = 0x40000000
PR_SET_PDEATHSIG = 1
FIRST_PORT = 20000
CONNECT_S = 20.0
BLOCK = 1 << 18
STOPPING_S = 1.0
LOST_NEIGHBOUR = 3
"""Exit code of a background job whose neighbour is gone and which is therefore not the cause."""


class Job:
    """One rank of one job. In each step it sends a chunk to the right and receives one from the left.

    A step ends when both transfers are complete. 2(n - 1) steps are an all-reduce, and the next one follows
    immediately.
    """

    def __init__(self, right: socket.socket, left: socket.socket, chunk_bytes: int) -> None:
        self.right, self.left, self._chunk_bytes = right, left, chunk_bytes
        self.to_send = self.to_receive = chunk_bytes
        self.received = 0

    def send(self, block: memoryview) -> None:
        self.to_send -= self.right.send(block[: self.to_send])

    def receive(self, block: memoryview) -> None:
        got = self.left.recv_into(block[: self.to_receive])
        if not got:
            raise ConnectionResetError
        self.to_receive -= got
        self.received += got

    def next_step(self) -> bool:
        """Begins the next step if the current one is over; returns whether it did."""
        if self.to_send or self.to_receive:
            return False
        self.to_send = self.to_receive = self._chunk_bytes
        return True


class BackgroundRounds:
    """All jobs of this rank, driven by whichever socket is ready."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._block = jobs, memoryview(bytearray(BLOCK))
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        for job in jobs:
            self._go_on(job)

    def run(self) -> None:
        """Runs until the input ends."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                with contextlib.suppress(BlockingIOError):  # not ready after all
                    self._advance(key.fileobj, key.data)

    def _advance(self, ready: object, job: Job) -> None:
        if ready is job.right:
            job.send(self._block)
            if not job.to_send:
                self._selector.unregister(job.right)
        else:
            job.receive(self._block)
            if not job.to_receive:
                self._selector.unregister(job.left)
        if job.next_step():
            self._go_on(job)

    def _go_on(self, job: Job) -> None:
        self._selector.register(job.right, selectors.EVENT_WRITE, job)
        self._selector.register(job.left, selectors.EVENT_READ, job)


def connected(addresses: Sequence[str], rank: int, jobs: int, chunk_bytes: int) -> list[Job]:
    """Returns a connection to the right and one from the left for each job."""
    listeners = [socket.create_server((addresses[rank], FIRST_PORT + job)) for job in range(jobs)]
    neighbour = addresses[(rank + 1) % len(addresses)]
    rights = [_connection((neighbour, FIRST_PORT + job)) for job in range(jobs)]
    lefts = []
    for listener in listeners:
        listener.settimeout(CONNECT_S)
        lefts.append(listener.accept()[0])
        listener.close()
    for connection in (*rights, *lefts):
        connection.setblocking(False)
    return [Job(right, left, chunk_bytes) for right, left in zip(rights, lefts, strict=True)]


def _connection(place: tuple[str, int]) -> socket.socket:
    """Connects, trying repeatedly, because the neighbour may not be listening yet."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(place, CONNECT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def prepare(parent: int, namespace: int) -> None:
    """Makes this process end with its parent, ignores signals that the parent handles, and enters the
    namespace."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if libc.setns(namespace, NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")


def asked_to_end(within_s: float) -> bool:
    """True if the input has ended, or ends within `within_s` seconds."""
    return bool(select.select([sys.stdin.buffer], [], [], within_s)[0])


def main() -> None:
    settings = json.loads(sys.argv[1])
    prepare(settings["parent"], settings["namespace"])
    jobs = connected(settings["addresses"], settings["rank"], settings["jobs"], settings["chunk_bytes"])
    print("ready", flush=True)
    started = time.monotonic()
    try:
        BackgroundRounds(jobs).run()
    except ConnectionError:
        if not asked_to_end(STOPPING_S):  # all are, a moment after one another
            sys.exit(LOST_NEIGHBOUR)
    seconds = time.monotonic() - started
    print(json.dumps({"received": [job.received for job in jobs], "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
