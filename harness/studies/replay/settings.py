"""The settings of `task=replay`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradwire.harness.comm.settings import ClusterConfig, TopologyConfig
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.fields import at_least
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import KernelsConfig

SMALLEST_BUCKET_MB, LARGEST_BUCKET_MB = 1e-3, 65_536


@dataclass(frozen=True)
class ReplayConfig:
    """Synchronizing saved gradients."""

    repeats: int = at_least(1, 5, 10_000)  # synchronizations of the same gradients, other random numbers each
    rounds: int = at_least(1, 1, 100_000)  # in each repeat; the last counts: codecs that adapt need some
    # MiB of float32 synchronized together, where the file does not say which buckets there are
    bucket_mb: int | float = at_least(SMALLEST_BUCKET_MB, 25.0, LARGEST_BUCKET_MB)


@dataclass(frozen=True, kw_only=True)
class ReplayTask(RecordedConfig):
    """A codec on saved gradients, without training."""

    gradients: str  # .npz or .safetensors with an array `gradients` (workers, coordinates)
    replay: ReplayConfig
    codec: dict[str, Any]
    topology: TopologyConfig
    cluster: ClusterConfig
    kernels: KernelsConfig
    tracking: TrackingConfig
