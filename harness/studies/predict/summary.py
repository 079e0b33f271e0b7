"""`predict.json`: a step at a paper's size, and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradwire.harness.network.configured import recorded_text
from gradwire.harness.record.summary import Stored


@dataclass(frozen=True)
class PredictSummary(Stored):
    """All times are modelled, in seconds, of the slowest worker; the first five parts sum to the step."""

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
    step_s: float
    compute_s: float  # forward and backward
    gradients_s: float  # waiting for gradients
    weights_s: float  # waiting for weights
    stages_s: float  # of a pipeline: waiting for what other stages send
    other_s: float  # waiting for tied gradients and the norm, latencies
    codec_s: float  # codec work of the slowest worker, hidden or not
    gradient_comm_s: float  # from when gradients first travel until the last is there, without pauses
    bytes_by_phase: dict[str, int]  # that all workers of a data-parallel group, or of a pipeline, send
    flops: float  # floating-point operations of a worker's step
    tflops: float  # 1e12 of them per second
    training_days: float | None  # predict.steps of them
    baseline_step_s: float  # of the uncompressed system with the same computation
    over_uncompressed: float  # of that step to this one
    printed_tflops: float | None  # the paper's
    left_out: list[str]  # what is not in the times
    provenance: dict[str, Any]

    @property
    def network_text(self) -> str:
        """Its links and that its times are modelled, in words, whatever version wrote `network`."""
        return recorded_text(self.network_settings, "modelled")

    @property
    def error(self) -> float | None:
        """How far `tflops` is from what the paper prints, relative to that."""
        return None if self.printed_tflops is None else self.tflops / self.printed_tflops - 1

    def content(self) -> dict[str, Any]:
        return super().content() | {"error": self.error}

    def impossible(self) -> str | None:
        return None if self.step_s > 0 else "has a step that takes no time"
