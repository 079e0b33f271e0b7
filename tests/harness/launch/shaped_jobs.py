"""Ranks on shaped links in the tests: they connect over gloo and sum until something happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.harness.network.shaped.namespace import Entrance

TIMEOUT_S = 5.0


def sum_for_ever(folder: Path, entrances: Sequence[Entrance], rank: int) -> None:
    """All-reduce again and again; the file `sums<rank>` says that it has begun."""
    entrances[rank].enter()
    os.environ["GLOO_SOCKET_IFNAME"] = entrances[rank].interface
    store = dist.FileStore(str(folder / "store"), len(entrances))
    store.set(f"up{rank}", "")  # on a busy machine they start farther apart than they may answer
    store.wait([f"up{peer}" for peer in range(len(entrances))], timedelta(seconds=60))
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(entrances), timeout=timeout)
    while True:
        found = torch.full((10_000,), float(rank))
        dist.all_reduce(found)
        assert found[0] == sum(range(len(entrances)))
        (folder / f"sums{rank}").write_text(str(os.getpid()))


def die_on_rank_2(folder: Path, entrances: Sequence[Entrance], rank: int) -> None:
    """Kills rank 2, the only process in its namespace."""
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    sum_for_ever(folder, entrances, rank)
