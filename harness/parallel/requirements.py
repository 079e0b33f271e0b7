"""The reasons why a run cannot use a parallelism because of its codec, its topology or the parallelism's
settings."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import codec_names, make_codec
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.models.build import without_values
from gradwire.harness.models.stages import STAGE_PARTS
from gradwire.harness.parallel.blocks.groups import make_blocks
from gradwire.harness.parallel.interface import ParallelSetup
from gradwire.harness.parallel.settings import (
    BlocksConfig,
    DataParallelConfig,
    PipelineConfig,
    ShardedConfig,
)


def ddp_refusal(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    assert isinstance(setup.parallel, DataParallelConfig)
    if setup.parallel.static_graph and setup.accumulation > 1:
        return (
            "parallel.static_graph=true cannot be combined with train.accumulation="
            f"{setup.accumulation}: DistributedDataParallel loses gradients; use static_graph=false"
        )
    codec = make_codec(**setup.codec)
    # Buckets are not known yet; the codec is asked again after warm-up.
    bucket = Layout.flat(1 << 20, device=setup.device)
    return codec.supports_stages(1) or _codec_refusal(codec, setup, bucket)


def blocks_refusal(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    assert isinstance(setup.parallel, BlocksConfig)
    reason = _refused_blocks(setup.parallel, setup)
    if reason is not None:
        return reason
    codec = make_codec(**setup.codec)
    if codec.traits.uses_backend:
        return (
            f"codec={codec.name} sends in the order of its calls, and parallel=blocks sends the newest block "
            "first; use codec=fp32, or parallel=ddp"
        )
    bucket = Layout.flat(1 << 20, device=setup.device)
    return codec.supports_stages(1, refines=True) or _codec_refusal(codec, setup, bucket)


def _refused_blocks(parallel: BlocksConfig, setup: ParallelSetup) -> str | None:
    """The reason why a model cannot be divided into these blocks; None if it can. For weights from the hub
    this is only known after loading them."""
    if setup.model.weights != "random" and setup.model.path is None:
        return None
    model = without_values(setup.model)
    try:
        blocks = make_blocks(model, parallel.num_blocks, parallel.layers)
    except ValueError as error:
        return str(error)
    globs = setup.codec.get("exclude", ())
    if not make_codec(**setup.codec).refines:
        return None
    for block in blocks:
        if all(any(fnmatchcase(name, glob) for glob in globs) for name in block.parameters):
            return (
                f"codec.exclude={list(globs)} takes all of block {block.number}, of which "
                f"codec={setup.codec['name']} would see nothing; exclude less, or choose other blocks"
            )
    return None


def sharded_refusal(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    assert isinstance(setup.parallel, ShardedConfig)
    if setup.optimizer.name == "sgd":
        return (
            "train.optimizer=sgd: parallel=sharded shards the two moments of Adam; use "
            "train.optimizer=adamw or adam, or parallel=ddp"
        )
    codec = make_codec(**setup.codec)
    bucket = Layout.flat(1 << 20, device=setup.device)
    return scatter_refusal(setup.parallel, codec, setup.topology, setup.workers, bucket)


def scatter_refusal(
    config: ShardedConfig, codec: Codec, topology: str, workers: int, bucket: Layout
) -> str | None:
    """None, or the reason why buckets like `bucket` cannot be scattered and gathered, in one line with the
    fix."""
    if config.main == "algorithm4" and config.weights == "exact":
        return (
            "parallel.main=algorithm4 is for quantized weights, and parallel.weights=exact are not; use "
            "parallel.weights=qwd or qw, or leave parallel.main out"
        )
    if not codec.scatters:
        return (
            f"codec={codec.name} has no scatter, which parallel=sharded needs; choose one of "
            f"{', '.join(codecs_with_scatter())}, or use parallel=ddp"
        )
    if workers > 1 and not make_schedule(topology, workers).sums_on_the_way:
        names = ", ".join(name for name in TOPOLOGIES if make_schedule(name, workers).sums_on_the_way)
        return (
            f"topology={topology} computes no partial sums and has no reduce-scatter, which "
            f"parallel=sharded needs; choose one of {names}"
        )
    return _in_words(codec.supports(topology, workers, bucket), codec.name, topology, workers)


def codecs_with_scatter() -> list[str]:
    """The codecs that can leave a shard of the mean on each rank."""
    return [name for name in codec_names() if make_codec(name).scatters]


def pipeline_refusal(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    config = setup.parallel
    assert isinstance(config, PipelineConfig)
    stages, layers, workers = config.stages, setup.model.num_layers, setup.workers
    if setup.model.family not in STAGE_PARTS:
        return (
            f"model={setup.model.name} cannot be cut into stages: its family, {setup.model.family}, is none "
            f"of {', '.join(STAGE_PARTS)}; use a model of these, or parallel=ddp"
        )
    if workers % stages:
        return (
            f"parallel.stages={stages} does not divide cluster.workers={workers}; use a multiple of {stages} "
            "workers, or other stages"
        )
    if layers % stages:
        return (
            f"parallel.stages={stages} does not divide the {layers} layers of model={setup.model.name}; use "
            f"parallel.stages={_divisors(layers, workers)}, or another model.num_layers"
        )
    if config.schedule == "1f1b" and setup.accumulation < stages:
        return (
            f"train.accumulation={setup.accumulation} micro-batches cannot fill parallel.stages={stages} "
            f"with parallel.schedule=1f1b; use train.accumulation={stages} or more, or "
            "parallel.schedule=gpipe"
        )
    codec = make_codec(**setup.codec)
    if codec.traits.uses_backend and stages > 1:
        return f"codec={codec.name} sums over all ranks, and not over a stage's; use codec=fp32"
    reason = codec.supports_stages(stages)
    if reason is not None:
        return reason
    bucket = Layout.flat(1 << 20, device=setup.device)
    reason = codec.supports(setup.topology, workers // stages, bucket)
    return reason and f"{reason}; given are cluster.workers={workers} and parallel.stages={stages}"


def _divisors(layers: int, workers: int) -> str:
    common = [count for count in range(2, workers + 1) if layers % count == 0 == workers % count]
    return " or ".join(map(str, common or [1]))


def _codec_refusal(codec: Codec, setup: ParallelSetup, bucket: Layout) -> str | None:
    reason = codec.supports(setup.topology, setup.workers, bucket)
    return _in_words(reason, setup.codec["name"], setup.topology, setup.workers)


def _in_words(reason: str | None, codec: str, topology: str, workers: int) -> str | None:
    """A codec's own reason, prefixed with the settings that it depends on."""
    if reason is None:
        return None
    reason = reason if reason.startswith(f"codec={codec}") else f"codec={codec}: {reason}"
    return f"{reason}; given are cluster.workers={workers} and topology={topology}"
