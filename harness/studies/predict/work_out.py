"""Predicts a step: the part of the model, the group's trace, the computation time, and the resulting
times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from gradwire.harness.network.configured import network_text
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.parallel.settings import ParallelConfig, PipelineConfig, ShardedConfig
from gradwire.harness.record.provenance import provenance
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.predict.group import group_of
from gradwire.harness.studies.predict.model import ModelPart, StagesPart, part_of
from gradwire.harness.studies.predict.step import Traced, calibrated, in_stages, traced
from gradwire.harness.studies.predict.study import PredictSummary, PredictTask
from gradwire.harness.timing.measure.breakdown import measure, union
from gradwire.harness.timing.trace.step import (
    ACTIVATIONS,
    PHASES,
    WEIGHTS,
    Await,
    Compute,
    Post,
    RankTrace,
    TaskTrace,
    task_spans,
)

SECONDS_PER_DAY = 86_400


def uncompressed(config: PredictTask) -> tuple[ParallelConfig, Mapping[str, Any]]:
    """Parallelism and codec of the system without any compression."""
    parallel = config.parallel
    if isinstance(parallel, ShardedConfig):
        parallel = replace(parallel, weights="exact", main="algorithm2")
    same = config.codec["name"] == config.predict.baseline_codec
    return parallel, config.codec if same else {"name": config.predict.baseline_codec}


def predict(config: PredictTask, codec: str) -> PredictSummary:
    """The predicted step of a resolved configuration, whose codec is called `codec`. Raises ValueError for a
    calibration that cannot be met."""
    given, network, workers = config.predict, config.network, config.cluster.size
    assert isinstance(network, SimulatedConfig)
    part, group = worked_out_part(config), group_of(config, workers)
    stages = stages_of(config)
    bare = uncompressed(config)
    is_bare = bare == (config.parallel, config.codec)
    with Progress("predict", 4 - is_bare, "stage") as progress:
        baseline = own = traced(config, group, part, *bare)
        progress.advance("the uncompressed step is traced")
        if not is_bare:
            own = traced(config, group, part, config.parallel, config.codec)
            progress.advance("the compressed step is traced")
        compute_s = network.compute_s
        if given.compute_tflops is not None:
            compute_s = part.flops / given.compute_tflops / 1e12
        if is_calibrated(config):
            compute_s = calibration(config, part, baseline)
        assert compute_s is not None
        progress.advance("the computation is calibrated")
        timed, baseline_s = own.timed(compute_s), baseline.seconds(compute_s)
        progress.advance("the steps are timed")
    times = parts(timed)
    return PredictSummary(
        model=config.model.name,
        codec=codec,
        weights=getattr(config.parallel, "weights", None),
        parallel=config.parallel.name,
        topology=config.topology.name,
        workers=workers,
        tensor_parallel=given.tensor_parallel,
        pipeline_parallel=stages,
        replicas=workers // (given.tensor_parallel * stages),
        parameters=part.parameters,
        coordinates=part.coordinates,
        buckets=own.buckets,
        overlap=config.overlap.enabled,
        network=network_text(network, "modelled"),
        network_settings=asdict(network),
        calibrated=is_calibrated(config),
        step_s=timed.end,
        **times,
        bytes_by_phase=dict(own.sent),
        flops=part.flops,
        tflops=part.flops / timed.end / 1e12,
        training_days=None if given.steps is None else given.steps * timed.end / SECONDS_PER_DAY,
        baseline_step_s=baseline_s,
        over_uncompressed=baseline_s / timed.end,
        printed_tflops=given.printed_tflops,
        left_out=list(left_out(config)),
        provenance=provenance(config.mapping()),
    )


def calibration(config: PredictTask, part: ModelPart, baseline: Traced) -> float:
    """The computation time with which the uncompressed system takes the given time or reaches the given
    TFLOP/s; `baseline` is that system among `cluster.workers`."""
    given = config.predict
    if given.baseline_step_s is not None:
        seconds, key = given.baseline_step_s, f"predict.baseline_step_s={given.baseline_step_s:g}"
    else:
        assert given.baseline_tflops is not None
        seconds = part.flops / given.baseline_tflops / 1e12
        key = f"predict.baseline_tflops={given.baseline_tflops:g}"
    if given.baseline_workers not in (None, config.cluster.size):
        assert given.baseline_workers is not None
        group = group_of(config, given.baseline_workers)
        baseline = traced(config, group, part, *uncompressed(config))
    return calibrated(baseline, seconds, key)


def is_calibrated(config: PredictTask) -> bool:
    """True if the computation time is calibrated by measurements of the uncompressed system."""
    given = config.predict
    return given.baseline_tflops is not None or given.baseline_step_s is not None


def stages_of(config: PredictTask) -> int:
    """The number of stages into which the layers are divided, whether by the parallelism or by the
    prediction."""
    return in_stages(config.parallel) * config.predict.pipeline_parallel


def worked_out_part(config: PredictTask) -> ModelPart:
    """The part of the model whose step is traced; for a pipeline all stages."""
    model, given, parallel = config.model, config.predict, config.parallel
    if not isinstance(parallel, PipelineConfig):
        return part_of(model, given)
    first = part_of(model, replace(given, pipeline_parallel=parallel.stages))
    assert given.micro_batches is not None
    return StagesPart(
        first.shapes,
        first.parameters,
        first.flops,
        model,
        given.tensor_parallel,
        given.sequences // given.micro_batches,
        model.recipe.sequence_length,
    )


WAITS = {
    **dict.fromkeys(PHASES, "gradients_s"),
    WEIGHTS: "weights_s",
    ACTIVATIONS: "stages_s",
}
"""The summary's name for waiting, by the phase of the awaited messages."""


def waits_for(task: TaskTrace) -> str | None:
    """The part of a step that waiting for a collective counts as; None for the rest."""
    phases = [one.phase for one in task.operations if isinstance(one, Post)]
    return WAITS.get(phases[-1]) if phases else None


def parts(own: RankTrace) -> dict[str, float]:
    """The parts of a worker's time, by their names in the summary."""
    kinds = [waits_for(task) for task in own.tasks]
    gradients = [task for task, kind in zip(own.tasks, kinds, strict=True) if kind == "gradients_s"]
    compute_s = 0.0
    waited = {"gradients_s": 0.0, "weights_s": 0.0, "stages_s": 0.0}
    for operation in own.computation:
        if isinstance(operation, Compute):
            compute_s += operation.end - operation.start
        elif isinstance(operation, Await):
            kind = kinds[operation.task]
            if kind is not None:
                waited[kind] += operation.end - operation.start
    spans = [span for task in gradients for span in task_spans(task)]
    codec = [
        (span.start, span.end) for task in own.tasks for span in task_spans(task) if span.kind == "codec"
    ]
    return {
        "compute_s": compute_s,
        **waited,
        "other_s": max(0.0, own.end - compute_s - sum(waited.values())),
        "codec_s": measure(union(codec)),
        "gradient_comm_s": measure(union([(span.start, span.end) for span in spans])),
    }


def left_out(config: PredictTask) -> Iterator[str]:
    """The omitted parts of the time, in words."""
    given, network = config.predict, config.network
    assert isinstance(network, SimulatedConfig)
    known = "; a calibrated computation contains it" if is_calibrated(config) else ""
    if given.tensor_parallel > 1:
        yield f"the messages between workers that share matrices{known}"
    if given.pipeline_parallel > 1:
        yield f"the messages between stages, and their waiting for one another{known}"
    if network.codec_times == "none":
        yield "all codec work"
    elif getattr(config.parallel, "weights", "exact") != "exact":
        yield "quantizing weights and decoding them"
    yield "the update"
