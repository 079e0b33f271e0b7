"""Messages between real processes: torch.distributed point-to-point, on gloo or NCCL.

gloo matches messages by tag and wants receives posted before sends (twice as fast on a butterfly:
the receiver's ready message otherwise queues behind our own bulk data). NCCL ignores tags and
matches by order, so there every hop is one grouped batch and one collective is in flight at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from gradwire.harness.transport.channel import MEASURE, Channel, Handle, TaggedMessage, Traffic
from gradwire.harness.transport.pacer import Pacer


class PeerError(RuntimeError):
    """A message from or to `peer` did not come through."""

    def __init__(self, rank: int, peer: int, cause: BaseException) -> None:
        reason = next(iter(str(cause).splitlines()), "no answer in time")
        super().__init__(f"rank {rank} lost rank {peer}: {reason}")
        self.rank, self.peer = rank, peer


class ProcessHandle(Handle):
    """Works in flight; sends that a pacer still holds back are obtained by calling."""

    def __init__(self, rank: int, timeout: timedelta) -> None:
        self._rank, self._timeout = rank, timeout
        self.works: list[tuple[int, Callable[[], dist.Work | None]]] = []

    def add(self, peer: int, work: dist.Work | None) -> None:
        self.works.append((peer, lambda: work))

    def block(self) -> None:
        """Wait for every message (CPU), or make the current stream wait for it (CUDA).

        Raises PeerError naming the peer when one is lost or late.
        """
        for peer, get in self.works:
            try:
                work = get()
                if work is not None:
                    work.wait(self._timeout)
            except (RuntimeError, TimeoutError) as error:
                raise PeerError(self._rank, peer, error) from error


class ProcessChannel(Channel):
    """A channel over a process group of its own."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        number: int,
        traffic: Traffic,
        timeout: timedelta,
        pacer: Pacer | None = None,
    ) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group), number, traffic)
        self._group, self._timeout, self._pacer = group, timeout, pacer
        self._batched = dist.get_backend(group) == "nccl"

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        handle = ProcessHandle(self.rank, self._timeout)
        if self._batched:
            self._post_batch(handle, sends, receives)
            return handle
        for peer, buffer, tag in receives:
            handle.add(peer, dist.irecv(buffer, group_src=peer, group=self._group, tag=tag))
        for peer, buffer, tag in sends:
            if self._pacer is None or phase == MEASURE:
                handle.add(peer, dist.isend(buffer, group_dst=peer, group=self._group, tag=tag))
            else:
                handle.works.append((peer, self._pacer.send(self._group, peer, buffer, tag)))
        return handle

    def _post_batch(
        self, handle: ProcessHandle, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage]
    ) -> None:
        operations = [
            *(
                dist.P2POp(dist.isend, buffer, group=self._group, group_peer=peer)
                for peer, buffer, _ in sends
            ),
            *(
                dist.P2POp(dist.irecv, buffer, group=self._group, group_peer=peer)
                for peer, buffer, _ in receives
            ),
        ]
        peer = (receives or sends)[0][0] if operations else self.rank
        for work in dist.batch_isend_irecv(operations) if operations else []:
            handle.add(peer, work)

    def backend_sum(self, x: Tensor) -> Handle:
        handle = ProcessHandle(self.rank, self._timeout)
        handle.add(self.rank, dist.all_reduce(x, group=self._group, async_op=True))
        return handle
