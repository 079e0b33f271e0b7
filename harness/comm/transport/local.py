"""All ranks in one process: mailboxes instead of sockets.

The ranks' coroutines take turns, one at a time and always in the same order, so that other ranks do not
disturb the measurement of one rank's work. The times that the same work would take on separate machines are
computed afterwards from the logs (`harness.timing.simulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass
class _Posted:
    buffer: Tensor
    handle: LocalHandle
    copy: Tensor | None


class Mailboxes:
    """Matches sends with receives. With `debug`, writing to a send buffer too early is an error."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._sends: dict[Key, _Posted] = {}
        self._receives: dict[Key, tuple[Tensor, LocalHandle]] = {}

    def send(self, key: Key, buffer: Tensor, handle: LocalHandle) -> None:
        assert key not in self._sends, f"two messages {key} in one step"
        posted = _Posted(buffer, handle, buffer.clone() if self._debug else None)
        if key in self._receives:
            self._match(key, posted, *self._receives.pop(key))
        else:
            self._sends[key] = posted

    def receive(self, key: Key, buffer: Tensor, handle: LocalHandle) -> None:
        if key in self._sends:
            self._match(key, self._sends.pop(key), buffer, handle)
        else:
            self._receives[key] = (buffer, handle)

    def _match(self, key: Key, posted: _Posted, buffer: Tensor, handle: LocalHandle) -> None:
        assert posted.buffer.shape == buffer.shape, f"message {key}: {posted.buffer.shape} for {buffer.shape}"
        intact = posted.copy is None or torch.equal(posted.copy, posted.buffer)
        assert intact, f"send buffer {key} was written to before the message was received"
        buffer.copy_(posted.buffer)
        posted.handle.open -= 1
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
        handle = LocalHandle(len(sends) + len(receives))
        for peer, buffer, tag in receives:
            self._mailboxes.receive((peer, self.rank, tag), buffer, handle)
        for peer, buffer, tag in sends:
            self._mailboxes.send((self.rank, peer, tag), buffer, handle)
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
    running = list(tasks)
    try:
        while running:
            ready = [task for task in running if _is_through(task)]
            if not ready:
                raise RuntimeError(f"the collective is stuck: {mailboxes.waiting()}")
            ended = {id(task) for task in ready if not _advance(task, timestamp, turn or timestamp)}
            running = [task for task in running if id(task) not in ended]
    except BaseException as error:
        for task in running:
            task.cancel(error)
        raise


def _is_through(task: CollectiveTask) -> bool:
    """True if a task has nothing left to wait for."""
    assert task.handle is None or isinstance(task.handle, LocalHandle)
    return task.handle is None or task.handle.open == 0


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
