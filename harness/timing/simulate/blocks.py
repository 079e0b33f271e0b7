"""Given computation times: the duration of each block's passes, and random factors on them.

This module does not depend on traces or tensors, because both `task=simulate` and the simulated clock of
training use it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradwire.harness.network.settings import FORWARD_SHARE, SimulatedConfig
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.timing.trace.step import STAGE_PASSES

FORWARD, BACKWARD = STAGE_PASSES
"""The passes of a block."""


class ComputeBlock(NamedTuple):
    """A block of the model: its number of parameters, and the seconds of its passes before any factor."""

    parameters: int
    forward_s: float
    backward_s: float


def blocks_in_time(
    rows: Sequence[Sequence[Any]], compute_s: float, forward_share: float = FORWARD_SHARE
) -> tuple[ComputeBlock, ...]:
    """The blocks of a validated `network.blocks`, in the order of the forward pass.

    All forward passes together take `forward_share` of `compute_s` seconds and all backward passes the rest;
    each column of shares is divided by its sum.
    """
    forward = sum(float(row[1]) for row in rows)
    backward = sum(float(row[2]) for row in rows)
    return tuple(
        ComputeBlock(
            int(parameters),
            compute_s * forward_share * float(of_forward) / forward,
            compute_s * (1 - forward_share) * float(of_backward) / backward,
        )
        for parameters, of_forward, of_backward in rows
    )


def blocks_of(network: SimulatedConfig, compute_s: float) -> tuple[ComputeBlock, ...]:
    """The blocks of a validated network, empty if it has none; `compute_s` is the network's own or a
    task's.
    """
    return blocks_in_time(network.blocks, compute_s, network.forward_share)


@dataclass(frozen=True)
class Variation:
    """Random scaling of a rank's compute times.

    Factors are uniform in [1 − `jitter`, 1 + `jitter`]: with `jitter_per="step"` one for the whole
    computation of a rank in a step, with `"block"` one for each pass of each block. With probability
    `straggler_share` a rank is a straggler in a step, and its whole computation takes `straggler_factor`
    times as long; with a `straggler_range` (low, high) its factor is uniform in that range, and jitter does
    not apply to it.

    Every factor is a pure function of (seed, step, rank) or (seed, step, rank, block, pass), whatever else is
    simulated. The choice of stragglers does not depend on the jitter.
    """

    jitter: float = 0.0
    straggler_share: float = 0.0
    straggler_factor: float = 1.0
    seed: int = 0
    jitter_per: str = "step"
    straggler_range: tuple[float, float] | None = None

    @classmethod
    def of(cls, network: SimulatedConfig, seed: int) -> Variation:
        """The variation of a validated network's compute times."""
        return cls(
            network.jitter,
            network.straggler_share,
            network.straggler_factor,
            seed,
            network.jitter_per,
            straggler_range(network),
        )

    def factor(self, step: int, rank: int) -> float:
        """The factor of work outside of blocks, and of all passes unless jitter is per block."""
        slowness, jitter = self._drawn(step, rank)
        return slowness if jitter is None or self.jitter_per == "block" else slowness * jitter

    def block_factor(self, step: int, rank: int, block: int, direction: str) -> float:
        """The factor of a block's pass; `direction` is `FORWARD` or `BACKWARD`."""
        slowness, jitter = self._drawn(step, rank)
        if jitter is not None and self.jitter_per == "block":
            drawn = random.Random(derive_seed(self.seed, "compute", step, rank, block, direction))
            jitter = self._jitter(drawn)
        return slowness if jitter is None else slowness * jitter

    def _drawn(self, step: int, rank: int) -> tuple[float, float | None]:
        """A rank's factors in a step: as a straggler (1 if it is none), and by jitter per step (None if
        jitter does not apply)."""
        if not self.jitter and not self.straggler_share:
            return 1.0, None
        drawn = random.Random(derive_seed(self.seed, "compute", step, rank))
        jitter = self._jitter(drawn)
        if drawn.random() >= self.straggler_share:
            return 1.0, jitter
        if self.straggler_range is None:
            return self.straggler_factor, jitter
        low, high = self.straggler_range
        return low + (high - low) * drawn.random(), None

    def _jitter(self, drawn: random.Random) -> float:
        return 1 + self.jitter * (2 * drawn.random() - 1)


def straggler_range(network: SimulatedConfig) -> tuple[float, float] | None:
    """The validated setting; None if it is not set."""
    if not network.straggler_range:
        return None
    low, high = network.straggler_range
    return low, high
