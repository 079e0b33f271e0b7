"""A model cut into stages of consecutive layers, which share its parameters.

A stage is the model itself, with modules of other stages replaced by ones that return their input. So
parameter names, masks and positions are those of the whole model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOT_FOR_LATER = ("input_ids", "token_type_ids")
"""Arguments of a model that only its embeddings read."""


class _PassesOn(nn.Module):
    """Returns its first argument."""

    def forward(self, hidden_states: Tensor, *others: object, **named: object) -> Tensor:
        return hidden_states


class _PassesEmbeddingsOn(nn.Module):
    def forward(self, *, inputs_embeds: Tensor, **named: object) -> Tensor:
        return inputs_embeds


class _NoPositions(nn.Module):
    """Adds no positions: the hidden states from the stage before already include them."""

    def forward(self, position_ids: Tensor) -> Tensor:
        return torch.zeros((), device=position_ids.device)


@dataclass(frozen=True)
class StageParts:
    """The places of a family's modules: its `layers`, the modules of the first stage, with their replacements
    in other stages, and the modules of the last stage. Modules that a model lacks are ignored."""

    layers: str
    first: Mapping[str, Callable[[], nn.Module]]
    last: tuple[str, ...]


DECODER = StageParts("model.layers", {"model.embed_tokens": _PassesOn}, ("model.norm", "lm_head"))
STAGE_PARTS: Mapping[str, StageParts] = {
    "bert": StageParts(
        "bert.encoder.layer",
        {"bert.embeddings": _PassesEmbeddingsOn},
        ("bert.pooler", "cls", "dropout", "classifier"),
    ),
    "gemma": DECODER,
    "gpt2": StageParts(
        "transformer.h",
        {"transformer.wte": _PassesOn, "transformer.wpe": _NoPositions, "transformer.drop": _PassesOn},
        ("transformer.ln_f", "lm_head"),
    ),
    "llama": DECODER,
}
"""The layouts of models by family, an entry of `FAMILIES`."""


class Stage(nn.Module):
    """The `number`-th of `stages` parts of a model.

    Given a batch and, unless it is the first stage, the hidden states of the stage before, (rows, length,
    hidden size), it returns its hidden states or, in the last stage, the model's output with the loss.
    """

    def __init__(self, model: PreTrainedModel, family: str, number: int, stages: int) -> None:
        super().__init__()
        self.number, self.is_first, self.is_last = number, number == 0, number == stages - 1
        self.hidden_size = int(model.config.hidden_size)
        self.model = _part(model, STAGE_PARTS[family], number, stages)

    def forward(self, hidden: Tensor | None, **batch: Tensor) -> Any:
        arguments: dict[str, Tensor | None] = dict(batch)
        if not self.is_first:
            arguments = {name: value for name, value in arguments.items() if name not in NOT_FOR_LATER}
            arguments["inputs_embeds"] = hidden
        if self.is_last:
            return self.model(**arguments)
        arguments.pop("labels", None)
        return self.model.base_model(**arguments).last_hidden_state

    def named(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by their names in the whole model, tied ones once."""
        return dict(self.model.named_parameters())


def make_stage(model: PreTrainedModel, family: str, number: int, stages: int) -> Stage:
    """The `number`-th stage of `model`, whose parameters it shares.

    With tied embeddings the last of several stages gets a copy of the first one's, as a parameter of its own
    (`tied_parameter`). Raises ValueError if the layers cannot be divided evenly.
    """
    stage = Stage(model, family, number, stages)
    tied = tied_parameter(model, family)
    if tied is not None and stage.is_last and not stage.is_first:
        place, _, name = tied.output.rpartition(".")
        output = _shallow(stage.model.get_submodule(place))
        output._parameters[name] = nn.Parameter(stage.named()[tied.output].detach().clone())
        stage.model = _with(stage.model, {place: output})
    return stage


@dataclass(frozen=True)
class Tied:
    """The names of the shared parameter that embeds tokens in the first stage and scores them in the last."""

    embedding: str
    output: str


def tied_parameter(model: PreTrainedModel, family: str) -> Tied | None:
    """The parameter that a model's first and last stages share; None if they share none."""
    parts = STAGE_PARTS[family]
    first = {id(p): name for name, p in _parameters_under(model, parts.first)}
    for name, parameter in _parameters_under(model, parts.last):
        if id(parameter) in first:
            return Tied(first[id(parameter)], name)
    return None


def _parameters_under(model: nn.Module, places: Any) -> Iterator[tuple[str, nn.Parameter]]:
    for place in places:
        if _has(model, place):
            for name, parameter in model.get_submodule(place).named_parameters(remove_duplicate=False):
                yield f"{place}.{name}", parameter


def _part(model: PreTrainedModel, parts: StageParts, number: int, stages: int) -> PreTrainedModel:
    layers = model.get_submodule(parts.layers)
    count = len(layers) if isinstance(layers, nn.ModuleList) else 0
    if not count or count % stages:
        raise ValueError(f"{count} layers cannot be divided evenly into {stages} stages")
    own = range(number * count // stages, (number + 1) * count // stages)
    absent: dict[str, nn.Module] = {
        f"{parts.layers}.{layer}": _PassesOn() for layer in range(count) if layer not in own
    }
    if number > 0:
        absent |= {place: make() for place, make in parts.first.items()}
    if number < stages - 1:
        absent |= {place: _PassesOn() for place in parts.last if _has(model, place)}
    part: PreTrainedModel = _with(model, absent)
    return part


def _has(model: nn.Module, place: str) -> bool:
    try:
        return isinstance(model.get_submodule(place), nn.Module)
    except AttributeError:
        return False


def _with(module: Any, replaced: Mapping[str, nn.Module]) -> Any:
    """`module` with some submodules replaced. It and the modules on the paths to these are copies; all other
    modules and the parameters are shared."""
    made = _shallow(module)
    below: dict[str, dict[str, nn.Module]] = {}
    for place, other in replaced.items():
        child, _, rest = place.partition(".")
        below.setdefault(child, {})[rest] = other
    for child, inside in below.items():
        made._modules[child] = inside[""] if "" in inside else _with(module._modules[child], inside)
    return made


def _shallow(module: Any) -> Any:
    """A copy that shares parameters and submodules but whose submodules can be replaced."""
    made = copy.copy(module)
    made._parameters, made._modules = dict(module._parameters), dict(module._modules)
    return made
