"""All uses of DistributedDataParallel's private members, for the versions of PyTorch in TORCH.

The module has three parts: properties of a wrapped model, the buckets of its reducer, and the replacement of
the reducer. DDP cannot remove a communication hook, and it settles its buckets only after the first backward
pass, in the order in which gradients became ready. Installing a new reducer does both. DDP makes one itself
when it is unpickled; this module does the same as its `__setstate__`. A reducer whose backward pass has
failed is blocked until it is replaced: another pass would only report a failed assertion inside PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import _DEFAULT_FIRST_BUCKET_BYTES, _compute_bucket_assignment_by_size
from torch.nn.parallel import DistributedDataParallel

from gradwire.harness.parallel.buckets import parameter_names

TORCH = ">=2.8,<2.14"
"""The versions whose private members this module knows, as in pyproject.toml."""

Buckets = tuple[tuple[str, ...], ...]
"""The parameters' names, bucket by bucket, in the order of a backward pass."""


def has_hook(model: DistributedDataParallel) -> bool:
    """True if the model has a communication hook."""
    return bool(model._comm_hooks)


def uses_python_reducer(model: Any) -> bool:
    """True if torch.compile reduces gradients itself, without hooks that receive buckets."""
    return bool(getattr(model, "_use_python_reducer", False))


def size_when_wrapped(model: DistributedDataParallel) -> tuple[int, int]:
    """Returns the number of parameters that the model had when it was wrapped, and their bytes."""
    get_facts: Any = model._get_ddp_logging_data
    facts = get_facts()
    return int(facts["num_parameter_tensors"]), int(facts["total_parameter_size_bytes"])


def divides_by_active(model: Any) -> bool:
    """True if DDP's join() divides sums by the number of ranks that still have data."""
    return bool(model._join_config.enable and not model._divide_by_initial_world_size)


def synchronized(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters that DDP synchronizes, by name, without frozen ones and those it ignores."""
    reduced = {id(parameter) for parameter in _parameters(model)[0]}
    named = parameter_names(model.module).items()
    return {name: parameter for name, parameter in named if id(parameter) in reduced}


def _parameters(model: Any) -> tuple[list[nn.Parameter], list[bool]]:
    """The parameters that DDP synchronizes, in the order of the model, with a flag for each that is True for
    sparse gradients."""
    found: tuple[list[nn.Parameter], list[bool]] = model._build_params_for_reducer()
    return found


def settles(model: DistributedDataParallel) -> bool:
    """True if DDP rebuilds its buckets once it knows the order in which gradients become ready."""
    return model.static_graph or not model.find_unused_parameters


def has_settled(model: DistributedDataParallel) -> bool:
    """True if DDP has rebuilt its buckets."""
    return bool(model._has_rebuilt_buckets)


def settle(model: DistributedDataParallel) -> bool:
    """Rebuilds the buckets now if possible, as DDP would at the start of the next forward pass.

    Returns True if it did; rank 0's buckets were then sent to all ranks.
    """
    rebuilt = bool(model.reducer._rebuild_buckets())
    model._has_rebuilt_buckets = model._has_rebuilt_buckets or rebuilt
    return rebuilt


def current_buckets(model: DistributedDataParallel) -> Buckets:
    """The reducer's buckets; temporarily takes the memory of one gradient."""
    names = {id(parameter): name for name, parameter in parameter_names(model.module).items()}
    return tuple(
        tuple(names[id(parameter)] for parameter in bucket.parameters())
        for bucket in model.reducer._get_zeros_like_grad_buckets()
    )


def first_buckets(model: DistributedDataParallel) -> Buckets:
    """The buckets of a new reducer's first backward pass, in the order of the model. Allocates no memory."""
    parameters, sparse = _parameters(model)
    names = {id(parameter): name for name, parameter in parameter_names(model.module).items()}
    indices, _ = _compute_bucket_assignment_by_size([*parameters], _first_limits(model), sparse)
    return tuple(tuple(names[id(parameters[index])] for index in bucket) for bucket in indices)


def _first_limits(model: Any) -> list[int]:
    """The bucket sizes in bytes at which DDP cuts its first buckets; the last limit applies to all further
    buckets."""
    given: list[int] = getattr(model, "bucket_bytes_cap_list", [])  # PyTorch 2.8 has none
    if given:
        return given
    if settles(model):  # after the first pass, which has all parameters of a dtype in one bucket
        return [sys.maxsize]
    first = [_DEFAULT_FIRST_BUCKET_BYTES] if model.bucket_bytes_cap_default else []
    return [*first, model.bucket_bytes_cap]


def unused(model: DistributedDataParallel, reduced: Sequence[str]) -> set[str]:
    """The parameters that no rank has used since the synchronized pass before the latest one, by name, among
    those that the reducer was made with, in its order.

    With `find_unused_parameters` DDP finds such parameters, agrees on them over the ranks, and leaves their
    gradients unchanged. In a static graph it does not, because a parameter is used in every pass or in none.
    """
    if not model.find_unused_parameters or model.static_graph:
        return set()
    uses = model.reducer._get_local_used_map().tolist()
    return {name for name, used in zip(reduced, uses, strict=True) if not used}


class Blocked:
    """Replaces a model's reducer: every use of it by DDP raises the error that `make_error` returns."""

    def __init__(self, model: Any, make_error: Callable[[], Exception]) -> None:
        def refuse(gradient: Tensor) -> None:
            raise make_error()

        self._reducer = model.reducer  # kept alive: the parameters' own hooks lead to it
        parameters: list[Any] = _parameters(model)[0]
        self._handles = [parameter.register_hook(refuse) for parameter in parameters]
        self._make_error = make_error

    def __getattr__(self, name: str) -> Any:
        raise self._make_error()

    def give_back(self, model: Any) -> None:
        for handle in self._handles:
            handle.remove()
        model.reducer = self._reducer


def block(model: DistributedDataParallel, make_error: Callable[[], Exception]) -> None:
    """Makes every later pass raise the error that `make_error` returns, until the reducer is renewed: in
    forward, or in backward if forward is over. Passes without gradients still work."""
    blocked: Any = model.reducer
    if not isinstance(blocked, Blocked):
        blocked = Blocked(model, make_error)
    model.reducer = blocked


def renew(model: DistributedDataParallel) -> None:
    """Installs the reducer of a newly wrapped model: no hook, buckets not settled. Sends nothing."""
    _renew(model, *_parameters(model))


def renew_settled(model: DistributedDataParallel, buckets: Buckets) -> None:
    """Installs a reducer without a hook whose buckets are permanently `buckets`. All ranks must call it,
    because rank 0's buckets are sent to all of them. Raises ValueError if the resulting buckets differ."""
    parameters, sparse = _parameters(model)
    if settles(model):
        named = parameter_names(model.module)
        is_sparse = {id(parameter): flag for parameter, flag in zip(parameters, sparse, strict=True)}
        wanted = {name for bucket in buckets for name in bucket}
        have = {name for name, parameter in named.items() if id(parameter) in is_sparse}
        if wanted != have:
            odd = ", ".join(sorted(wanted ^ have)[:3])
            raise ValueError(f"the state is another model's: only one of them trains {odd}")
        # The reducer cuts buckets along the parameters in the order of their gradients, which is known here.
        parameters = [named[name] for bucket in buckets for name in bucket]
        _renew(model, parameters, [is_sparse[id(parameter)] for parameter in parameters])
        model.reducer._push_all_rebuilt_params()
        settle(model)
    else:
        _renew(model, parameters, sparse)
    found = current_buckets(model)
    if found != buckets:
        raise ValueError(
            f"the state was saved with buckets of {_sizes(buckets)} parameters, here they have "
            f"{_sizes(found)}; wrap the model with the bucket_cap_mb it was saved with"
        )


def _renew(model: Any, parameters: Sequence[nn.Parameter], sparse: Sequence[bool]) -> None:
    if isinstance(model.reducer, Blocked):
        model.reducer.give_back(model)
    names = model._build_debug_param_to_name_mapping(parameters)
    model._remove_autograd_hooks()
    model._comm_hooks.clear()
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    model._has_rebuilt_buckets = False
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False
        model.reducer._set_static_graph()
        model.logger._set_static_graph()


def _sizes(buckets: Buckets) -> str:
    sizes = [str(len(bucket)) for bucket in buckets]
    return ", ".join(sizes if len(sizes) <= 6 else [*sizes[:5], f"… ({len(sizes)} buckets)"])
