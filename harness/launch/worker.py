"""The process of one rank, under any launcher."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.checkpoint.folder import CheckpointReader
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.transport.process import connecting
from gradwire.harness.launch.patience import START_S
from gradwire.harness.launch.stop import stop_requests_of_rank
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.network.shaped.rate_changes import ClockListener, clock_sender, ignore_clock
from gradwire.harness.runtime.heartbeat import WARM_UP, beat, since_launch
from gradwire.harness.runtime.memory import keep_freed_memory
from gradwire.harness.trainer.loop import Trainer
from gradwire.harness.trainer.parts import build
from gradwire.harness.trainer.settings import RunConfig

THREADS = 1
"""Intra-op threads per worker. Two would change bits of the results, and make runs up to 50 times slower on
busy cores."""

SHORTEST_WAIT_S = 0.01
"""The shortest timeout, because stores treat 0 as no limit."""


def prepare_process(cluster: ClusterConfig, local_rank: int) -> torch.device:
    """Sets the threads, memory and device of this process."""
    torch.set_num_threads(THREADS)
    keep_freed_memory()
    if cluster.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def train(
    config: RunConfig,
    directory: Path,
    device: torch.device,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_clock: ClockListener = ignore_clock,
) -> bool:
    """Builds and trains in an initialized process group; returns whether it reached the end (see
    `Trainer.run`).

    `directory` has been opened for this attempt, which resumes from `checkpoint`. `writes` is set on the rank
    that writes the record. `on_clock` is called with the training clock's readings.
    """
    with using_kernels(config.kernels.name):
        parts = build(config, device)
        beat(WARM_UP)
        try:
            writes = dist.get_rank() == 0
            trainer = Trainer(config, parts, directory, writes=writes, stop=stop, on_clock=on_clock)
            return trainer.run(None if checkpoint is None else CheckpointReader(checkpoint))
        finally:
            parts.world.close()


def train_local_rank(
    config: RunConfig,
    directory: Path,
    checkpoint: Path | None,
    rendezvous: Path,
    entrances: Sequence[Entrance] | None,
    rank: int,
) -> None:
    """Trains as rank `rank` of a local cluster; `entrances`, by rank, lead into its own network."""
    stop = stop_requests_of_rank()
    entrance = None if entrances is None else entrances[rank]
    with joined_process_group(config.cluster, config.network, rank, rendezvous, entrance) as device:
        train(config, directory, device, checkpoint, stop, clock_sender(entrance))


@contextmanager
def joined_process_group(
    cluster: ClusterConfig,
    network: NetworkConfig,
    rank: int,
    rendezvous: Path,
    entrance: Entrance | None = None,
) -> Iterator[torch.device]:
    """Yields this rank's device in the process group of a local cluster, whose ranks rendezvous through a
    file.

    The process stays in the network of its `entrance`.
    """
    _enter_network(cluster, network, entrance)
    size = cluster.size
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    # Accelerate requires an address although the file is used, and would otherwise treat each rank as a
    # separate node.
    os.environ |= {"LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    device = prepare_process(cluster, rank)
    store = FileStore(str(rendezvous), size)
    store.set(f"up{rank}", "")
    beat()
    _await_peers(store, size)
    beat()
    join_process_group(cluster, store=store, rank=rank, world_size=size)
    try:
        yield device
    finally:
        dist.destroy_process_group()


class AbsentPeerError(RuntimeError):
    """Raised if a rank has not started in time."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"rank {peer} has not come up within {START_S:g} s of the launch")
        self.peer, self.missed = peer, "not up in time"


def _await_peers(store: FileStore, size: int) -> None:
    """Waits until all ranks are up. Raises AbsentPeerError naming the first rank that is not up `START_S`
    seconds after the launch.

    The time that this rank took to start counts, too: the limit starts at the launch for all ranks.
    """
    deadline = time.monotonic() + START_S - since_launch()
    for peer in range(size):
        left_s = max(deadline - time.monotonic(), SHORTEST_WAIT_S)
        try:
            store.wait([f"up{peer}"], timedelta(seconds=left_s))
        except RuntimeError:
            raise AbsentPeerError(peer) from None


def join_process_group(cluster: ClusterConfig, **place: Any) -> None:
    """Calls `dist.init_process_group(**place)` and waits until all ranks are connected.

    gloo connects rank by rank. A rank that has nothing to do, or fails immediately, would leave while others
    are still connecting, and these would report the error instead. Raises NotConnectedError if one is late or
    gone.
    """
    timeout = timedelta(seconds=cluster.timeout_s)
    with connecting(timeout):
        dist.init_process_group(cluster.backend, timeout=timeout, **place)
        if cluster.backend == "gloo":
            dist.barrier()


def _enter_network(cluster: ClusterConfig, network: NetworkConfig, entrance: Entrance | None) -> None:
    """Enters the network before the first connection and the first thread, which stay in the network where
    they were created."""
    if entrance is not None:
        entrance.enter()
        os.environ["GLOO_SOCKET_IFNAME"] = entrance.interface
    elif network.name == "shaped":
        raise ValueError("network=shaped has no links here; use network=none")
    elif cluster.backend == "gloo":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def train_virtual(
    config: RunConfig,
    directory: Path,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Trains all ranks of a virtual cluster in this process, whose own process group has world size one."""
    device = prepare_process(config.cluster, 0)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        train(config, directory, device, checkpoint, stop)
    finally:
        dist.destroy_process_group()


def train_virtual_child(config: RunConfig, directory: Path, checkpoint: Path | None, rank: int) -> None:
    """Runs `train_virtual` as the only process of its kind."""
    assert rank == 0
    train_virtual(config, directory, checkpoint, stop_requests_of_rank())
