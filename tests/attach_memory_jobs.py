"""Jobs on pool workers: models alike but for how their parameters lie in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import attach_jobs as jobs
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

STEPS = 3

CLOCK = "codec/clock"
"""The key of the codec's times, which differ from run to run."""


class Outcome(NamedTuple):
    """A rank's mean gradients after each step, the last one's vNMSE, and the codec's state before that."""

    means: list[bytes]
    vnmse: float | None
    state: dict[str, Any]


class Formats(nn.Module):
    """Parameters of several dimensions, in the order of their shapes or `permuted`. The gradients are given
    by rank and step, to the bit."""

    def __init__(self, permuted: bool) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(40, 48))
        self.vector = nn.Parameter(torch.randn(40))
        self.image = nn.Parameter(torch.randn(8, 6, 3, 3))
        self.cube = nn.Parameter(torch.randn(24, 5, 6))
        if permuted:
            self.matrix.data = self.matrix.data.t().contiguous().t()
            self.image.data = self.image.data.to(memory_format=torch.channels_last)
            self.cube.data = self.cube.data.permute(1, 2, 0).contiguous().permute(2, 0, 1)

    def forward(self, rank: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        found = torch.zeros(())
        for parameter in self.parameters():
            given = torch.randn(parameter.shape, generator=generator)
            found = found + (parameter * given).sum()
        return found


def _wrapped(permuted: bool, **ddp: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Formats(permuted), bucket_cap_mb=0.008, **ddp)


def _mean(model: DistributedDataParallel, rank: int, step: int) -> bytes:
    model.zero_grad()
    model(rank, step).backward()
    return jobs.gradients(model)


def _run(
    model: DistributedDataParallel,
    rank: int,
    options: dict[str, Any],
    given: dict[str, Tensor] | None = None,
) -> tuple[Outcome, dict[str, Tensor]]:
    """Takes STEPS steps, and one more from the state after them, or from a `given` one."""
    with gradwire.attach(model, check_hashes=True, **options) as synchronizer:
        means = [_mean(model, rank, step) for step in range(STEPS)]
        state = synchronizer.state_dict()
        if given is not None:
            synchronizer.load_state_dict(given)
        synchronizer.measure_vnmse()
        means.append(_mean(model, rank, STEPS))
        own = {
            key: value.tolist() for key, value in state.items() if key.startswith("codec/") and key != CLOCK
        }
        return Outcome(means, synchronizer.vnmse, own), state


def in_both_orders(
    rank: int, size: int, cases: list[dict[str, Any]], ddp: dict[str, Any]
) -> list[tuple[Outcome, Outcome]]:
    """The outcome of each codec with contiguous parameters, and with permuted ones, whose last step begins
    with the state of the contiguous ones."""
    found = []
    for options in cases:
        plain, state = _run(_wrapped(False, **ddp), rank, options)
        permuted, _ = _run(_wrapped(True, **ddp), rank, options, state)
        found.append((plain, permuted))
    return found


def in_orders_of_their_own(
    rank: int, size: int, cases: list[dict[str, Any]]
) -> list[tuple[Outcome, Outcome]]:
    """The outcome of each codec with contiguous parameters, and with those of the last rank permuted."""
    return [
        (
            _run(_wrapped(False), rank, options)[0],
            _run(_wrapped(rank == size - 1, init_sync=False), rank, options)[0],
        )
        for options in cases
    ]


def rank_one(rank: int, size: int, options: list[dict[str, Any]]) -> list[float | None]:
    """vNMSE of gradients that are one outer product, of a weight that is stored transposed."""
    found = []
    for each in options:
        torch.manual_seed(0)
        layer = nn.Linear(40, 64, bias=False)
        layer.weight.data = layer.weight.data.t().contiguous().t()
        model = DistributedDataParallel(layer)
        with gradwire.attach(model, **each) as synchronizer:
            for _ in range(3):
                synchronizer.measure_vnmse()
                (model(torch.arange(1.0, 41.0)) * torch.arange(1.0, 65.0)).sum().backward()
                model.zero_grad()
            found.append(synchronizer.vnmse)
    return found
