"""A model for predictions: its parameters' names and shapes, the order in which their gradients become ready,
and the arithmetic of a step. No weights are created."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from gradwire.harness.models.build import ATTENTION, transformers_config
from gradwire.harness.models.families import HEADS
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.stages import tied_parameter
from gradwire.harness.parallel.buckets import parameter_names
from gradwire.harness.parallel.interface import Batch
from gradwire.harness.studies.predict.study import PredictConfig

TOKENS = 8
"""The number of tokens for a small model's pass, which does not affect the order of gradients."""

SMALLEST = 8
"""The width of the matrices of the small model."""

META = torch.device("meta")


@dataclass(frozen=True)
class ModelPart:
    """The part of a model that a worker holds: `shapes` by name, in the order in which gradients become
    ready.

    `parameters` is the number of parameters of the whole model; `flops` are the floating-point operations of
    a worker's step.
    """

    shapes: dict[str, tuple[int, ...]]
    parameters: int
    flops: float

    @property
    def coordinates(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def module(self) -> nn.Module:
        """A module with parameters of these shapes, without values."""
        whole = nn.Module()
        for name, shape in self.shapes.items():
            *path, leaf = name.split(".")
            place = whole
            for step in path:
                if step not in place._modules:
                    place.add_module(step, nn.Module())
                place = place.get_submodule(step)
            place.register_parameter(leaf, nn.Parameter(torch.empty(shape, device=META)))
        return whole


@dataclass(frozen=True)
class StagesPart(ModelPart):
    """The part of a pipeline worker that shares each matrix of its stage with others on its node; `shapes`
    are the first stage's.

    Each of a step's micro-batches has `rows` sequences of `length` tokens; `tensor_parallel` workers share
    every matrix.
    """

    model: ModelConfig
    tensor_parallel: int
    rows: int
    length: int

    def module(self) -> nn.Module:
        """The whole model with a worker's share of each matrix, without values."""
        whole = without_values(self.model)
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in whole.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if parameter not in made:
                        shape = divided(parameter.shape, self.tensor_parallel, self.model.hidden_size)
                        made[parameter] = nn.Parameter(torch.empty(shape, device=META))
                    module._parameters[name] = made[parameter]
        return whole

    def micro_batch(self) -> Batch:
        """The tokens of a micro-batch."""
        return {"input_ids": torch.empty(self.rows, self.length, dtype=torch.int64, device=META)}


def part_of(model: ModelConfig, predict: PredictConfig) -> ModelPart:
    """The largest part of the model: the first stage, which has the embeddings. A separate output matrix
    belongs to the last stage.

    Workers that share matrices divide them as in `divided`; each holds vectors as a whole.
    """
    staged = replace(model, num_layers=model.num_layers // predict.pipeline_parallel)
    stage = without_values(staged)
    shapes = {name: tuple(each.shape) for name, each in parameter_names(stage).items()}
    if predict.pipeline_parallel > 1 and tied_parameter(cast(Any, stage), model.family) is None:
        output: Any = cast(Any, stage).get_output_embeddings()
        shapes = {
            name: shapes[name]
            for name, each in parameter_names(stage).items()
            if output is None or each is not output.weight
        }
    order = ready_order(staged)
    whole = without_values(model)
    return ModelPart(
        {
            name: divided(shapes[name], predict.tensor_parallel, model.hidden_size)
            for name in order
            if name in shapes
        },
        sum(each.numel() for each in whole.parameters()),
        step_flops(model, whole, predict) / (predict.tensor_parallel * predict.pipeline_parallel),
    )


def divided(shape: Sequence[int], workers: int, hidden: int) -> tuple[int, ...]:
    """The shape of one worker's share of a matrix, divided as in Megatron-LM: along the dimension that is not
    the hidden states', e.g. the heads', or the first if both or neither are. Vectors are not divided."""
    if len(shape) < 2:
        return tuple(shape)
    at = 1 if shape[0] == hidden and shape[1] != hidden else 0
    return tuple(-(-size // workers) if index == at else size for index, size in enumerate(shape))


def step_flops(model: ModelConfig, whole: nn.Module, predict: PredictConfig) -> float:
    """Floating-point operations of a step of one replica: two for each weight of a matrix and token, plus the
    products of attention; times three, or four if activations are recomputed.

    For GPT models this is Megatron-LM's formula (Narayanan et al. 2021, §5.1), in which the last layer is not
    recomputed.
    """
    length = model.recipe.sequence_length
    tokens = predict.sequences * length
    head_dim = model.head_dim or model.hidden_size // model.num_heads
    attention = 4 * tokens * length * model.num_layers * model.num_heads * head_dim
    output: Any = cast(Any, whole).get_output_embeddings()
    matrices = [
        weight.numel()
        for module in whole.modules()
        if not isinstance(module, nn.Embedding) and module is not output
        for weight in [getattr(module, "weight", None)]
        if isinstance(weight, torch.Tensor) and weight.dim() == 2
    ]
    layers = 2 * tokens * sum(matrices) + attention
    last = 0 if output is None else 2 * tokens * output.weight.numel()
    return float((4 if predict.recompute else 3) * layers + 3 * last)


def without_values(model: ModelConfig) -> nn.Module:
    """The whole model with tensors that have shapes but no values."""
    with META:
        return _made(model)


def _made(model: ModelConfig) -> nn.Module:
    import transformers

    described = transformers_config(replace(model, tokenizer=None), model.vocab_size)
    made: nn.Module = getattr(transformers, HEADS[model.objective]).from_config(
        described, attn_implementation=ATTENTION, dtype=torch.float32
    )
    return made


def shrunk(model: ModelConfig, width: int = SMALLEST) -> ModelConfig:
    """A model with the same depth whose matrices are `width` wide."""
    return replace(
        model,
        hidden_size=width,
        intermediate_size=width,
        vocab_size=width,
        num_heads=1,
        num_kv_heads=1,
        head_dim=None,
    )


def ready_order(model: ModelConfig) -> Sequence[str]:
    """The parameters in the order in which a backward pass produces their gradients.

    The order depends on the layers, not on their sizes, so it is found with a model of the same depth and the
    smallest matrices. Parameters without gradients come last.
    """
    before = torch.default_generator.get_state()
    try:
        small = _made(shrunk(model))
    finally:
        torch.default_generator.set_state(before)
    named, ready = parameter_names(small), dict[str, None]()
    for name, parameter in named.items():
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, name=name: ready.setdefault(name)
        )
    ids = torch.full((1, TOKENS), 3)
    small(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    return [*ready, *(name for name in named if name not in ready)]
