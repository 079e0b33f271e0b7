"""What one rank's process does, whoever started it."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch._C._distributed_c10d import FileStore, HashStore

from gradwire.harness.record.writer import RunWriter
from gradwire.harness.trainer.build import build
from gradwire.harness.trainer.loop import Trainer

THREADS = 1
"""Intra-op threads per worker: two give other bits, and on busy cores runs up to 50 times slower."""

START_S = 300.0
"""How far apart the ranks may come up. `cluster.timeout_s` counts from when all of them are there."""


def prepare_process(config: DictConfig, local_rank: int) -> torch.device:
    """Threads and device of this process."""
    torch.set_num_threads(THREADS)
    if config.cluster.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def train(config: DictConfig, directory: Path, device: torch.device, writes: bool) -> None:
    """Build and train in an initialized process group; `writes` on the rank that keeps the record."""
    started = time.perf_counter()
    parts = build(config, device)
    try:
        writer = RunWriter(directory, config) if writes else None
        Trainer(config, parts, writer, title=directory.name, started=started).run()
    finally:
        parts.world.close()


def train_local_rank(config: DictConfig, directory: Path, rank: int, rendezvous: Path) -> None:
    """Rank `rank` of a local cluster; ranks meet in the file `rendezvous`."""
    size = config.cluster.workers
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    # Accelerate asks for these; the file is used.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if config.cluster.backend == "gloo":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = prepare_process(config, rank)
    store = FileStore(str(rendezvous), size)
    store.set(f"up{rank}", "")
    store.wait([f"up{peer}" for peer in range(size)], timedelta(seconds=START_S))
    timeout = timedelta(seconds=config.cluster.timeout_s)
    dist.init_process_group(config.cluster.backend, store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        train(config, directory, device, writes=rank == 0)
    finally:
        dist.destroy_process_group()


def train_virtual(config: DictConfig, directory: Path) -> None:
    """All ranks of a virtual cluster in this process, whose own process group is a world of one."""
    device = prepare_process(config, 0)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        train(config, directory, device, writes=True)
    finally:
        dist.destroy_process_group()
