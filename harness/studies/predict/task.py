"""`task=predict`: a training step at a paper's size, on the simulated clock, without tensor values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from gradwire.codecs.registry import codec_names, make_codec
from gradwire.harness.comm.topology.registry import placed
from gradwire.harness.config.network_checks import (
    check_codec_times,
    check_network,
    resolve_nodes,
    resolve_workers,
)
from gradwire.harness.config.run_name import codec_name
from gradwire.harness.models.families import FAMILIES
from gradwire.harness.models.folder import settled
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.settings import check as check_model
from gradwire.harness.models.vision import VISION
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.parallel.registry import parallel_kind
from gradwire.harness.parallel.settings import (
    MOST_BUCKET_CAP_MB,
    PASSES_PER_STAGE,
    ParallelConfig,
    PipelineConfig,
)
from gradwire.harness.studies.predict.group import WorkerGroup, group_of
from gradwire.harness.studies.predict.study import PredictTask
from gradwire.harness.studies.study import Measured
from gradwire.harness.timing.simulate.engine import require_engine

MOST_MESSAGES = 1 << 19
"""The largest number of messages in one synchronization of all buckets that is accepted; simulating them
takes a minute or two."""


def resolve(config: PredictTask) -> PredictTask:
    """Fills in workers and nodes; raises ValueError in one line for configurations that cannot be
    predicted.
    """
    require_engine("task=predict")
    network = config.network
    check_network(config)
    if not isinstance(network, SimulatedConfig):
        raise ValueError(
            f"network={network.name} is not a simulated clock, which task=predict needs; use "
            f"network=simulated "
            "or a testbed, e.g. network=sdp4bit_a100"
        )
    config = replace(config, model=settled(config.model))
    check_model(config.model)
    if config.model.is_folder and config.model.family not in FAMILIES:
        raise ValueError(
            f"model.path={config.model.path} is of model_type={config.model.family}, whose layers "
            f"task=predict does not know; use a folder of {', '.join(FAMILIES)}, or a preset, e.g. model=gpt2"
        )
    if config.model.family in VISION:
        raise ValueError(
            f"model={config.model.name}: task=predict counts operations of tokens, and images have none; "
            "use a model for text, e.g. model=gpt2"
        )
    cluster, given = config.cluster, config.predict
    if given.baseline_workers is not None:
        resolve_nodes(network, given.baseline_workers)
    resolved, workers = resolve_workers(network, cluster.workers)
    assert isinstance(resolved, SimulatedConfig)
    network = resolved
    if network.codec_times == "measured":  # the groups' default, which cannot be asked for here
        network = replace(network, codec_times="none")
    cluster = placed(replace(cluster, workers=workers), network, config.topology.name)
    config = replace(config, network=network, cluster=cluster)
    _check_computation(config, network)
    config = _with_micro_batches(config)
    group = group_of(config, workers)
    if given.baseline_workers is not None:
        group_of(config, given.baseline_workers)
    _check_layers(config.model, config.parallel, given.pipeline_parallel)
    check_codec_times(network, config.codec, group.size)
    _check_programs(config, group)
    _check_messages(config, group)
    return config


def _check_computation(config: PredictTask, network: SimulatedConfig) -> None:
    given = config.predict
    ways = {
        "network.compute_s": network.compute_s,
        "predict.compute_tflops": given.compute_tflops,
        "predict.baseline_tflops": given.baseline_tflops,
        "predict.baseline_step_s": given.baseline_step_s,
    }
    given_ways = [f"{key}={value:g}" for key, value in ways.items() if value is not None]
    if not given_ways:
        raise ValueError(
            "no setting gives a worker's computation time in a step; add network.compute_s=<seconds>, "
            "predict.compute_tflops=<TFLOP/s while it computes>, or of the uncompressed system "
            "predict.baseline_tflops=<TFLOP/s> or predict.baseline_step_s=<seconds>"
        )
    if len(given_ways) > 1:
        raise ValueError(f"{' and '.join(given_ways)} contradict each other; leave one of them out")


def _with_micro_batches(config: PredictTask) -> PredictTask:
    """A pipeline's micro-batches, which divide the sequences of a replica; others have none."""
    given, parallel = config.predict, config.parallel
    if not isinstance(parallel, PipelineConfig):
        return config
    if given.pipeline_parallel > 1:
        raise ValueError(
            f"predict.pipeline_parallel={given.pipeline_parallel} contradicts parallel=pipeline, which works "
            f"out all stages; use parallel.stages={given.pipeline_parallel} instead"
        )
    count = given.micro_batches or PASSES_PER_STAGE * parallel.stages
    if given.sequences % count:
        raise ValueError(
            f"predict.sequences={given.sequences} cannot be divided evenly into {count} micro-batches; use "
            f"e.g. predict.sequences={count}, or another predict.micro_batches"
        )
    if count < parallel.stages and parallel.schedule == "1f1b":
        raise ValueError(
            f"predict.micro_batches={count} cannot fill parallel.stages={parallel.stages} with "
            f"parallel.schedule=1f1b; use predict.micro_batches={parallel.stages} or more, or "
            "parallel.schedule=gpipe"
        )
    return replace(config, predict=replace(given, micro_batches=count))


def _check_layers(model: ModelConfig, parallel: ParallelConfig, stages: int) -> None:
    key = "predict.pipeline_parallel"
    if isinstance(parallel, PipelineConfig):
        key, stages = "parallel.stages", parallel.stages
    if model.num_layers % stages:
        raise ValueError(
            f"{key}={stages} does not divide model.num_layers={model.num_layers}; use a divisor of it"
        )


def _check_programs(config: PredictTask, group: WorkerGroup) -> None:
    """Refuses parallelisms and codecs whose steps need tensor values."""
    from gradwire.harness.studies.predict.programs import TRACED
    from gradwire.harness.studies.predict.step import looks_at_values, parallel_setup
    from gradwire.harness.studies.predict.work_out import uncompressed

    if type(config.parallel) not in TRACED:
        raise ValueError(
            f"parallel={config.parallel.name} cannot be predicted; use parallel=ddp, pipeline or sharded"
        )
    kind = parallel_kind(config.parallel.name)
    for parallel, codec in ((config.parallel, config.codec), uncompressed(config)):
        reason = kind.supports(parallel_setup(config, group, parallel, codec))
        if reason is None and looks_at_values(config, parallel, codec):
            able = [name for name in codec_names() if _runs_without_values(config, parallel, name)]
            wrapped = ", ".join(f"codec.{key}" for key in ("ef", "exclude") if codec.get(key))
            reason = (
                f"codec={codec['name']}{f' with {wrapped}' if wrapped else ''} looks at values, of which "
                f"task=predict has none; choose one of {', '.join(able)}"
            )
        if reason is not None:
            raise ValueError(reason)


def _runs_without_values(config: PredictTask, parallel: ParallelConfig, name: str) -> bool:
    from gradwire.harness.studies.predict.step import looks_at_values

    try:
        return not looks_at_values(config, parallel, {"name": name})
    except ValueError:
        return False


def _check_messages(config: PredictTask, group: WorkerGroup) -> None:
    """Refuses predictions that would take hours, estimated from the number of parameters."""
    model, given = config.model, config.predict
    layer = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.intermediate_size
    stages = config.parallel.stages if isinstance(config.parallel, PipelineConfig) else 1
    replicas = group.size // stages
    layers = model.num_layers * layer / (given.pipeline_parallel * stages)
    parameters = layers + model.vocab_size * model.hidden_size
    cap = config.parallel.bucket_cap_mb
    size_mb = parameters / given.tensor_parallel * 4 / 2**20
    buckets, fewest = (max(1.0, size_mb / each) for each in (cap, MOST_BUCKET_CAP_MB))
    codec = make_codec(**config.codec)
    hops = 1 if config.parallel.name == "sharded" else 2
    count = replicas**2 * stages * hops * config.overlap.segments
    if buckets * count <= MOST_MESSAGES or replicas <= 2:
        return
    if fewest * count > MOST_MESSAGES:
        raise ValueError(
            f"cluster.workers={config.cluster.size} makes groups of {replicas}, which send {count} "
            f"messages a bucket with codec={codec.name}; simulating them would take hours, however few "
            "buckets there are; use a smaller cluster.workers, for groups of at most "
            f"{math.isqrt(int(MOST_MESSAGES / fewest / stages / hops / config.overlap.segments))}"
        )
    raise ValueError(
        f"parallel.bucket_cap_mb={cap:g} makes about {buckets:.0f} buckets, each of {count} messages among "
        f"{replicas} workers with codec={codec.name}, which would take hours; use a larger one, up to "
        f"parallel.bucket_cap_mb={MOST_BUCKET_CAP_MB}"
    )


def name(config: PredictTask) -> str:
    """`predict-<model>-<codec>-n<workers>-<network>`."""
    network = config.network
    assert isinstance(network, SimulatedConfig)
    where = network.name if network.preset == "custom" else network.preset
    words = [config.model.name, codec_name(config.codec), f"n{config.cluster.size}", where]
    return "-".join(["predict", *words])


def measure(config: PredictTask, directory: Path) -> Measured:
    """Predicts the step of a resolved configuration."""
    from gradwire.harness.studies.predict.work_out import predict

    return Measured(predict(config, codec_name(config.codec)).to_json())
