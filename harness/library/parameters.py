"""Checks of models for codecs, and of their parameters, which must not change while a codec is attached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.describe import digest
from gradwire.harness.library import ddp_internals
from gradwire.harness.library.options import check_group
from gradwire.harness.library.steps import Process
from gradwire.harness.parallel.buckets import plain_name

TENSOR_PARALLEL = "torch.distributed.tensor.parallel.ddp"
"""The module of the hooks of DDP over tensor parallelism."""


def check_model(model: Any) -> DistributedDataParallel:
    """Returns the model if a codec can be attached to it. Raises ValueError that says what to do
    otherwise.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(_wrong_model(model))
    check_group(model.process_group, "attach()")
    if ddp_internals.has_hook(model):
        raise ValueError(
            "attach(): this model already has a communication hook; call detach() on the object that "
            "attach() returned, "
            "or wrap the model anew without DDP's own hooks or mixed_precision"
        )
    if ddp_internals.uses_python_reducer(model):
        raise ValueError(
            "attach(): torch._dynamo.config.optimize_ddp='python_reducer' calls no communication hook with "
            "buckets; leave it at its default, True"
        )
    if any(_is_divided(each) for each in (*model.module._forward_pre_hooks.values(), *model.parameters())):
        raise ValueError(
            "attach(): tensor parallelism has divided this model's parameters, and DistributedDataParallel "
            "replaces such parameters in each pass; leave parallelize_module() out, or train it with "
            "plain DDP"
        )
    parameters = ddp_internals.synchronized(model)
    if not parameters:
        raise ValueError("attach(): no parameter of this model has a gradient; freeze fewer of them")
    size = sum(parameter.nbytes for parameter in parameters.values())
    number, before = ddp_internals.size_when_wrapped(model)
    if len(parameters) != number:
        raise ValueError(
            f"attach(): the model trains {len(parameters)} parameters, and trained "
            f"{number} when it was wrapped; freeze, unfreeze, add or remove "
            "them before DistributedDataParallel(model)"
        )
    if size != before:
        raise ValueError(
            f"attach(): the model's parameters have {size} bytes, and had {before} when it was "
            "wrapped; convert it before DistributedDataParallel(model)"
        )
    theirs = {id(parameter) for parameter in parameters.values()}
    sparse = [
        name
        for name, module in model.module.named_modules()
        if getattr(module, "sparse", False) is True and theirs & {*map(id, module.parameters(recurse=False))}
    ]
    if sparse:
        raise ValueError(
            f"attach(): {sparse[0]} has sparse gradients, codecs take dense ones; set sparse=False"
        )
    complex_ = [name for name, parameter in parameters.items() if parameter.is_complex()]
    if complex_:
        raise ValueError(
            f"attach(): {complex_[0]} has complex gradients, codecs take real ones; keep it as real numbers "
            "and join them in forward by torch.view_as_complex()"
        )
    return model


def _is_divided(found: Any) -> bool:
    """True if a parameter is a shard, or if a forward hook is the one by which DDP turns parameters into
    shards."""
    return isinstance(found, DTensor) or getattr(found, "__module__", "") == TENSOR_PARALLEL


def _wrong_model(model: Any) -> str:
    kind = type(model).__name__
    needs = f"attach() needs a DistributedDataParallel model, got {kind}"
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        return f"{needs} around one; attach first, then compile: attach(model); model = torch.compile(model)"
    if any(each.__name__ == "FSDPModule" for each in type(model).__mro__):
        return f"{needs}, that fully_shard() or replicate() has made; use gradwire.shard_hooks() for it"
    if kind == "FullyShardedDataParallel":
        return (
            f"{needs}: it has no hook for its reduce-scatter; use fully_shard() and gradwire.shard_hooks(), "
            "or wrap the model in DistributedDataParallel"
        )
    if isinstance(model, torch.nn.Module):
        return (
            f"{needs}; wrap it first: model = DistributedDataParallel(model) (accelerate's prepare() does so "
            "with two or more processes)"
        )
    return needs


def describe_model(model: DistributedDataParallel) -> dict[str, str]:
    """The properties of a model that must be equal on all ranks, from name to value as text."""
    parameters = [
        (plain_name(name), tuple(each.shape), str(each.dtype))
        for name, each in model.module.named_parameters()
        if name not in model.parameters_to_ignore  # which may be one rank's own
    ]
    return {
        "model": f"{len(parameters)} parameters of {digest(repr(parameters))}",
        "device": model.device.type,
        **{
            f"DistributedDataParallel's {name}": str(getattr(model, name, None))
            for name in (
                "bucket_bytes_cap",
                "static_graph",
                "find_unused_parameters",
                "gradient_as_bucket_view",
            )
        },
    }


class ParameterCheck:
    """Compares a model's parameters with those that its reducer was made with, before each synchronized
    forward pass. Without this check the reducer would silently leave each rank with its own gradients."""

    def __init__(
        self,
        model: DistributedDataParallel,
        reduced: Mapping[str, nn.Parameter],
        fail: Callable[[Exception], Exception],
    ) -> None:
        self._reduced, self._fail, self._process = dict(reduced), fail, Process()
        self._names = {id(parameter): name for name, parameter in self._reduced.items()}
        self._nodes = {name: _node(parameter) for name, parameter in self._reduced.items()}
        self._ignored: frozenset[str] = frozenset(getattr(model, "parameters_to_ignore", ()))
        # Not as a decorator: this imports torch._dynamo, which takes most of a second. By now the model's own
        # constructor has imported it.
        self._check = torch.compiler.disable(self._compare)  # type: ignore[no-untyped-call, unused-ignore]
        self._handle = model.register_forward_pre_hook(self._hook)

    def remove(self) -> None:
        """Stops comparing."""
        self._handle.remove()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model with a codec cannot be pickled or copied; save model.module.state_dict(), or first call "
            "detach() on what gradwire.attach() returned"
        )

    def _hook(self, model: Any, given: object) -> None:
        self._check(model)

    def _compare(self, model: Any) -> None:
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._process.check()
            change = self._change(model)
            if change is not None:
                raise self._fail(RuntimeError(change))

    def _change(self, model: Any) -> str | None:
        """A change of a parameter, with its remedy; None if nothing has changed."""
        here, may_freeze = set[int](), _may_freeze(model)
        for name, parameter in model.module.named_parameters():
            if not isinstance(parameter, nn.Parameter):
                return None  # put in the parameters' place for one pass, by torch.func.functional_call()
            known = self._names.get(id(parameter))
            here.add(id(parameter))
            if known is None:
                if parameter.requires_grad and name not in self._ignored:
                    return f"{name} {self._how_it_is_new(name)}"
            elif not parameter.requires_grad:
                if not may_freeze:
                    return (
                        f"{name} was frozen after attach(), so that DistributedDataParallel waits for its "
                        "gradient; freeze it before the model is wrapped, or wrap it with "
                        "find_unused_parameters=True"
                    )
            elif _node(parameter) is not self._nodes[known]:
                return (
                    f"{name} was converted or moved after attach(), so that DistributedDataParallel does not "
                    "see its gradient; wrap the model and attach anew"
                )
        lost = [name for name, parameter in self._reduced.items() if id(parameter) not in here]
        if lost and not may_freeze:
            return (
                f"{lost[0]} was taken out of the model after attach(), and DistributedDataParallel waits for "
                "its gradient; wrap the model and attach anew"
            )
        return None

    def _how_it_is_new(self, name: str) -> str:
        how = "was replaced" if name in self._reduced else "was added or unfrozen"
        return (
            f"{how} after the model was wrapped, so that DistributedDataParallel does not see its gradient; "
            "wrap the model and attach anew"
        )


def _may_freeze(model: Any) -> bool:
    """True if DDP determines in each pass which parameters are used."""
    return bool(model.find_unused_parameters and not model.static_graph)


def _node(parameter: Tensor) -> Node:
    """The autograd node that accumulates the parameter's gradient, which DDP's reducer has hooked. PyTorch
    replaces it if the parameter's data changes type or device."""
    return get_gradient_edge(parameter).node
