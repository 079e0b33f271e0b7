"""`task=predict`: its settings and its record, `predict.json`, with the parts of a step's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from gradwire.codecs.fields import above, at_least, between
from gradwire.harness.comm.settings import MOST_WORKERS
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.parallel.settings import ParallelConfig
from gradwire.harness.record.figures import Figure, StudyRecord
from gradwire.harness.studies.study import Study
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
    """A training step that is predicted, not run."""

    model: ModelConfig
    parallel: ParallelConfig
    predict: PredictConfig
    tracking: TrackingConfig
    size: SizeConfig


@dataclass(frozen=True)
class PredictSummary(StudyRecord):
    """The predicted step. All times are modelled, in seconds, of the slowest worker; the first five parts sum
    to the step."""

    file: ClassVar[str] = "predict.json"

    model: str
    codec: str  # with its bits
    weights: str | None  # parallel.weights; null where none are gathered
    parallel: str
    topology: str
    workers: int
    tensor_parallel: int
    pipeline_parallel: int
    replicas: int  # workers / tensor_parallel / pipeline_parallel
    parameters: int  # of the whole model
    coordinates: int  # of a worker's part
    buckets: int
    overlap: bool  # gradients are sent while backward runs
    network: str  # in words
    network_settings: dict[str, Any]
    calibrated: bool  # whether the computation follows from predict.baseline_tflops, or was given
    step_s: Annotated[float, Figure("step_time_s", "modelled", column=1)]
    # forward and backward
    compute_s: Annotated[float, Figure("compute_s", "modelled", column=2)]
    # waiting for gradients
    gradients_s: Annotated[float, Figure("gradients_s", "modelled", column=3)]
    # waiting for weights
    weights_s: Annotated[float, Figure("weights_s", "modelled", column=4)]
    # of a pipeline: waiting for what other stages send
    stages_s: Annotated[float, Figure("stages_s", "modelled", column=5)]
    # waiting for tied gradients and the norm, latencies
    other_s: Annotated[float, Figure("other_s", "modelled")]
    # codec work of the slowest worker, hidden or not
    codec_s: Annotated[float, Figure("codec_s", "modelled", column=6)]
    # from when gradients first travel until the last is there, without pauses
    gradient_comm_s: Annotated[float, Figure("gradient_comm_s", "modelled", column=7)]
    # that all workers of a data-parallel group, or of a pipeline, send
    bytes_by_phase: Annotated[dict[str, int], Figure("bytes_sent", each="case")]
    flops: float  # floating-point operations of a worker's step
    # 1e12 of them per second
    tflops: Annotated[float, Figure("tflops", "modelled", column=9)]
    # predict.steps of them
    training_days: Annotated[float | None, Figure("training_days", "modelled", column=8)]
    baseline_step_s: float  # of the uncompressed system with the same computation
    # of that step to this one
    over_uncompressed: Annotated[float, Figure("over_uncompressed", "modelled", column=10)]
    # the paper's
    printed_tflops: Annotated[float | None, Figure("printed_tflops", "modelled", column=11)]
    left_out: list[str]  # what is not in the times
    provenance: dict[str, Any]

    @property
    def network_text(self) -> str:
        """Its links and the note that its times are modelled, in words, for any version of `network`."""
        return recorded_text(self.network_settings, "modelled")

    @property
    def error(self) -> Annotated[float | None, Figure("error", "modelled", column=12)]:
        """The relative difference of `tflops` from the paper's figure."""
        return None if self.printed_tflops is None else self.tflops / self.printed_tflops - 1

    def impossible(self) -> str | None:
        return None if self.step_s > 0 else "has a step that takes no time"


STUDY = Study(
    PredictTask,
    PredictSummary,
    "gradwire.harness.studies.predict.task",
    "gradwire.harness.studies.predict.compare",
)
