"""FSDP2 scripts as its users write them, with and without `gradwire.shard_hooks`, on pool workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from attach_jobs import Net, data, said
from shard_jobs import digest
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Script:
    """What one script does: how it shards, and what else the model itself; of which type that is; what is set
    on it, method to value; whether gradients of two micro-batches are added up, activations checkpointed, a
    branch skipped in each second pass, a matrix used twice, and whether the model has a whole number."""

    shard: Mapping[str, Any] = field(default_factory=dict)
    root: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    sets: Mapping[str, Any] = field(default_factory=dict)
    accumulates: bool = False
    checkpoints: bool = False
    skips: bool = False
    tied: bool = False
    counts: bool = True


SCRIPTS = {
    "default": Script(),
    "resharded": Script({"reshard_after_forward": True}),
    "resharded to two ranks": Script({"reshard_after_forward": 2}),
    "kept": Script({"reshard_after_forward": False}),
    "bfloat16": Script({"mp_policy": MixedPrecisionPolicy(BF16)}),
    "summed in float32": Script({"mp_policy": MixedPrecisionPolicy(BF16, torch.float32)}),
    "output in float32": Script(
        {"mp_policy": MixedPrecisionPolicy(BF16)},
        {"mp_policy": MixedPrecisionPolicy(BF16, BF16, torch.float32)},
    ),
    "model in bfloat16": Script(dtype=BF16),
    "float64": Script({"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}, dtype=torch.float64),
    "float16": Script({"mp_policy": MixedPrecisionPolicy(torch.float16)}),
    "sums forced": Script(sets={"set_force_sum_reduction_for_comms": True}),
    "accumulation": Script(accumulates=True),
    "checkpoints": Script({"reshard_after_forward": True}, checkpoints=True),
    "tied": Script(tied=True),
    "unused": Script(sets={"set_reduce_scatter_unused_params": True}, skips=True),
}


class Branches(nn.Module):
    """Parameters on a branch that not every pass takes; with `tied`, a matrix that is used twice."""

    def __init__(self, tied: bool, counts: bool) -> None:
        super().__init__()
        self.net, self.more = Net(), nn.Linear(32, 32, bias=False)
        if counts:
            self.counts = nn.Parameter(torch.arange(5), requires_grad=False)
        if tied:
            self.again = nn.Linear(32, 32, bias=False)
            self.again.weight = self.more.weight
        self.taken, self.tied = True, tied

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.net.middle(torch.relu(self.net.first(x))))
        if self.taken:
            x = x + self.more(x)
        return self.net.last(self.again(x) if self.tied else x)


def made(script: Script) -> Any:
    torch.manual_seed(0)
    model = Branches(script.tied, script.counts).to(script.dtype)
    if script.checkpoints:
        model.net.middle = checkpoint_wrapper(model.net.middle)
    fully_shard(model.net.middle, **script.shard)
    fully_shard(model, **{**script.shard, **script.root})
    for method, value in script.sets.items():
        getattr(model, method)(value)
    return model


def trained(model: Any, script: Script, rank: int) -> tuple[list[Tensor], list[Tensor]]:
    """The losses of three steps of two micro-batches, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        for micro in (0, 1):
            if script.accumulates:
                model.set_requires_gradient_sync(micro == 1)
            model.taken = not script.skips or micro == number % 2
            x, y = (each.to(script.dtype) for each in data(rank, 2 * number + micro))
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return losses, [each.detach().to_local().clone() for each in model.parameters()]


def resharded(rank: int, size: int, weights: str) -> list[tuple[str, int]]:
    """A digest of the parameters after training with quantized weights that are kept after forward, given
    away, and given away but to two ranks, and the bytes sent."""
    found = []
    for after in (False, True, 2):
        script = Script({"reshard_after_forward": after}, {"reshard_after_forward": after}, counts=False)
        model = made(script)
        with gradwire.shard_hooks(model, codec="all_to_all", weights=weights, weight_group=64) as hooks:
            _, parameters = trained(model, script, rank)
            found.append((digest(parameters), hooks.bytes_sent))
    return found


def without_gradient(rank: int, size: int) -> str:
    """What a pass raises in which a parameter gets no gradient."""
    model = made(Script())
    model.taken = False
    with gradwire.shard_hooks(model, codec="fp32"):
        return said(model(data(rank, 0)[0]).sum().backward)


def alike(rank: int, size: int, names: list[str]) -> dict[str, float]:
    """By script the greatest difference of losses and parameters from the same without hooks."""
    found = {}
    for name in names:
        script = SCRIPTS[name]
        plain = trained(made(script), script, rank)
        model = made(script)
        with gradwire.shard_hooks(model, codec="fp32", check_hashes=True):
            hooked = trained(model, script, rank)
        found[name] = max(
            float((a.double() - b.double()).abs().max())
            for one, other in zip(plain, hooked, strict=True)
            for a, b in zip(one, other, strict=True)
            if a.numel()
        )
    return found
