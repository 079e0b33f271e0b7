"""All ranks in one process: mailboxes instead of sockets.

The ranks' coroutines take turns, one at a time and always in the same order, so that other ranks do not
disturb the measurement of one rank's work. The times that the same work would take on separate machines are
computed afterwards from the logs (`harness.timing.simulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.comm.transport.channel import Channel, CollectiveTask, Handle, TaggedMessage, Traffic
from gradwire.harness.timing.trace.log import TaskLog


class LocalHandle(Handle):
    """Complete when each of its `open` messages has been matched with its counterpart."""

    def __init__(self, messages: int) -> None:
        self.open = messages


Key = tuple[int, int, int]
"""(source, destination, tag)"""


_Posted = tuple[Tensor, LocalHandle, Tensor | None]
"""A message that has been sent: its buffer, and a copy of it if that is to be compared."""


class Mailboxes:
    """Matches sends with receives. With `debug`, writing to a send buffer too early is an error."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._sends: dict[Key, _Posted] = {}
        self._receives: dict[Key, tuple[Tensor, LocalHandle]] = {}

    def send(self, key: Key, buffer: Tensor, handle: LocalHandle) -> None:
        assert key not in self._sends, f"two messages {key} in one step"
        posted = buffer, handle, buffer.clone() if self._debug else None
        received = self._receives.pop(key, None)
        if received is None:
            self._sends[key] = posted
        else:
            self._match(key, posted, *received)

    def receive(self, key: Key, buffer: Tensor, handle: LocalHandle) -> None:
        posted = self._sends.pop(key, None)
        if posted is None:
            self._receives[key] = buffer, handle
        else:
            self._match(key, posted, buffer, handle)

    def _match(self, key: Key, posted: _Posted, buffer: Tensor, handle: LocalHandle) -> None:
        sent, sender, copy = posted
        assert sent.shape == buffer.shape, f"message {key}: {sent.shape} for {buffer.shape}"
        intact = copy is None or torch.equal(copy, sent)
        assert intact, f"send buffer {key} was written to before the message was received"
        buffer.copy_(sent)
        sender.open -= 1
        handle.open -= 1

    def waiting(self) -> str:
        """A description of the ranks that wait for others, for the error message of a deadlock."""
        lines = [f"rank {key[1]} for rank {key[0]}" for key in self._receives]
        lines += [f"rank {key[0]} for rank {key[1]} to receive" for key in self._sends]
        return ", ".join(sorted(set(lines)))


class LocalChannel(Channel):
    """A channel between ranks hosted by one process."""

    def __init__(
        self,
        rank: int,
        size: int,
        number: int,
        traffic: Traffic,
        mailboxes: Mailboxes,
        log: TaskLog | None = None,
    ) -> None:
        super().__init__(rank, size, number, traffic, log)
        self._mailboxes = mailboxes

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        handle, mailboxes, rank = LocalHandle(len(sends) + len(receives)), self._mailboxes, self.rank
        for peer, buffer, tag in receives:
            mailboxes.receive((peer, rank, tag), buffer, handle)
        for peer, buffer, tag in sends:
            mailboxes.send((rank, peer, tag), buffer, handle)
        if self._log is not None:
            self._log.resume(self._log.timestamp())  # copying stands for the wire, whose time the clock knows
        return handle

    def backend_sum(self, x: Tensor) -> Handle:
        raise ValueError("codec=backend needs real processes; use cluster=local, or codec=fp32")


def run_local(
    tasks: Sequence[CollectiveTask],
    mailboxes: Mailboxes,
    timestamp: Callable[[], Any],
    turn: Callable[[], Any] | None = None,
) -> None:
    """Runs the ranks' coroutines of one collective to their ends; `timestamp` is the clock of their logs.
    `turn`, by default the same, is the timestamp of a moment at which one rank has ended its turn and another
    one begins.

    Raises the exception of a failed coroutine after cancelling the others. Raises RuntimeError naming the
    waiting ranks on a deadlock.
    """
    running, turn = list(tasks), turn or timestamp
    try:
        while running:
            ready = [task for task in running if task.handle is None or not task.handle.open]
            if not ready:
                raise RuntimeError(f"the collective is stuck: {mailboxes.waiting()}")
            ended = [task for task in ready if not _advance(task, timestamp, turn)]
            if ended:
                running = [task for task in running if task not in ended]
    except BaseException as error:
        for task in running:
            task.cancel(error)
        raise


def _advance(task: CollectiveTask, timestamp: Callable[[], Any], turn: Callable[[], Any]) -> bool:
    if task.log is not None:
        now = turn()
        if task.handle is not None:
            task.log.waited(task.handle.number, now, now)
        task.log.resume(now)
    more = task.advance()
    if task.log is not None and more:
        task.log.suspend(timestamp())
    return more
