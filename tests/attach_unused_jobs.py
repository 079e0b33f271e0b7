"""Jobs of ranks whose models have a layer that some passes do not use, and of ranks that run out of data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

ROWS, COLUMNS = 6, 5

KEPT = ("codec/residual/at_times.weight", "codec/error/at_times.weight")
"""The residuals and errors that codecs keep of the second layer."""


class TwoLayers(nn.Module):
    """Two layers, the second of which a pass uses if `used` is true."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(COLUMNS, ROWS, bias=False)
        self.at_times = nn.Linear(COLUMNS, ROWS, bias=False)

    def forward(self, x: Tensor, used: bool) -> Tensor:
        found: Tensor = self.always(x)
        return found + self.at_times(x) if used else found


def what_is_lost(
    rank: int, size: int, patterns: list[list[str]], attach: dict[str, Any], ddp: dict[str, Any]
) -> list[float]:
    """For each of `patterns`, the share of the second layer's gradients that neither arrived nor is kept.

    A pattern has a word for each rank, with a letter for each pass: `u`sed; `-` not used; `f`rozen; `a` used
    in the first of two micro-batches, of which the second alone is synchronized; `s` used, and skipped.
    """
    return [_lost(rank, words[rank], attach, ddp) for words in patterns]


def _lost(rank: int, letters: str, attach: dict[str, Any], ddp: dict[str, Any]) -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoLayers(), find_unused_parameters=True, **ddp)
    layer: Any = model.module.at_times
    generator = torch.Generator().manual_seed(rank)
    given, arrived = torch.zeros(ROWS, COLUMNS), torch.zeros(ROWS, COLUMNS)
    with gradwire.attach(model, **attach) as synchronizer:
        for letter in letters:
            model.zero_grad(set_to_none=True)
            layer.weight.requires_grad_(letter != "f")
            x, weights = (torch.randn(3, n, generator=generator) for n in (COLUMNS, ROWS))
            if letter == "a":
                with model.no_sync():
                    (model(x, True) * weights).sum().backward()
            (model(x, letter in "us") * weights).sum().backward()
            if letter == "s":
                synchronizer.skip_step()
            else:
                given += weights.T @ x if letter in "ua" else 0.0
                arrived += layer.weight.grad if layer.weight.grad is not None else 0.0
        state = synchronizer.state_dict()
    kept = next(state[key] for key in KEPT if key in state)
    owed = torch.stack((given, kept.view(ROWS, COLUMNS)))
    torch.distributed.all_reduce(owed)
    mean_given, mean_kept = owed / torch.distributed.get_world_size()
    return float((mean_given - arrived - mean_kept).norm() / mean_given.norm())


def gradients_in_join(rank: int, size: int, codecs: list[str | None]) -> dict[str | None, list[float]]:
    """By codec, None for plain DDP, the gradient after each pass of a rank with 1 + `rank` batches, if the
    mean is one over the ranks that have data."""
    found = {}
    for codec in codecs:
        model = DistributedDataParallel(nn.Linear(64, 1, bias=False))
        synchronizer = gradwire.attach(model, codec=codec) if codec is not None else None
        seen: list[float] = []
        with model.join(divide_by_initial_world_size=False):
            for _ in range(1 + rank):
                model.zero_grad()
                model((1.0 + rank) * torch.ones(1, 64)).sum().backward()
                seen.append(float(model.module.weight.grad.mean()))
        if synchronizer is not None:
            synchronizer.detach()
        found[codec] = seen
    return found


def error_in_join(rank: int, size: int) -> float | None:
    """The measured error of a pass in which rank 0 has run out of data, whose mean is one over the others."""
    model = DistributedDataParallel(nn.Linear(64, 1, bias=False))
    with gradwire.attach(model, codec="fp32") as synchronizer:
        with model.join(divide_by_initial_world_size=False):
            for number in range(1 + rank):
                model(torch.ones(1, 64)).sum().backward()
                if number == 0:
                    synchronizer.measure_vnmse()
        return synchronizer.vnmse
