"""What is synchronized: real workers and the simulated clock get the same gradients and codecs."""

from __future__ import annotations

import torch
from omegaconf import DictConfig
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.parallel.ddp_setup import make_configured_codec
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.runtime.seeding import derive_seed

WARM_UP = 2
"""Rounds that are not counted: buffers are allocated, and codecs that adapt begin to do so."""

BLOCK = 256
"""Neighbouring coordinates share a scale. Scales are drawn log-normally, because those of gradients
differ."""


def gradient(config: DictConfig, rank: int, device: torch.device) -> Tensor:
    """Draws one rank's gradient from the seed: (coordinates,) float32."""
    generator = torch.Generator().manual_seed(derive_seed(config.seed, "allreduce", rank))
    numel: int = config.allreduce.coordinates
    scales = torch.randn(-(-numel // BLOCK), generator=generator).exp().repeat_interleave(BLOCK)[:numel]
    return (torch.randn(numel, generator=generator) * scales).to(device)


class Rounds:
    """One rank's codec, which synchronizes one round after another."""

    def __init__(self, config: DictConfig, rank: int, device: torch.device) -> None:
        self._codec: Codec = make_configured_codec(config)
        self._x = gradient(config, rank, device)
        self._layout = Layout.flat(self._x.numel(), device=device)
        self._rank, self._size, self._seed = rank, config.cluster.workers, config.seed

    @property
    def numel(self) -> int:
        return self._layout.numel

    def synchronization(self, number: int) -> Collective[Tensor]:
        this_round = Round(number, self._layout, self._rank, self._size, self._seed)
        return synchronization(self._codec, self._x, this_round, check_hashes=False)

    def end(self, number: int) -> None:
        self._codec.end_step(number)
