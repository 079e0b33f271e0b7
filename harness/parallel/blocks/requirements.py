"""What parallelism by blocks needs of a codec, a topology and its own settings."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import make_codec
from gradwire.harness.models.build import without_values
from gradwire.harness.parallel.blocks.groups import make_blocks
from gradwire.harness.parallel.interface import ParallelSetup
from gradwire.harness.parallel.settings import BlocksConfig, ParallelConfig


def _refused_blocks(parallel: BlocksConfig, setup: ParallelSetup) -> str | None:
    """Why a model has no such blocks; of weights from the hub that is known once they are read."""
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


def supports(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    assert isinstance(setup.parallel, BlocksConfig)
    if setup.parallel.layers and setup.parallel.num_blocks != BlocksConfig.num_blocks:
        return (
            f"parallel.num_blocks={setup.parallel.num_blocks} has no effect beside parallel.layers, which "
            "name the blocks; leave one of them out"
        )
    if setup.parallel.bucket_cap_mb != ParallelConfig.bucket_cap_mb:
        return (
            f"parallel.bucket_cap_mb={setup.parallel.bucket_cap_mb} has no effect on parallel=blocks, whose "
            "blocks are synchronized whole; leave it out, or set parallel.num_blocks"
        )
    reason = _refused_blocks(setup.parallel, setup)
    if reason is not None:
        return reason
    codec = make_codec(**setup.codec)
    if codec.traits.uses_backend:
        return (
            f"codec={codec.name} sends in the order of its calls, and parallel=blocks sends the newest block "
            "first; use codec=fp32, or parallel=ddp"
        )
    reason = codec.supports_stages(1, refines=True)
    if reason is not None:
        return reason
    reason = codec.supports(setup.topology, setup.workers, Layout.flat(1 << 20, device=setup.device))
    if reason is None:
        return None
    named = f"codec={setup.codec['name']}"
    said = reason if reason.startswith(named) else f"{named}: {reason}"
    return f"{said}; given are cluster.workers={setup.workers} and topology={setup.topology}"
