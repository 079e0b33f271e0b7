"""Clipping and update after synchronization; all worlds share this code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

STATE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}
"""The fields that each optimizer keeps of a parameter, by `OptimizerSettings.name`."""


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer's settings with global-norm clipping. Matrices have weight decay, vectors do not. The
    learning rate is given with each step."""

    weight_decay: float
    beta1: float
    beta2: float
    adam_epsilon: float
    clip_norm: float | None
    name: str = "adamw"
    """`adamw`, whose decay is decoupled; `adam`, whose decay is added to the gradient; `sgd`, likewise."""
    momentum: float = 0.9
    """Only used by `sgd`."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that the optimizer keeps for each parameter."""
        return () if self.name == "sgd" and not self.momentum else STATE_FIELDS[self.name]


class NoUpdate(torch.optim.SGD):
    """The optimizer of parameters on the device `meta`, which have no values, for steps that are only
    traced.
    """

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Does nothing."""


def with_value(x: Tensor) -> Tensor:
    """`x`, or ones on the CPU if `x` is on the device `meta` and cannot be read."""
    return torch.ones(x.shape, dtype=x.dtype, device="cpu") if x.is_meta else x


def decays(weight: Tensor) -> bool:
    """True if a parameter has weight decay: matrices do, vectors do not."""
    return weight.dim() >= 2


def make_optimizer(
    decaying: Sequence[Tensor], others: Sequence[Tensor], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """The optimizer of all parallelisms, with weight decay for the `decaying` parameters; each step sets its
    learning rate."""
    groups = [
        {"params": list(decaying), "weight_decay": settings.weight_decay},
        {"params": list(others), "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if any(parameter.is_meta for parameter in (*decaying, *others)):
        return NoUpdate(groups, lr=0.0)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=settings.momentum, fused=True)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    betas = (settings.beta1, settings.beta2)
    return kind(groups, lr=0.0, betas=betas, eps=settings.adam_epsilon, fused=True)


def optimizer_of(parameters: Sequence[Tensor], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """`make_optimizer` for parameters in their own shapes: those of a model, a stage or a block."""
    decaying, others = [p for p in parameters if decays(p)], [p for p in parameters if not decays(p)]
    return make_optimizer(decaying, others, settings)


def forget_moments(optimizer: torch.optim.Optimizer) -> None:
    """Resets the optimizer's state to that before the first step, in the same memory."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


class Updater:
    """The optimizer on the synchronized gradients, after clipping by their global norm.

    A step whose gradients are not finite is skipped by the optimizer itself on the device, so that the host
    only reads the norm after everything has been started. All ranks hold the same gradients, bit for bit, so
    they all skip the same steps.
    """

    def __init__(
        self, model: nn.Module, settings: OptimizerSettings, only: Collection[str] | None = None
    ) -> None:
        """Updates the trainable parameters of `model`, or only those named in `only`."""
        named = {p: name for name, p in model.named_parameters() if only is None or name in only}
        parameters = [p for p in named if p.requires_grad]
        self.optimizer = optimizer_of(parameters, settings)
        self._parameters, self._settings, self._clip_norm = parameters, settings, settings.clip_norm
        self._names: dict[Tensor, str] = dict(named.items())

    def warm_up(self) -> None:
        """Makes an update that changes no values, so that the state is allocated; overwrites the
        gradients.
        """
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        if all(bool(p.grad.isfinite().all()) for p in self._parameters if p.grad is not None):
            self.optimizer.step()
        forget_moments(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self, learning_rate: float, norm: float | None = None) -> Tensor:
        """Clips and updates; returns the gradient norm before clipping, a scalar on the device. If the norm
        is not finite, the step is skipped.

        `norm` must be given if parts of the gradient are elsewhere; by default it is computed from these
        parameters.
        """
        limit = self._clip_norm if self._clip_norm is not None else float("inf")
        if norm is None:
            total = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        else:
            total = torch.tensor(norm, device="cpu")
            torch.nn.utils.clip_grads_with_norm_(self._parameters, limit, total)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._make_momenta()
        self.optimizer.found_inf = total.isfinite().logical_not().float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _make_momenta(self) -> None:
        """Creates missing SGD momenta as zeros, because SGD does not initialize them if its first step is
        skipped."""
        if self._settings.name != "sgd" or not self._settings.momentum:
            return
        for parameter in self._parameters:
            if parameter.grad is not None and "momentum_buffer" not in self.optimizer.state[parameter]:
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def state_dict(self) -> dict[str, Tensor]:
        """The optimizer's moments and step counts: `<field>/<parameter name>` to tensor."""
        return {
            f"{field}/{self._names[parameter]}": value
            for parameter, state in self.optimizer.state.items()
            for field, value in state.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads what `state_dict` returned. Raises ValueError for parameters this model does not have, and
        for another optimizer's state."""
        parameters = {name: parameter for parameter, name in self._names.items()}
        fields = {key.partition("/")[0] for key in state}
        if fields and fields != set(self._settings.fields):
            raise ValueError(
                f"the checkpoint is another optimizer's: it has {', '.join(sorted(fields))}, and "
                f"train.optimizer={self._settings.name} keeps {', '.join(self._settings.fields) or 'nothing'}"
            )
        self.optimizer.state.clear()
        for key, value in state.items():
            field, _, name = key.partition("/")
            if name not in parameters:
                raise ValueError(f"the checkpoint belongs to another model: its optimizer has {name}")
            self.optimizer.state[parameters[name]][field] = value.to(parameters[name].device)
