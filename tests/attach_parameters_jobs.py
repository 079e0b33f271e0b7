"""Jobs of ranks whose parameters change after `attach`, and of children that a rank has forked."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from attach_jobs import said
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))


def _pass(model: Any, rank: int) -> Tensor:
    model.zero_grad(set_to_none=True)
    model(torch.full((1, 4), 1.0 + rank)).sum().backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return torch.cat([each.double().flatten() for each in gradients])


def _freeze(net: Any) -> None:
    net[0].weight.requires_grad_(False)


def _replace(net: Any) -> None:
    net[1].weight = nn.Parameter(net[1].weight.detach().clone())


def _replace_module(net: Any) -> None:
    net[1] = nn.Linear(4, 4, bias=False)


def _add(net: Any) -> None:
    net[0].bias = nn.Parameter(torch.zeros(4))


def _remove(net: Any) -> None:
    del net[1]


def _convert(net: Any) -> None:
    net.double().float()


def _halve(net: Any) -> None:
    net.bfloat16()


def _prune(net: Any) -> None:
    """Renames a parameter, which stays the same one."""
    from torch.nn.utils import prune

    prune.l1_unstructured(net[0], "weight", amount=0.5)


def _rename(net: Any) -> None:
    net.add_module("again", net[0])
    net[0] = nn.Identity()


CHANGES: dict[str, Callable[[Any], None]] = {
    each.__name__.strip("_"): each
    for each in (_freeze, _replace, _replace_module, _add, _remove, _convert, _prune, _rename)
}


def changed(rank: int, size: int, names: list[str], ddp: dict[str, Any], on_rank: int | None) -> list[str]:
    """The outcome of the pass after each change, on one rank or all: an error, or whether the ranks have the
    same gradients."""
    found = []
    for name in names:
        model = DistributedDataParallel(_net(), **ddp)
        with gradwire.attach(model, codec="fp32", timeout_s=1.0):
            for _ in range(2):
                _pass(model, rank)
            if on_rank in (None, rank):
                CHANGES[name](model.module)
            found.append(_one_pass(model, rank))
    return found


def _one_pass(model: Any, rank: int) -> str:
    text = said(lambda: _pass(model, rank))
    if text != "nothing":
        return text
    own = _pass(model, rank)
    gathered = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, own)
    return "alike" if all(torch.equal(own, each) for each in gathered) else "different"


def unchanged(rank: int, size: int) -> tuple[str, str, str, str]:
    """The errors, if any, of uses that work as before: evaluation, passes without synchronization over frozen
    parameters, parameters that a pass swaps; and the error for copying a model."""
    model = DistributedDataParallel(_net())
    synchronizer = gradwire.attach(model, codec="fp32")
    _pass(model, rank)
    _freeze(model.module)
    with torch.no_grad():
        evaluated = said(lambda: model(torch.ones(1, 4)))
    with model.no_sync():
        alone = said(lambda: _pass(model, rank))
    model.module[0].weight.requires_grad_(True)
    worked_out = {name: 2 * each for name, each in model.named_parameters()}
    leaves = {name: each.detach().requires_grad_() for name, each in worked_out.items()}

    def functional() -> None:
        for swapped in (worked_out, leaves):
            torch.func.functional_call(model, swapped, (torch.full((1, 4), 1.0 + rank),)).sum().backward()

    model.zero_grad()
    functional_said = said(functional)
    copied = said(lambda: copy.deepcopy(model))
    synchronizer.detach()
    return evaluated, alone, functional_said, copied


def before_attach(rank: int, size: int) -> list[str]:
    """The errors of `attach` for a model whose parameters were changed since it was wrapped."""
    found = []
    for change in (_freeze, _add, _remove, _halve):
        model = DistributedDataParallel(_net())
        change(model.module)
        found.append(said(lambda: gradwire.attach(model, codec="fp32")))  # noqa: B023
    return found


def forked(rank: int, size: int) -> list[str]:
    """The errors in children of a rank, and then the outcome on the rank itself."""
    model = DistributedDataParallel(_net())
    with gradwire.attach(model, codec="fp32") as synchronizer:
        for _ in range(2):
            _pass(model, rank)
        loss = model(torch.ones(1, 4)).sum()
        tries: list[Callable[[], Any]] = [
            lambda: _pass(model, rank),
            loss.backward,
            synchronizer.state_dict,
            synchronizer.detach,
        ]
        found = [in_child(each) for each in tries]
        loss.backward()
        return [*found, _one_pass(model, rank)]


def in_child(call: Callable[[], Any], timeout_s: float = 20.0) -> str:
    """The error that `call` raises in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, said(call).encode())
        os._exit(0)
    os.close(writing)
    killer = threading.Timer(timeout_s, os.kill, (child, 9))
    killer.start()
    with open(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    killer.cancel()
    return text or "it hangs"
