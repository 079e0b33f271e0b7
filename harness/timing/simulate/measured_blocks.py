"""A run's blocks as measured, to be given to a simulated clock: parameters and mean seconds of passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire.harness.timing.simulate.blocks import BACKWARD, FORWARD, ComputeBlock
from gradwire.harness.timing.simulate.compute import block_sizes
from gradwire.harness.timing.trace.step import Compute, StepTrace, block_pass_of


def measured_blocks(steps: Iterable[StepTrace]) -> tuple[ComputeBlock, ...]:
    """The blocks of the passes, in forward order; seconds are means over steps and ranks. Empty if passes
    were by buckets or stages.

    The time that a block's forward pass waits is excluded; the update before it is included.
    """
    seconds: dict[tuple[str, int], float] = {}
    sizes: Sequence[int] = ()
    count = 0
    for own in (own for step in steps for own in step.values()):
        count, sizes = count + 1, block_sizes(own)
        for one in own.computation:
            if isinstance(one, Compute) and (at := block_pass_of(one.label)) is not None:
                seconds[at] = seconds.get(at, 0.0) + one.end - one.start
    return tuple(
        ComputeBlock(
            size, seconds.get((FORWARD, block), 0.0) / count, seconds.get((BACKWARD, block), 0.0) / count
        )
        for block, size in enumerate(sizes)
    )


def as_settings(blocks: Sequence[ComputeBlock]) -> str:
    """The keys that give these blocks to `network=simulated`, in the form typed on a command line."""
    forward, backward = sum(block.forward_s for block in blocks), sum(block.backward_s for block in blocks)
    rows = ",".join(
        f"[{block.parameters},{block.forward_s / forward:.4f},{block.backward_s / backward:.4f}]"
        for block in blocks
    )
    compute_s = forward + backward
    return (
        f"network.compute_s={compute_s:.4g} network.forward_share={forward / compute_s:.4f} "
        f"'network.blocks=[{rows}]'"
    )
