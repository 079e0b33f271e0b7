"""The settings of `parallel`: how the model is spread over the workers."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.runtime.fields import at_least, one_of


@dataclass(frozen=True)
class ParallelConfig:
    """How the model is spread over the workers; bucket fields are DistributedDataParallel's own."""

    name: str = one_of("ddp")  # ddp: every worker holds the whole model
    bucket_cap_mb: float = at_least(1e-3, 25.0, 65_536)  # MiB of gradients that are synchronized together
    static_graph: bool = False  # the same parameters get gradients in every step
    find_unused_parameters: bool = False  # some parameters may get no gradient in a step
    gradient_as_bucket_view: bool = False  # gradients alias the buckets: saves memory


@dataclass(frozen=True)
class OutsideParallelConfig(ParallelConfig):
    """A parallelism from outside: `parallel=my_module:name`."""

    name: str = ""
