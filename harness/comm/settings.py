"""The settings of `topology`, `overlap` and `cluster`: the workers, and how they communicate."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.fields import at_least, between, one_of

MOST_WORKERS = 1024
"""The largest number of workers of a real or virtual cluster; a schedule for more takes minutes to make."""

MOST_COMMUNICATORS = 2
"""Buckets in flight on NCCL. NCCL matches messages by order, so each bucket in flight needs a communicator,
which takes memory. With two, a bucket's statistics travel while the payload of the bucket before does."""


GRAPHS = ("auto", "always", "never")
"""Rounds that are captured in CUDA graphs: those that can be, all of them (refusing others), or none."""


@dataclass(frozen=True)
class TopologyConfig:
    """The topology: which rank sends which chunks to which."""

    name: str = "ring"  # a key of harness.comm.topology.registry.TOPOLOGIES


@dataclass(frozen=True)
class OverlapConfig:
    """Synchronizing while the backward pass is still running."""

    enabled: bool = True  # false: all buckets are synchronized after the backward pass
    buckets: int = at_least(1, 2, 64)  # buckets in flight at once, per worker
    # segments per message: encoding one overlaps sending the previous one
    segments: int = at_least(1, 1, 1024)


@dataclass(frozen=True)
class ClusterConfig:
    """The workers: real processes (`local`) or all in one process under a simulated clock (`virtual`)."""

    name: str = one_of("local", "virtual")
    # null: the number of GPUs; 4 without any or in one process
    workers: int | None = at_least(1, None, MOST_WORKERS)
    # consecutive workers on each node, real or logical; null: a two-level network's, torchrun's on each
    # machine, else all
    ranks_per_node: int | None = at_least(1, None, MOST_WORKERS)
    backend: str = one_of("auto", "gloo", "nccl")  # auto: nccl where every worker has a GPU, else gloo
    device: str = one_of("auto", "cpu", "cuda")  # auto: cuda where there is a GPU
    # local: more workers than GPUs, to try things out: they share them, and send through host memory
    share_device: bool = False
    timeout_s: float = at_least(0.1, 120.0, 604_800)  # a worker silent for this long counts as lost
    # end the run, with all ranks' stacks, if no rank progresses for so many seconds; null: never (debugging)
    hang_s: float | None = between(1, 1e6, 1800.0)
    restarts: int = between(0, 1000, 0)  # most automatic restarts after a rank is lost or hangs
    # virtual: where gradients wait to be synchronized; auto: on disk if they need half of the free memory
    gradients: str = one_of("auto", "memory", "disk")

    @property
    def size(self) -> int:
        """The number of workers of a validated configuration."""
        assert self.workers is not None
        return self.workers
