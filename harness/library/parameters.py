"""What may not change in a model while its gradients are synchronized: its parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

FORKED = (
    "this process was forked from a rank and has none of its connections; train in the rank itself, or start "
    "processes by spawn and attach there"
)


class Process:
    """The process that it was made in, whose threads and connections a child does not have."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self) -> None:
        """Raises RuntimeError in a child that was forked since."""
        if os.getpid() != self._pid:
            raise RuntimeError(FORKED)


class ParameterCheck:
    """Compares a model's parameters with those that its reducer was made with, before each forward pass whose
    gradients are synchronized. The reducer itself does not: it leaves each rank with gradients of its own.
    """

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
        self._handle = model.register_forward_pre_hook(self._hook)

    def remove(self) -> None:
        """Compares no more."""
        self._handle.remove()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model with a codec cannot be pickled or copied; save model.module.state_dict(), or first call "
            "detach() on what gradwire.attach() returned"
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def _hook(self, model: Any, given: object) -> None:
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._process.check()
            change = self._change(model)
            if change is not None:
                raise self._fail(RuntimeError(change))

    def _change(self, model: Any) -> str | None:
        """What has changed, and what to do; None if nothing has."""
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
    """Whether DDP finds out anew which parameters a pass uses."""
    return bool(model.find_unused_parameters and not model.static_graph)


def _node(parameter: Tensor) -> Node:
    """What adds up the parameter's gradients, to which DDP's reducer has tied itself. PyTorch replaces it
    where the parameter's memory becomes one of another type or device."""
    return get_gradient_edge(parameter).node
