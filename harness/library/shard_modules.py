"""The modules that `fully_shard` has made of a model: checks whether they can use codecs, and access to their
communication.

PyTorch lets a script replace a module's all-gather and reduce-scatter. It has no public API for what a module
does with its parameters, so all accesses to private members are in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gradwire.codecs.describe import digest
from gradwire.codecs.wording import as_python
from gradwire.harness.library.options import check_group
from gradwire.harness.parallel.buckets import parameter_names

WHAT = "shard_hooks()"

FLOATS = (torch.float32, torch.bfloat16)
"""The types of weights that can be quantized."""

SUMMED = (torch.float32, torch.bfloat16, torch.float16)
"""The types of gradients, which codecs sum in float32."""


@dataclass(frozen=True)
class ShardedModule:
    """One module whose parameters are gathered together and whose gradients are scattered together."""

    name: str
    number: int
    module: Any

    @property
    def _state(self) -> Any:
        return self.module._get_fsdp_state()

    @property
    def _groups(self) -> Sequence[Any]:
        state = self._state
        if hasattr(state, "_fsdp_param_groups"):
            return list(state._fsdp_param_groups)
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # PyTorch before 2.11

    @property
    def group(self) -> Any:
        """FSDP2's own object that holds the module's parameters, all on the same mesh."""
        return self._groups[0]

    @property
    def has_parameters(self) -> bool:
        return bool(self._groups)

    @property
    def shards(self) -> dist.ProcessGroup | None:
        """The ranks that the module's parameters are divided among; None for a single rank."""
        return _several(getattr(self.group.mesh_info, "shard_process_group", None))

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same parameters, or the same shards of them; None for a single rank."""
        found = getattr(self.group.mesh_info, "replicate_process_group", None)
        return _several(getattr(found, "instead_of", found))

    @property
    def process_groups(self) -> list[dist.ProcessGroup]:
        """The process groups along the dimensions of the module's mesh, without those of a single rank."""
        return [each for each in (self.shards, self.replicas) if each is not None]

    @property
    def part(self) -> dist.ProcessGroup | None:
        """The ranks among which the weights are kept between forward and backward, if these are a subset of
        all (`reshard_after_forward` gives their number)."""
        after = self.group.post_forward_mesh_info
        found, shards = None if after is None else _several(after.shard_process_group), self.shards
        return None if found is None or shards is None or found.size() == shards.size() else found

    @property
    def device(self) -> torch.device:
        found: torch.device = self.group.device
        return found

    @property
    def parameters(self) -> list[Any]:
        """The module's own parameters, without those of submodules that are sharded separately."""
        return [each.sharded_param for each in self.group.fsdp_params]

    @property
    def gathered_dtypes(self) -> set[torch.dtype]:
        """The dtypes of the module's gathered weights."""
        policy = self.group.mp_policy.param_dtype
        return {policy or each.dtype for each in self.parameters}

    @property
    def scattered_dtypes(self) -> set[torch.dtype]:
        """The dtypes in which the module's gradients are summed."""
        policy = self.group.mp_policy
        instead = policy.reduce_dtype or policy.param_dtype
        return {instead or each.dtype for each in self.parameters if each.requires_grad}

    @property
    def slice_numel(self) -> int:
        """Coordinates of each rank's slice of the gradients: for every parameter its share of the divided
        dimension, rounded up."""
        ranks, found = 1 if self.shards is None else self.shards.size(), 0
        for each in self.group.fsdp_params:
            if each.sharded_param.requires_grad:
                length = each.sharded_param.shape[each.fsdp_placement.dim]
                found += -(-length // ranks) * (each.sharded_param.numel() // max(length, 1))
        return found

    def names(self, model: nn.Module) -> tuple[str, ...]:
        """The names of the module's parameters that have gradients, in order."""
        named = {id(each): name for name, each in parameter_names(model).items()}
        return tuple(named[id(each)] for each in self.parameters if each.requires_grad)

    def refusal(self, quantized: bool) -> str | None:
        """The reason why the module cannot use codecs, or `quantized` weights; None if it can."""
        if len(self._groups) > 1:
            return "is sharded over several meshes; give fully_shard() one"
        if quantized and self.shards is None:
            return 'holds its weights whole on every rank and gathers none; use weights="exact"'
        dtypes = self.gathered_dtypes
        if quantized and len(dtypes) > 1:
            return (
                f"gathers weights of several types, {_named(dtypes)}, which are quantized apart; shard them "
                "as modules of one type each"
            )
        if quantized and not dtypes <= {*FLOATS}:
            return f"gathers weights in {_named(dtypes)}, which cannot be quantized; use {_named(FLOATS)}"
        odd = self.scattered_dtypes - {*SUMMED}
        if odd:
            return (
                f"sums gradients in {_named(odd)}, and codecs do so in float32; use "
                "MixedPrecisionPolicy(reduce_dtype=torch.float32), or float32 parameters"
            )
        return None

    def describe(self) -> tuple[object, ...]:
        """The properties that must be equal on all ranks."""
        shapes = [(tuple(each.shape), str(each.dtype), each.requires_grad) for each in self.parameters]
        return self.name, shapes, _named(self.gathered_dtypes)

    @property
    def communication(self) -> tuple[Any, Any, Any]:
        """The module's all-gather, its reduce-scatter, and the ranks of its all-reduce, None if it has
        none.
        """
        replicas = getattr(self.group.mesh_info, "replicate_process_group", None)
        return self.group._all_gather_comm, self.group._reduce_scatter_comm, replicas

    def install(self, all_gather: Any, reduce_scatter: Any, replicas: Any) -> tuple[Any, Any, Any]:
        """Replaces the module's communication (over replicas only if `replicas` is given); returns the
        previous one."""
        before = self.communication
        self.module.set_custom_all_gather(all_gather)
        self.module.set_custom_reduce_scatter(reduce_scatter)
        if replicas is not None:  # PyTorch has no public way to replace an all-reduce
            self.group.mesh_info.replicate_process_group = replicas
        return before


def sharded_modules(model: Any, *, quantized: bool) -> list[ShardedModule]:
    """The modules of the model that have parameters of their own, in order. Raises ValueError for a model
    that cannot use codecs, or `quantized` weights."""
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise ValueError(
            f"{WHAT} needs a PyTorch whose FSDPModule has set_custom_reduce_scatter(); update it"
        )
    if not isinstance(model, nn.Module):
        raise ValueError(f"{WHAT} needs a model that fully_shard() has sharded, got {as_python(model)}")
    named = [(name, each) for name, each in model.named_modules() if isinstance(each, FSDPModule)]
    made = [ShardedModule(name, 0, each) for name, each in named]
    made = [each for each in made if each.has_parameters]
    if not made:
        raise ValueError(
            f"{WHAT} needs a model that fully_shard() has sharded, and {type(model).__name__} has no such "
            "module; call fully_shard(model) first, or use attach() for "
            "DistributedDataParallel"
        )
    found = [ShardedModule(each.name, number, each.module) for number, each in enumerate(made)]
    for each in found:
        for group in each.process_groups:
            check_group(group, WHAT)
    groups = {
        tuple(tuple(dist.get_process_group_ranks(group)) for group in each.process_groups) for each in found
    }
    if len(groups) > 1:
        raise ValueError(f"{WHAT}: modules are sharded over different ranks; shard all over the same mesh")
    for each in found:
        reason = each.refusal(quantized)
        if reason is not None:
            raise ValueError(f"{WHAT}: {each.name or 'the model'} {reason}")
    return found


def first_process_groups(model: Any) -> list[dist.ProcessGroup]:
    """The process groups along the mesh of the model's first module, even for a model that cannot use codecs;
    empty if it has no such module, or a single rank."""
    for each in model.modules() if isinstance(model, nn.Module) else ():
        made = ShardedModule("", 0, each)
        if isinstance(each, FSDPModule) and made.has_parameters:
            return made.process_groups
    return []


def check_complete(module: ShardedModule, numel: int, expected: int) -> None:
    """Raises ValueError if a module provides gradients for only some of its parameters."""
    if numel != expected:
        raise ValueError(
            f"{module.name or 'the model'} has gradients for {numel} coordinates of {expected}; give every "
            "parameter a gradient in each pass, freeze it from the start, or call "
            "set_reduce_scatter_unused_params(True), which has zeros for it"
        )


def share_of_sum(op: Any, what: str) -> float | None:
    """The factor to multiply a sum by for FSDP2's reduction `op`; None if `op` is the mean. Raises ValueError
    for anything but sums and means, naming `what` requires it."""
    # Both pass an isinstance check against ReduceOp.
    made: Any = (op, None) if isinstance(op, dist.ReduceOp.RedOpType) else op.__getstate__()
    kind, factor = made
    if kind == dist.ReduceOp.AVG:
        return None
    if kind == dist.ReduceOp.SUM:
        return 1.0
    if kind == dist.ReduceOp.PREMUL_SUM and isinstance(factor, float):
        return factor
    raise ValueError(f"{what} asks for {kind} of its gradients; codecs give sums and means of them")


def _several(group: Any) -> dist.ProcessGroup | None:
    found: dist.ProcessGroup | None = None if group is None or group.size() == 1 else group
    return found


def describe_modules(modules: Sequence[ShardedModule]) -> str:
    """A short description of the modules, equal on all ranks if the modules are."""
    return f"{len(modules)} modules of {digest(repr([each.describe() for each in modules]))}"


def _named(dtypes: Any) -> str:
    return " and ".join(sorted(str(each).removeprefix("torch.") for each in dtypes))
