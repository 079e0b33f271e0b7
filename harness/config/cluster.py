"""How many workers on which device with which backend: `auto` and null replaced, and checked."""

from __future__ import annotations

import os

import torch
from omegaconf import DictConfig

from gradwire.harness.config.errors import ConfigError

WORKERS_WITHOUT_GPUS = 4


def resolve_cluster(config: DictConfig) -> None:
    """Replace, in place, `cluster.{workers,device,backend}` and `train.precision` by what they mean here.

    Under torchrun the number of workers is the world's. Raises ConfigError.
    """
    cluster = config.cluster
    gpus = torch.cuda.device_count()
    if cluster.device == "auto":
        cluster.device = "cuda" if gpus else "cpu"
    elif cluster.device == "cuda" and not gpus:
        raise ConfigError("cluster.device=cuda: there is no GPU here; use cluster.device=cpu or auto")
    cluster.workers = _workers(config, gpus)
    cluster.backend = _backend(config, gpus)
    if config.train.precision == "auto":
        config.train.precision = "bf16" if cluster.device == "cuda" else "fp32"


def _workers(config: DictConfig, gpus: int) -> int:
    asked: int | None = config.cluster.workers
    world = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if world is None:
        one_per_gpu = config.cluster.device == "cuda" and config.cluster.name == "local"
        return asked or (gpus if one_per_gpu else WORKERS_WITHOUT_GPUS)
    if config.cluster.name == "virtual":
        if int(world) == 1:
            return asked or WORKERS_WITHOUT_GPUS
        raise ConfigError(
            f"cluster=virtual hosts all workers in one process, and torchrun started {world}; use "
            "cluster=local, or python run.py without torchrun"
        )
    if asked not in (None, int(world)):
        raise ConfigError(
            f"cluster.workers={asked}, but torchrun started {world} processes; leave cluster.workers out"
        )
    return int(world)


def _backend(config: DictConfig, gpus: int) -> str:
    """nccl needs a GPU for every local worker, and cannot be paced."""
    cluster = config.cluster
    local = int(os.environ.get("LOCAL_WORLD_SIZE", cluster.workers))
    enough = cluster.device == "cuda" and gpus >= local
    if cluster.backend == "nccl" and cluster.name == "local" and not enough:
        raise ConfigError(
            f"cluster.backend=nccl needs a GPU for each of the {local} workers, there are "
            f"{gpus if cluster.device == 'cuda' else 0}; use cluster.backend=gloo or cluster=virtual"
        )
    if cluster.backend != "auto":
        return str(cluster.backend)
    return "nccl" if enough and cluster.name == "local" and config.network.name != "paced" else "gloo"
