"""Starts the ranks of a local cluster on their network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gradwire.harness.launch.processes import run_processes
from gradwire.harness.launch.shaped_network import shaped_network
from gradwire.harness.launch.stop import StopRequest


def run_ranks(
    target: Callable[..., None],
    arguments: Sequence[Any],
    config: DictConfig,
    directory: Path,
    folder: Path,
    stop: StopRequest | None = None,
) -> str:
    """Runs `target(*arguments, entrances, rank)` in a process per worker until all have ended.

    `entrances` lead into a shaped network, which is recorded in `directory` and lasts as long as the
    processes; None on any other network. `folder` and `stop` are as for `run_processes`, which raises
    WorkerError and whose result this returns.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the children's thread pools as they load
    size = config.cluster.workers
    with shaped_network(config, directory) as network:
        entrances = None if network is None else [network.entrance(rank) for rank in range(size)]
        return run_processes(
            target, (*arguments, entrances), size, folder, stop, network, hang_s=config.cluster.hang_s
        )
