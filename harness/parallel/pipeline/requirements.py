"""What a pipeline needs of a run's settings."""

from __future__ import annotations

from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import make_codec
from gradwire.harness.models.stages import STAGE_PARTS
from gradwire.harness.parallel.interface import ParallelSetup
from gradwire.harness.parallel.settings import PipelineConfig


def supports(setup: ParallelSetup) -> str | None:
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
