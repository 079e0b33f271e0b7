"""The settings of `task=allreduce`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from gradwire.codecs.fields import LIST
from gradwire.harness.parallel.settings import ParallelConfig, ShardedConfig
from gradwire.harness.runtime.fields import at_least, list_of
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import WorldConfig

COORDINATES = 1 << 23
"""The usual size of the bucket."""


TIMED = ("ddp", "sharded")
"""The parallelisms whose synchronization can be timed."""

READ = ("name", "model_dtype", "weights", "weight_bits", "weight_group")
"""The keys of `parallel` that change what is sent."""


@dataclass(frozen=True)
class AllReduceConfig:
    """One all-reduce, measured and modelled."""

    coordinates: int = at_least(1, COORDINATES, 1 << 33)  # of each worker's gradient, one bucket
    # shapes of the bucket's parameters, for codecs that compress matrices; `coordinates` follows from them
    matrices: list[Any] = list_of(kinds=(LIST,), hint="e.g. [[768,3072],[768]]: a matrix and a vector")
    repeats: int = at_least(1, 10, 100_000)  # rounds that count, after some that do not


@dataclass(frozen=True, kw_only=True)
class AllReduceTask(WorldConfig):
    """One all-reduce between real workers, and on the simulated clock; with `parallel=sharded` a scatter of
    gradients and a gathering of weights."""

    allreduce: AllReduceConfig
    parallel: ParallelConfig
    tracking: TrackingConfig


def sharded(config: AllReduceTask) -> ShardedConfig | None:
    """The settings of sharded data parallelism, if that is what is timed."""
    return config.parallel if isinstance(config.parallel, ShardedConfig) else None


def in_words(settings: ShardedConfig) -> str:
    """How weights are sent: `exact`, or with bits and group, e.g. `qwd-4/2048`."""
    if settings.weights == "exact":
        return settings.weights
    return f"{settings.weights}-{settings.weight_bits}/{settings.weight_group}"


def check_parallel(config: ParallelConfig) -> None:
    """Raises ValueError for a parallelism that is not timed, and for keys of it without an effect here."""
    if config.name not in TIMED:
        raise ValueError(f"parallel={config.name} has no single bucket to time; choose {' or '.join(TIMED)}")
    usual = type(config)(name=config.name)
    for key, value in asdict(config).items():
        if key not in READ and value != getattr(usual, key):
            raise ValueError(
                f"parallel.{key}={value} has no effect on task=allreduce, which has one bucket and updates "
                "nothing; leave it out"
            )
    if isinstance(config, ShardedConfig) and config.weights == "exact":
        for key in ("weight_bits", "weight_group"):
            if getattr(config, key) != getattr(usual, key):
                raise ValueError(
                    f"parallel.{key}={getattr(config, key)} has no effect on parallel.weights=exact; choose "
                    "parallel.weights=qw or qwd, or leave it out"
                )


def with_coordinates(config: AllReduceConfig) -> AllReduceConfig:
    """The settings with `coordinates` as the matrices have them. Raises ValueError for what is no shape, and
    for a number of coordinates that contradicts the shapes."""
    if not config.matrices:
        return config
    said = f"allreduce.matrices={config.matrices}".replace(" ", "")
    for shape in config.matrices:
        if not shape or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
            raise ValueError(
                f"{said} has {shape}, which is no shape; use whole numbers from 1, e.g. [[768,3072],[768]]"
            )
    numel = sum(map(math.prod, config.matrices))
    if config.coordinates not in (COORDINATES, numel):
        raise ValueError(
            f"allreduce.coordinates={config.coordinates} contradicts {said}, which are {numel}; leave it out"
        )
    return replace(config, coordinates=numel)
