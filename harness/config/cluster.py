"""Workers, device, backend and the codecs' kernels: `auto` and null are resolved and checked."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from gradwire.codecs.native.choice import choose_kernels, using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.topology.registry import placed
from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE
from gradwire.harness.config.network_checks import (
    check_links,
    check_network,
    check_size,
    resolve_nodes,
    workers_of,
)
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.parallel.synchronize import refused_graphs
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.runtime.program import program
from gradwire.harness.trainer.settings import KernelsConfig, RunConfig

WORKERS_WITHOUT_GPUS = 4

SHARE = ", or to try out what needs no network, cluster.share_device=true"
"""The way to have more workers than GPUs."""

OVER_GLOO = ("paced", "shaped")
"""Networks that real workers use through gloo, which sends from CPU memory."""


def resolve_cluster(run: RunConfig) -> RunConfig:
    """`run` with `cluster.{workers,device,backend}`, a simulated network's nodes and `train.precision`
    resolved. So is `cluster.ranks_per_node` if the topology, and with it the run's id, depends on it.

    Under torchrun the number of workers is the world size. Raises ConfigError, also for a network that does
    not fit the workers.
    """
    run = replace(run, network=check_links(run.network))
    check_network(run)
    gpus, cluster = torch.cuda.device_count(), run.cluster
    if cluster.share_device:
        _check_shared(run, gpus)
        cluster = replace(cluster, device="cuda")
    if cluster.device == "auto":
        cluster = replace(cluster, device="cuda" if _gpus_serve(run, gpus) else "cpu")
    _check_gpus(cluster, gpus)
    cluster = replace(cluster, workers=_workers(cluster, run.network, gpus))
    network = resolve_nodes(run.network, cluster.size)
    check_size(network, cluster.size)
    cluster = refused_as_config_error(placed, cluster, network, run.topology.name)
    cluster = replace(cluster, backend=_backend(cluster, network, gpus))
    train = run.train
    if train.precision == "auto":
        capable = cluster.device == "cuda" and torch.cuda.is_bf16_supported()
        train = replace(train, precision="bf16" if capable else "fp32")
    return replace(run, cluster=cluster, network=network, train=train)


def resolve_device(cluster: ClusterConfig) -> ClusterConfig:
    """`cluster` with `device=auto` replaced, for a task that has one process. Raises ConfigError."""
    gpus = torch.cuda.device_count()
    if cluster.device == "auto":
        cluster = replace(cluster, device="cuda" if gpus else "cpu")
    _check_gpus(cluster, gpus)
    return cluster


def _check_gpus(cluster: ClusterConfig, gpus: int) -> None:
    if cluster.device == "cuda" and not gpus:
        raise ConfigError("cluster.device=cuda: there is no GPU here; use cluster.device=cpu or auto")


def _check_shared(run: RunConfig, gpus: int) -> None:
    """Raises ConfigError for ranks that cannot share a GPU, or would be taken for ranks on a network."""
    asked, cluster, network = "cluster.share_device=true", run.cluster, run.network
    if cluster.name == "virtual":
        raise ConfigError(f"{asked} is for real workers, and cluster=virtual has one process; leave it out")
    if not gpus:
        raise ConfigError(f"{asked}: there is no GPU here; leave it out")
    if cluster.device == "cpu":
        raise ConfigError(f"{asked} shares GPUs, and cluster.device=cpu uses none; leave one of them out")
    if cluster.backend == "nccl":
        raise ConfigError(
            f"{asked} sends through host memory, because nccl refuses two ranks on one GPU; leave "
            "cluster.backend out"
        )
    if network.name != "none":
        raise ConfigError(
            f"{asked} measures no network and cannot be used with network={network.name}; use network=none, "
            "or cluster=virtual"
        )
    if (cluster.workers or 0) <= gpus and "RANK" not in os.environ:
        raise ConfigError(
            f"{asked} needs more workers than GPUs: cluster.workers={cluster.workers or 'null'}, and there "
            f"are {gpus}; leave it out, or use cluster.workers={2 * gpus}"
        )


def _workers(cluster: ClusterConfig, network: NetworkConfig, gpus: int) -> int:
    asked = cluster.workers or workers_of(network)
    world = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if world is None:
        one_per_gpu = cluster.device == "cuda" and cluster.name == "local"
        return asked or (gpus if one_per_gpu else WORKERS_WITHOUT_GPUS)
    if cluster.name == "virtual":
        if int(world) == 1:
            return asked or WORKERS_WITHOUT_GPUS
        raise ConfigError(
            f"cluster=virtual hosts all workers in one process, and torchrun started {world}; use "
            f"cluster=local, or {program()} without torchrun"
        )
    if asked not in (None, int(world)):
        raise ConfigError(
            f"cluster.workers={asked}, but torchrun started {world} processes; leave cluster.workers out"
        )
    return int(world)


def _local_workers(cluster: ClusterConfig, gpus: int) -> int:
    """The number of workers on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", cluster.workers or gpus))


def _gpus_serve(run: RunConfig, gpus: int) -> bool:
    """True if `device=auto` selects GPUs: one for every worker here, or one for a virtual cluster.

    Between real workers GPUs communicate over nccl, which can be neither paced nor shaped; gloo needs CPU
    memory.
    """
    if run.cluster.name == "virtual":
        return gpus > 0
    gloo = run.cluster.backend == "gloo" or run.network.name in OVER_GLOO
    return not gloo and gpus > 0 and gpus >= _local_workers(run.cluster, gpus)


def _backend(cluster: ClusterConfig, network: NetworkConfig, gpus: int) -> str:
    """nccl between GPUs, gloo between CPUs; a virtual cluster sends nothing."""
    on_gpus = cluster.device == "cuda"
    if cluster.name == "virtual":
        return "gloo" if cluster.backend == "auto" else cluster.backend
    enough = on_gpus and gpus >= _local_workers(cluster, gpus)
    if cluster.share_device:
        if enough:  # under a launcher
            raise ConfigError(
                "cluster.share_device=true needs more workers than GPUs, and the launcher started "
                f"{_local_workers(cluster, gpus)} here for {gpus}; leave it out"
            )
        return "gloo"
    if cluster.backend == "nccl" and not enough:
        raise ConfigError(
            f"cluster.backend=nccl needs a GPU for each of the {_local_workers(cluster, gpus)} workers, "
            f"there are {gpus if on_gpus else 0}; use cluster.backend=gloo or cluster=virtual"
        )
    if on_gpus and (cluster.backend == "gloo" or not enough):
        raise ConfigError(
            f"cluster.device=cuda needs cluster.backend=nccl and a GPU for each of the "
            f"{_local_workers(cluster, gpus)} workers, there are {gpus}; use cluster.device=cpu or "
            f"cluster=virtual{SHARE if gpus and not enough else ''}"
        )
    if on_gpus and network.name == "paced":
        raise ConfigError(
            "network=paced cannot be used with cluster.device=cuda: nccl sends its own messages; use "
            "cluster.device=cpu or cluster=virtual"
        )
    return "nccl" if on_gpus else "gloo"


REMEDY = {
    "cpu": "install a C++ compiler, then make install",
    "cuda": "put nvcc into PATH, then make install GRADWIRE_CUDA=ON",
}
"""The way to get the compiled kernels of a device."""


def resolve_kernels(kernels: KernelsConfig, device: str, *, timed_task: str | None) -> KernelsConfig:
    """The implementation selected by `kernels` on the resolved `cluster.device`.

    Raises ValueError in one line for one that cannot run there and, if the task measures times
    (`timed_task`), for `auto` without compiled kernels.
    """
    chosen = choose_kernels(kernels.name, device)
    if timed_task is not None and kernels.name == "auto" and chosen == "default":
        raise ValueError(
            f"kernels=auto: there are no compiled kernels for cluster.device={device}, and "
            f"task={timed_task} measures time; {REMEDY[device]}, or ask for the slow definition by "
            "kernels=default"
        )
    return replace(kernels, name=chosen)


CAPTURED = ("ddp", "sharded", "blocks")
"""The parallelisms whose rounds can be captured."""


def check_graphs(run: RunConfig) -> None:
    """Raises ValueError, in one line, if `kernels.graphs=always` is set for a run that cannot use
    captures.
    """
    if run.kernels.graphs != "always":
        return
    reason = _refused_graphs(run)
    if reason is not None:
        raise ValueError(f"kernels.graphs=always: {reason}; use kernels.graphs=auto")


def _refused_graphs(run: RunConfig) -> str | None:
    if run.cluster.share_device:
        return REFUSES_CAPTURE
    if run.cluster.name == "virtual" and run.cluster.gradients == "disk":
        return "cluster.gradients=disk has each round read gradients from other memory"
    if run.parallel.name not in CAPTURED:
        return f"parallel={run.parallel.name} captures no rounds"
    device = torch.device(run.cluster.device)
    with using_kernels(run.kernels.name):
        return refused_graphs(make_codec(**run.codec), device, run.measure.check_hashes)
