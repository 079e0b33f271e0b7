"""Works a step out: the part of the model, the group's trace, the computation, the times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from gradwire.harness.network.configured import network_text
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.parallel.settings import ParallelConfig, ShardedConfig
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.predict.group import group_of
from gradwire.harness.studies.predict.model import Part, part_of
from gradwire.harness.studies.predict.settings import PredictTask
from gradwire.harness.studies.predict.step import Traced, calibrated, traced
from gradwire.harness.studies.predict.summary import PredictSummary
from gradwire.harness.timing.measure.intervals import measure, union
from gradwire.harness.timing.trace.step import Await, Compute, RankTrace, task_spans


def uncompressed(config: PredictTask) -> tuple[ParallelConfig, Mapping[str, Any]]:
    """Parallelism and codec of the system that nothing is compressed in."""
    parallel = config.parallel
    if isinstance(parallel, ShardedConfig):
        parallel = replace(parallel, weights="exact", main="algorithm2")
    same = config.codec["name"] == config.predict.baseline_codec
    return parallel, config.codec if same else {"name": config.predict.baseline_codec}


def predict(config: PredictTask, codec: str) -> PredictSummary:
    """The step of a resolved configuration, whose codec is called `codec`. ValueError for a calibration that
    cannot be met."""
    given, network, workers = config.predict, config.network, config.cluster.size
    assert isinstance(network, SimulatedConfig)
    part, group = part_of(config.model, given), group_of(config, workers)
    bare = uncompressed(config)
    is_bare = bare == (config.parallel, config.codec)
    baseline = traced(config, group, part, *bare)
    own = baseline if is_bare else traced(config, group, part, config.parallel, config.codec)
    compute_s = network.compute_s
    if given.compute_tflops is not None:
        compute_s = part.flops / given.compute_tflops / 1e12
    if given.baseline_tflops is not None:
        compute_s = calibration(config, part, baseline)
    assert compute_s is not None
    timed, baseline_s = own.timed(compute_s), baseline.seconds(compute_s)
    times = parts(timed)
    return PredictSummary(
        model=config.model.name,
        codec=codec,
        weights=getattr(config.parallel, "weights", None),
        parallel=config.parallel.name,
        topology=config.topology.name,
        workers=workers,
        tensor_parallel=given.tensor_parallel,
        pipeline_parallel=given.pipeline_parallel,
        replicas=group.size,
        parameters=part.parameters,
        coordinates=part.coordinates,
        buckets=own.buckets,
        overlap=config.overlap.enabled,
        network=network_text(network),
        network_settings=asdict(network),
        calibrated=given.baseline_tflops is not None,
        step_s=timed.end,
        **times,
        bytes_by_phase=dict(own.sent),
        flops=part.flops,
        tflops=part.flops / timed.end / 1e12,
        baseline_step_s=baseline_s,
        over_uncompressed=baseline_s / timed.end,
        printed_tflops=given.printed_tflops,
        left_out=list(left_out(config)),
        provenance=provenance(config.mapping()),
    )


def calibration(config: PredictTask, part: Part, baseline: Traced) -> float:
    """The computation with which the uncompressed system does as many TFLOP/s as it is said to; `baseline` is
    that system among `cluster.workers`."""
    given = config.predict
    assert given.baseline_tflops is not None
    said = f"predict.baseline_tflops={given.baseline_tflops:g}"
    if given.baseline_workers not in (None, config.cluster.size):
        assert given.baseline_workers is not None
        group = group_of(config, given.baseline_workers)
        baseline = traced(config, group, part, *uncompressed(config))
    return calibrated(baseline, part.flops / given.baseline_tflops / 1e12, said)


def parts(own: RankTrace) -> dict[str, float]:
    """Where a worker's time goes, by the names in the summary."""
    gradients = own.tasks[: len(own.passes)]
    compute_s = 0.0
    waited = {"gradients_s": 0.0, "weights_s": 0.0}
    for operation in own.computation:
        if isinstance(operation, Compute):
            compute_s += operation.end - operation.start
        elif isinstance(operation, Await):
            seconds = operation.end - operation.start
            if operation.task < len(gradients):
                waited["gradients_s"] += seconds
            elif operation.task > len(gradients):  # in between is the norm
                waited["weights_s"] += seconds
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
    """What the times do not have, in words."""
    given, network = config.predict, config.network
    assert isinstance(network, SimulatedConfig)
    known = "" if given.baseline_tflops is None else "; a calibrated computation contains it"
    if given.tensor_parallel > 1:
        yield f"what workers that share matrices send one another{known}"
    if given.pipeline_parallel > 1:
        yield f"what stages send one another, and their waiting for one another{known}"
    if network.codec_times == "none":
        yield "all codec work"
    elif getattr(config.parallel, "weights", "exact") != "exact":
        yield "quantizing weights and decoding them"
    yield "the update"
