"""What sharded data parallelism needs of a codec, a topology and its own settings."""

from __future__ import annotations

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import codec_names, make_codec
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.parallel.settings import ShardedConfig


def refusal(config: ShardedConfig, codec: Codec, topology: str, workers: int, bucket: Layout) -> str | None:
    """Returns None, or the reason why buckets like `bucket` cannot be scattered and gathered, in one line
    with the fix."""
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
            f"topology={topology} sums nothing on the way and has no reduce-scatter, which "
            f"parallel=sharded needs; choose one of {names}"
        )
    reason = codec.supports(topology, workers, bucket)
    if reason is None:
        return None
    given = f"given are cluster.workers={workers} and topology={topology}"
    named = f"codec={codec.name}"
    return f"{reason if reason.startswith(named) else f'{named}: {reason}'}; {given}"


def codecs_with_scatter() -> list[str]:
    """The codecs that can leave each rank with its shard of the mean."""
    return [name for name in codec_names() if make_codec(name).scatters]
