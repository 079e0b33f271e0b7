"""The settings of `task=predict`."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.comm.settings import MOST_WORKERS
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.parallel.settings import ParallelConfig
from gradwire.harness.runtime.fields import above, at_least, between
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import SizeConfig, WorldConfig

LEAST_TFLOPS, MOST_TFLOPS = 1e-9, 1e6


@dataclass(frozen=True)
class PredictConfig:
    """A step at a paper's size; TFLOP/s are those of one worker."""

    tensor_parallel: int = at_least(1, 1, MOST_WORKERS)  # workers of a node that share every matrix
    pipeline_parallel: int = at_least(1, 1, MOST_WORKERS)  # stages of the model, on nodes of their own
    sequences: int = at_least(1, 1, 1 << 20)  # that each replica of the model computes with in a step
    # into how many micro-batches a pipeline divides them; null: 4 for each stage
    micro_batches: int | None = at_least(1, None, 1 << 20)
    recompute: bool = False  # the backward pass computes activations again, which counts as work
    baseline_codec: str = "fp32"  # of the uncompressed system, whose weights are exact
    # of a worker while it computes; null: network.compute_s or predict.baseline_tflops says how long it does
    compute_tflops: float | None = between(LEAST_TFLOPS, MOST_TFLOPS, None)
    # what the uncompressed system reaches, measured: the computation follows from it
    baseline_tflops: float | None = between(LEAST_TFLOPS, MOST_TFLOPS, None)
    baseline_step_s: float | None = above(0, None, 1e6)  # likewise, as seconds of its step
    baseline_workers: int | None = at_least(1, None, MOST_WORKERS)  # with how many; null: cluster.workers
    steps: int | None = at_least(1, None, 10**9)  # of the whole training, for its length in days
    printed_tflops: float | None = between(LEAST_TFLOPS, MOST_TFLOPS, None)  # the paper's, to compare with


@dataclass(frozen=True, kw_only=True)
class PredictTask(WorldConfig):
    """A training step that is worked out, not run."""

    model: ModelConfig
    parallel: ParallelConfig
    predict: PredictConfig
    tracking: TrackingConfig
    size: SizeConfig
