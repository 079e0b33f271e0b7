"""How a process captures its rank's rounds, and replays them: with which messages, buffers and time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gradwire.codecs.interface import Capture
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.process import ProcessChannel, driven
from gradwire.harness.comm.transport.replay import Capturable, Replays, ReplayTask
from gradwire.harness.comm.transport.replay_watch import ReplayWatch
from gradwire.harness.comm.world.interface import Collective


class ProcessReplays:
    """What `replays` keeps, run over `groups`: each communication thread's own on a GPU, else one for all.

    `give_up` is called with an error if a replay on a GPU does not end within `timeout`.
    """

    def __init__(
        self,
        replays: Replays,
        groups: Sequence[dist.ProcessGroup],
        fabric: Fabric,
        device: torch.device,
        timeout: timedelta,
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._replays, self._groups, self._fabric = replays, groups, fabric
        self._device, self._timeout, self._give_up = device, timeout, give_up
        self._on_gpu = device.type == "cuda"
        self._watch = ReplayWatch(timeout.total_seconds(), self._not_ended)

    def task(
        self,
        collective: Collective[Any],
        number: int,
        line: int,
        arena: str,
        future: Any,
        counted: Traffic,
        instead: Callable[[], CollectiveTask],
    ) -> ReplayTask[Any] | None:
        """The replay of `collective` on communication thread number `line`, or None if it is not due:
        `Replays.due`. The other arguments are those of `ReplayTask`.

        A capture has message buffers of its own, and takes no timestamps.
        """
        replayed = self._replays.due(collective, arena, line)
        if replayed is None:
            return None
        assert isinstance(collective, Capturable)
        captured = collective.captured

        def drive(capture: Capture, traffic: Traffic) -> Any:
            group = self._groups[line if self._on_gpu else 0]
            channel = ProcessChannel(
                group, number, traffic, self._timeout, lambda: None, batched=self._on_gpu
            )
            return driven(captured(capture)(ScheduledCollectives(channel, self._fabric, Arena(self._device))))

        return ReplayTask(
            self._replays,
            replayed,
            collective.key,
            drive,
            instead,
            future.set_result,
            future.set_exception,
            counted,
            partial(self._started, line),
        )

    def _started(self, line: int) -> None:
        if self._on_gpu:
            self._watch.started(line, torch.cuda.current_stream(self._device).record_event)

    def _not_ended(self) -> None:
        """The ranks that wait for one another in a graph wait until their communicators are aborted."""
        self._give_up(
            RuntimeError(
                f"rank {dist.get_rank(self._groups[0])}: a replayed round has not ended within "
                f"{self._timeout.total_seconds():g} s: a rank is lost or late"
            )
        )
        for group in self._groups:
            dist.distributed_c10d._abort_process_group(group)

    def forget(self) -> None:
        """Forgets all captures: the buckets change."""
        self._replays.forget()

    def close(self) -> None:
        """Forgets them, and ends the watch."""
        self._watch.close()
        self.forget()
