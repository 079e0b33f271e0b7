"""The process groups that messages travel in, apart from the script's own."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

from gradwire.harness.comm.settings import MOST_COMMUNICATORS


def private_group(group: dist.ProcessGroup | None, backend: str, timeout: timedelta) -> dist.ProcessGroup:
    """Makes a group of the same ranks for our messages alone; only its members take part.

    gloo connects rank by rank: a rank that returned early and left would cut off those still connecting, so
    all wait for all. NCCL connects with its first message.
    """
    members = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
    part = len(members) < dist.get_world_size()
    made: dist.ProcessGroup = dist.new_group(
        members, timeout=timeout, backend=backend, use_local_synchronization=part
    )
    if backend == "gloo":
        dist.barrier(made)
    return made


def communicators(in_flight: int) -> int:
    """How many communicators a GPU gets for so many buckets in flight: one where all streams share a queue.
    There one's messages could wait behind the other's, and ranks start them in different orders."""
    single = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    return 1 if single else min(in_flight, MOST_COMMUNICATORS)
