"""The whole network of a run: made, checked, measured, watched and removed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType

from gradwire.harness.network.links import Change
from gradwire.harness.network.shaped import diagnose
from gradwire.harness.network.shaped.background import BackgroundProcesses
from gradwire.harness.network.shaped.namespace import SETTINGS, Entrance, Namespace, path_of
from gradwire.harness.network.shaped.rate_changes import MadeChange, RateChanges
from gradwire.harness.network.shaped.star import (
    MOST_RANKS,
    UPLINK,
    LinkLimits,
    ShapingError,
    address,
    batch,
    downlink,
    rank_interfaces,
    reshaping,
    shaping,
    switch_interfaces,
)


class ShapedNetwork:
    """`ranks` namespaces on links of these `limits`, joined by a switch, while the `with` block lasts.

    Entering raises ShapingError, one line, if the network cannot be made as configured. It is only held by
    descriptors of this process, so it disappears when this process and those inside have ended.
    """

    congestion_control = SETTINGS["ipv4/tcp_congestion_control"]

    def __init__(self, ranks: int, limits: LinkLimits) -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise ShapingError(f"network=shaped takes 1 to {MOST_RANKS} workers, not {ranks}")
        self._ranks, self._limits = ranks, limits
        self._namespaces: list[Namespace] = []
        self._background: BackgroundProcesses | None = None
        self._changes: RateChanges | None = None
        self._changing = threading.Lock()
        self._held = ExitStack()

    def __enter__(self) -> ShapedNetwork:
        try:
            with self._held:
                self._make()
                self._held = self._held.pop_all()
        except OSError as error:
            raise ShapingError(f"network=shaped cannot be made: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def _make(self) -> None:
        self._switch = self._new_namespace()
        self._namespaces = [self._new_namespace() for _ in range(self._ranks)]
        self._switch.run(self._make_switch)
        for rank, namespace in enumerate(self._namespaces):
            namespace.run(partial(self._make_rank, rank))
        self._listeners = [
            self._held.enter_context(diagnose.listen(namespace))
            for namespace in (self._switch, *self._namespaces)
        ]
        self._made = diagnose.links(self._switch, self._namespaces)
        wrong = diagnose.troubles(self._made)
        if wrong:
            raise ShapingError("; ".join(f"rank {rank}: {reason}" for rank, reason in wrong.items()))

    def _new_namespace(self) -> Namespace:
        namespace = Namespace()
        self._held.callback(namespace.close)
        return namespace

    def _make_switch(self) -> None:
        batch("ip", switch_interfaces([path_of(namespace) for namespace in self._namespaces]))
        batch("tc", [line for rank in range(self._ranks) for line in shaping(downlink(rank), self._limits)])

    def _make_rank(self, rank: int) -> None:
        batch("ip", rank_interfaces(rank))
        batch("tc", shaping(UPLINK, self._limits))

    def entrance(self, rank: int) -> Entrance:
        """The entrance for the process of a rank, which must enter before it opens a connection.

        Rate changes follow the training clock of rank 0, which writes the record.
        """
        clock = self._changes.clock if self._changes is not None and rank == 0 else None
        return Entrance(path_of(self._namespaces[rank]), UPLINK, clock)

    def measure_goodput(self) -> float | None:
        """The current payload throughput of a stream from rank 0 to rank 1, in 10⁶ bit/s; None if there is no
        rank 1.

        Takes half a second. Raises ShapingError if it exceeds the rate.
        """
        if self._ranks < 2:
            return None
        found = measure_goodput(self._namespaces[0], self._namespaces[1], 1)
        if found > self._limits.rate_mbit:
            raise ShapingError(
                f"network.rate_mbit={self._limits.rate_mbit:g}: "
                f"a link carries {found:.0f} Mbit/s all the same"
            )
        return found

    def start_rate_changes(
        self, changes: Sequence[Change], record: Callable[[Sequence[MadeChange]], None]
    ) -> None:
        """Changes the rate of all links at the given seconds of rank 0's training clock until stopped; after
        each change `record` is called with all changes made so far."""
        self._changes = RateChanges(changes, self._limits.rate_mbit, self.set_rate, record)
        self._held.callback(self.stop_rate_changes)

    def stop_rate_changes(self) -> None:
        """Stops changing rates; a change in progress is completed."""
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.stop()

    def set_rate(self, rate_mbit: float) -> dict[int, str]:
        """Gives all links another rate in both directions, which `diagnose` does not report.

        Returns the ranks whose links could not be changed, with the reasons. Earlier faults of a link are
        still reported by `diagnose`.
        """
        refused = dict[int, str]()
        with self._changing:
            for link in self._made:
                try:
                    self._made[link.rank] = self._reshaped(link, rate_mbit)
                except (ShapingError, OSError) as error:
                    refused[link.rank] = f"the rate of its link cannot be changed: {error}"
        return refused

    def _reshaped(self, link: diagnose.LinkState, rate_mbit: float) -> diagnose.LinkState:
        assert link.uplink is not None
        assert link.downlink is not None
        change = partial(_reshape, rate_mbit=rate_mbit)
        uplink = self._namespaces[link.rank].run(partial(change, link.uplink, UPLINK))
        downlink_end = self._switch.run(partial(change, link.downlink, downlink(link.rank)))
        return replace(link, uplink=uplink, downlink=downlink_end)

    def start_background(self, jobs: int, megabytes: float) -> None:
        """Starts `jobs` background ring all-reduces of `megabytes` MiB over these links; they run until
        stopped."""
        self._background = BackgroundProcesses(self._namespaces, jobs, megabytes)
        self._held.callback(self.stop_background)

    def stop_background(self) -> list[float]:
        """Stops the background jobs. Returns the throughput of each over a link, in 10⁶ bit/s; empty if there
        are none, or one of them failed."""
        background, self._background = self._background, None
        return [] if background is None else background.stop()

    @property
    def sentinels(self) -> list[int]:
        """Descriptors that become readable when `diagnose` may find something."""
        background = [] if self._background is None else self._background.sentinels
        changes = [] if self._changes is None else [self._changes.sentinel]
        return [*(listener.fileno() for listener in self._listeners), *background, *changes]

    def diagnose(self) -> dict[int, str]:
        """The current faults by rank: links that are gone, cut, not shaped or that kept their rate when it
        was to change, and background jobs that have ended."""
        with self._changing:
            for listener in self._listeners:
                diagnose.forget(listener)
            found = diagnose.troubles(diagnose.links(self._switch, self._namespaces), self._made)
        for others in (self._changes, self._background):
            found = found or ({} if others is None else others.diagnose())
        return found


def _reshape(end: diagnose.End, interface: str, rate_mbit: float) -> diagnose.End:
    """Changes the rate of one end, in its namespace. Raises ShapingError."""
    printed = batch("tc", reshaping(interface, rate_mbit)).strip().splitlines()
    if len(printed) != 2:
        raise ShapingError(f"tc finds no class at {interface}")
    return end.reshaped(rate_mbit, *(line.strip() for line in printed))


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
