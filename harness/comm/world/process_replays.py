"""How a process captures its rank's rounds, and replays them: with which messages, buffers and time limit."""

from __future__ import annotations

import logging
import os
import sys
import weakref
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

logger = logging.getLogger(__name__)


def end_process(rank: int, timeout_s: float) -> None:
    """Ends this process, as PyTorch does where NCCL's own messages come too late: what a replay that another
    rank has left was to sum is not there, and nobody must go on with it."""
    logger.critical(
        "gradwire: rank %d: a replayed round has not ended within %g s: another rank is lost or late; this "
        "process ends",
        rank,
        timeout_s,
    )
    sys.stderr.flush()
    os._exit(1)


class ProcessReplays:
    """What `replays` keeps, run over `groups`: each communication thread's own on a GPU, else one for all.

    A replay on a GPU that does not end within `timeout` ends the process.
    """

    def __init__(
        self,
        replays: Replays,
        groups: Sequence[dist.ProcessGroup],
        fabric: Fabric,
        device: torch.device,
        timeout: timedelta,
    ) -> None:
        self._replays, self._groups, self._fabric = replays, groups, fabric
        self._device, self._timeout, self._on_gpu = device, timeout, device.type == "cuda"
        rank, timeout_s = dist.get_rank(groups[0]), timeout.total_seconds()
        self._watch = ReplayWatch(timeout_s, partial(end_process, rank, timeout_s))
        # NCCL does not end a communicator while there are graphs that send through it.
        self._at_exit = weakref.finalize(self, replays.forget, wait=False)

    def task(
        self,
        collective: Collective[Any],
        number: int,
        communicator: int,
        arena: str,
        future: Any,
        counted: Traffic,
        instead: Callable[[], CollectiveTask],
    ) -> ReplayTask[Any] | None:
        """The replay of `collective` on this communication thread, or None if it is not due: see
        `Replays.due`. `future` gets its result, `counted` its bytes, and `instead` makes the task that runs
        in its place if it cannot be captured.

        A capture has message buffers of its own, and takes no timestamps.
        """
        replayed = self._replays.due(collective, arena, communicator)
        if replayed is None:
            return None
        assert isinstance(collective, Capturable)
        captured = collective.captured

        def drive(capture: Capture, traffic: Traffic) -> Any:
            group = self._groups[communicator if self._on_gpu else 0]
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
            partial(self._started, communicator),
        )

    def _started(self, communicator: int) -> None:
        if self._on_gpu:
            self._watch.started(communicator, torch.cuda.current_stream(self._device).record_event())

    def forget(self) -> None:
        """Forgets all captures, once they have run: the buckets change."""
        self._replays.forget()

    def close(self, *, failed: bool) -> None:
        """Forgets them, and ends the watch. Replays that are under way end first, or the watch ends the
        process; where something has `failed` nobody waits for them."""
        self._replays.forget(wait=not failed)
        self._watch.close()
