"""FSDP2 scripts as its users write them, with and without `gradwire.shard_hooks`, on pool workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from attach_jobs import Net, data, said
from shard_jobs import digest
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire
from gradwire.codecs.registry import make_codec

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Script:
    """The choices of one script: how it shards, and what else the model itself; of which type that is; what
    is set on it, method to value; whether gradients of two micro-batches are added up, `apart` within
    replicas; whether activations are checkpointed, a branch is skipped in each second pass, a matrix used
    twice, the model has a whole number; and where there are `replicas`: of shards on two ranks each, or
    everywhere."""

    shard: Mapping[str, Any] = field(default_factory=dict)
    root: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    sets: Mapping[str, Any] = field(default_factory=dict)
    accumulates: bool = False
    apart: bool = False
    checkpoints: bool = False
    skips: bool = False
    tied: bool = False
    counts: bool = True
    replicas: str = ""


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
    "replicas of shards": Script(replicas="of shards"),
    "replicas of shards, resharded": Script({"reshard_after_forward": True}, replicas="of shards"),
    "replicas of shards in bfloat16": Script(
        {"mp_policy": MixedPrecisionPolicy(BF16, torch.float32)}, replicas="of shards"
    ),
    "replicas of shards, added up": Script(replicas="of shards", accumulates=True),
    "replicas of shards, added up apart": Script(replicas="of shards", accumulates=True, apart=True),
    "replicas": Script(replicas="everywhere"),
    "replicas in bfloat16": Script({"mp_policy": MixedPrecisionPolicy(BF16)}, replicas="everywhere"),
    "replicas, added up": Script(replicas="everywhere", accumulates=True),
    "replicas, sums forced": Script(sets={"set_force_sum_reduction_for_comms": True}, replicas="everywhere"),
    "replicas, other factor": Script(sets={"set_gradient_divide_factor": 4.0}, replicas="everywhere"),
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
    if script.replicas == "everywhere":
        replicate(model.net.middle, **script.shard)
        replicate(model, **script.shard)
    else:
        mesh = {}
        if script.replicas:
            names = ("replicate", "shard")
            mesh = {"mesh": init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)}
        fully_shard(model.net.middle, **script.shard, **mesh)
        fully_shard(model, **{**script.shard, **script.root}, **mesh)
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
                wait = model.set_requires_all_reduce if script.apart else model.set_requires_gradient_sync
                wait(micro == 1)
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


def of_shards(rank: int, size: int, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Digests of this rank's parameters after training replicas of shards, undisturbed and resumed from the
    state after the first of two rounds; whether a skipped step left the codecs' states as they were, and
    whether there is one between replicas; the bytes sent."""
    script = Script({"reshard_after_forward": True}, replicas="of shards", counts=False)
    model = made(script)
    with gradwire.shard_hooks(model, **options) as hooks:
        trained(model, script, rank)
        state, parameters = hooks.state_dict(), [each.to_local().clone() for each in model.parameters()]
        model(data(rank, 9)[0]).sum().backward()
        hooks.skip_step()
        after = hooks.state_dict()
        kept = all(torch.equal(state[key], after[key]) for key in state if "codec" in key or "repl" in key)
        hooks.load_state_dict(state)
        with torch.no_grad():
            for each, before in zip(model.parameters(), parameters, strict=True):
                each.to_local().copy_(before)
        undisturbed = digest(trained(model, script, rank)[1])
        sent = hooks.bytes_sent
    model = made(script)
    with gradwire.shard_hooks(model, **options) as hooks:
        hooks.load_state_dict(state)
        with torch.no_grad():
            for each, before in zip(model.parameters(), parameters, strict=True):
                each.to_local().copy_(before)
        resumed = digest(trained(model, script, rank)[1])
    return undisturbed, resumed, kept, any(key.startswith("replicas/") for key in state), sent


def replica_refusals(rank: int, size: int) -> list[str]:
    """The errors for replicas: for quantized weights that are never gathered, for seeds that differ between
    replicas, between shards, for a codec that one rank refuses, and for attach()."""
    everywhere, hooks = made(Script(replicas="everywhere")), gradwire.shard_hooks
    model = made(Script(replicas="of shards"))
    return [
        said(hooks, everywhere, codec="fp32", weights="qw"),
        said(hooks, model, codec="fp32", seed=rank // 2),
        said(hooks, model, codec="fp32", seed=rank % 2),
        said(hooks, model, codec="powersgd" if rank == 3 else "fp32"),
        said(gradwire.attach, everywhere),
    ]


def fails_in_one(rank: int, size: int) -> str:
    """The error of a pass with replicas of shards, where the codec of the last rank fails."""
    script = Script(replicas="of shards")
    model = made(script)
    with gradwire.shard_hooks(model, codec="fp32", timeout_s=2.0) as hooks:
        if rank == 3:
            hooks._step.codec = make_codec("topk")  # its scatter raises
        return said(trained, model, script, rank)


def replicated(rank: int, size: int, options: Mapping[str, Any]) -> tuple[str, int]:
    """A digest of parameters that are the same everywhere after training, and the bytes sent."""
    script = Script(replicas="everywhere")
    model = made(script)
    with gradwire.shard_hooks(model, check_hashes=True, **options) as hooks:
        return digest(trained(model, script, rank)[1]), hooks.bytes_sent


def without_gradient(rank: int, size: int) -> str:
    """The error of a pass in which a parameter gets no gradient."""
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
