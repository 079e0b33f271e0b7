"""The settings of `parallel`: how the model is spread over the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import LIST, at_least, list_of, one_of
from gradwire.codecs.options.quantized import BITS, GROUPS

MOST_BUCKET_CAP_MB = 65_536

PASSES_PER_STAGE = 4
"""The default number of micro-batches of a pipeline for each of its stages."""


@dataclass(frozen=True)
class ParallelConfig:
    """The parallelism: the spread of the model over the workers."""

    name: str
    # MiB of gradients that are synchronized together
    bucket_cap_mb: float = at_least(1e-3, 25.0, MOST_BUCKET_CAP_MB)


@dataclass(frozen=True)
class DataParallelConfig(ParallelConfig):
    """Every worker holds the whole model; the fields are DistributedDataParallel's own."""

    name: str = one_of("ddp")  # ddp: every worker holds the whole model
    static_graph: bool = False  # the same parameters get gradients in every step
    find_unused_parameters: bool = False  # some parameters may get no gradient in a step
    gradient_as_bucket_view: bool = False  # gradients alias the buckets: saves memory


@dataclass(frozen=True)
class ShardedConfig(ParallelConfig):
    """Every worker holds the model's weights, and a shard of the main weights and moments."""

    name: str = one_of("sharded")  # sharded: every worker updates a shard of the weights
    model_dtype: str = one_of("float32", "bfloat16")  # of the weights that forward and backward use
    # what workers send one another after an update: `exact` weights in the model's dtype, `qw` quantized
    # weights, `qwd` the quantized differences between main weights and model weights
    weights: str = one_of("exact", "qw", "qwd")
    weight_bits: int = one_of(*BITS, default=4)  # of a quantized weight or difference
    weight_group: int = one_of(*GROUPS, default=2048)  # of them that share a scale
    # algorithm2: main weights keep what quantization has lost; algorithm4: there are none, and an update
    # begins with the model's weights
    main: str = one_of("algorithm2", "algorithm4")


@dataclass(frozen=True)
class PipelineConfig(ParallelConfig):
    """Every worker holds some consecutive layers; a step's micro-batches are `train.accumulation`."""

    name: str = one_of("pipeline")  # pipeline: every worker holds a stage, and passes activations on
    stages: int = at_least(1, 2, 1024)  # into which the layers are divided; must divide the workers, too
    # in which order a stage computes: `1f1b` one micro-batch backward after each forward, as early as it can;
    # `gpipe` all forward, then all backward
    schedule: str = one_of("1f1b", "gpipe")


@dataclass(frozen=True)
class BlocksConfig(ParallelConfig):
    """Every worker holds the whole model, and synchronizes and updates it block by block of layers."""

    name: str = one_of("blocks")  # blocks: groups of layers, each updated just before it is used again
    num_blocks: int = at_least(1, 4, 64)  # of nearly the same size
    # [[glob, ...], ...]: the layers of each block in the order of the forward pass, instead of num_blocks
    layers: list[Any] = list_of(kinds=(LIST,), hint="e.g. [[*wte,*wpe,*h.0],[*h.1,*ln_f]]")

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self.layers) or self.num_blocks


PARALLEL_SETTINGS: Mapping[str, type[ParallelConfig]] = {
    "blocks": BlocksConfig,
    "ddp": DataParallelConfig,
    "pipeline": PipelineConfig,
    "sharded": ShardedConfig,
}
"""The settings of this package's parallelisms, by name."""


@dataclass(frozen=True)
class OutsideParallelConfig(DataParallelConfig):
    """A parallelism from another package: `parallel=my_module:name`."""

    name: str = ""
