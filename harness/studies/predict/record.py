"""`predict.json`: a step at a paper's size, and where its time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from gradwire.harness.network.configured import recorded_text
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord


@dataclass(frozen=True)
class PredictSummary(StudyRecord):
    """All times are modelled, in seconds, of the slowest worker; the first five parts sum to the step."""

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
    step_s: Annotated[float, Figure("step_time_s", "modelled")]
    # forward and backward
    compute_s: Annotated[float, Figure("compute_s", "modelled")]
    # waiting for gradients
    gradients_s: Annotated[float, Figure("gradients_s", "modelled")]
    # waiting for weights
    weights_s: Annotated[float, Figure("weights_s", "modelled")]
    # of a pipeline: waiting for what other stages send
    stages_s: Annotated[float, Figure("stages_s", "modelled")]
    # waiting for tied gradients and the norm, latencies
    other_s: Annotated[float, Figure("other_s", "modelled")]
    # codec work of the slowest worker, hidden or not
    codec_s: Annotated[float, Figure("codec_s", "modelled")]
    # from when gradients first travel until the last is there, without pauses
    gradient_comm_s: Annotated[float, Figure("gradient_comm_s", "modelled")]
    # that all workers of a data-parallel group, or of a pipeline, send
    bytes_by_phase: Annotated[dict[str, int], Figure("bytes_sent", each="case")]
    flops: float  # floating-point operations of a worker's step
    # 1e12 of them per second
    tflops: Annotated[float, Figure("tflops", "modelled")]
    # predict.steps of them
    training_days: Annotated[float | None, Figure("training_days", "modelled")]
    baseline_step_s: float  # of the uncompressed system with the same computation
    # of that step to this one
    over_uncompressed: Annotated[float, Figure("over_uncompressed", "modelled")]
    # the paper's
    printed_tflops: Annotated[float | None, Figure("printed_tflops", "modelled")]
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

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        yield from super().figures(content)
        yield from Figure("error", "modelled").values(content["error"], content)

    def content(self) -> dict[str, Any]:
        return super().content() | {"error": self.error}

    def impossible(self) -> str | None:
        return None if self.step_s > 0 else "has a step that takes no time"


RECORD = PredictSummary
