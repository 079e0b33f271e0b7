"""The settings of a model, in terms that fit every family, and the training recipes of the papers."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.codecs.fields import (
    NOTHING,
    at_least,
    between,
    check_fields,
    checked,
    list_of,
    one_of,
    plain_name,
)
from gradwire.harness.models.families import AUTO, FAMILIES, FOLDER, HEADS
from gradwire.harness.models.vision import OBJECTIVE, VISION, check_vision

PAD, END, MASK = "<|pad|>", "<|end|>", "<|mask|>"
SPECIAL_TOKENS = (PAD, END, MASK)
PAD_ID, END_ID, MASK_ID = range(3)


LONGEST_RUN = 10**9
"""The largest number of optimizer steps."""

OPTIMIZERS = ("adamw", "adam", "sgd")
SCHEDULES = ("linear", "cosine", "steps")
"""Shapes of the learning rate's decay."""


@dataclass(frozen=True)
class RecipeConfig:
    """A paper's fine-tuning or pre-training, in steps or epochs. The defaults are GPT-2 125M's."""

    sequence_length: int = at_least(2, 1024, 1 << 24)
    """Tokens per packed sequence; at most the model's context."""
    micro_batch: int = at_least(1, 4, 65_536)
    """Sequences per worker and forward pass (EDGC §V)."""
    batch: int | None = at_least(1, None, LONGEST_RUN)
    """Sequences of all workers in one optimizer step; null: one micro-batch per worker."""
    lr: float = between(0, 1e30, 6e-4, low_included=False)
    """Learning rate at the first step, after warm-up if there is one (SDP4Bit Table 9, 125M)."""
    optimizer: str = one_of(*OPTIMIZERS)
    """AdamW, Adam, or SGD with momentum 0.9."""
    weight_decay: float = between(0, 100, 0.01)
    """Weight decay of matrices: AdamW's is decoupled, that of the others is part of the gradient."""
    beta2: float = between(0, 0.999999, 0.999)
    """AdamW's and Adam's decay rate of the mean of squared gradients."""
    warmup_steps: int = at_least(0, 0, LONGEST_RUN)
    """Optimizer steps in which the learning rate climbs linearly to `lr`."""
    schedule: str = one_of(*SCHEDULES)
    """Decay of the learning rate: `linear` or `cosine` from `lr` to `lr * end_factor`, or in `steps`: by 10
    every `decay_epochs`."""
    end_factor: float = between(0, 1, 0.125, low_included=False)
    """Learning rate at the end of the schedule, as a fraction of `lr`."""
    steps: int | None = at_least(1, None, LONGEST_RUN)
    """Length of the training in optimizer steps; null: `epochs` decides."""
    epochs: float | None = at_least(1e-6, 3.0, 1e6)
    """Length of the training in passes over the training split."""
    schedule_epochs: float | None = at_least(1e-6, 2.0, 1e6)
    """Epochs in which the learning rate falls before it stays at lr * end_factor; null: the whole run."""
    decay_epochs: float | None = at_least(1e-6, None, 1e6)
    """Passes between two decays of a schedule by steps."""


@dataclass(frozen=True)
class ModelConfig:
    """One model. The defaults are GPT-2 with 124M parameters, trained from scratch."""

    name: str = plain_name("gpt2")
    family: str = one_of(*FAMILIES, *VISION, FOLDER, default="gpt2")
    """The family that builds it: an entry of FAMILIES in `families.py`, or of VISION in `vision.py`. Of
    `model=folder` the model_type of its config.json, which may be any other of transformers'."""
    objective: str = one_of(*HEADS, AUTO)
    """`causal` (next token), `masked` (BERT's masked language modelling), `choice` (the answers of
    multiple-choice questions), `classification` (labels of sentences), `image_classification`, or `auto`:
    the one that the head of the weights in `path` is for."""
    num_layers: int = at_least(1, 12, 1024)
    hidden_size: int = at_least(1, 768, 1 << 20)
    """Channels of a token; of models for images those of the last stage's 3×3 convolutions, where each stage
    has twice those of the one before."""
    num_heads: int = at_least(1, 12, 1 << 14)
    num_kv_heads: int = at_least(1, 12, 1 << 14)
    """Key/value heads; fewer than `num_heads` is grouped-query attention (llama and gemma only)."""
    head_dim: int | None = at_least(1, None, 1 << 16)
    """Channels of one attention head; null: hidden_size / num_heads, the only choice of bert and gpt2."""
    intermediate_size: int = at_least(1, 3072, 1 << 22)
    vocab_size: int = at_least(1, 50257, 1 << 24)
    """Largest vocabulary. A tokenizer trained on little text may need fewer entries."""
    context: int = at_least(1, 1024, 1 << 24)
    """Positions the model can distinguish, in tokens."""
    depths: list[int] = list_of(low=1, high=1024)
    """Residual layers of each stage; models for images only."""
    bottleneck: bool = True
    """True if a residual layer narrows to a 3×3 convolution between two of 1×1, false if it has two of 3×3;
    models for images only."""
    groups: int = at_least(1, 1, 1 << 12)
    """Groups that 3×3 convolutions are divided into (resnext only)."""
    dropout: float | None = between(0, 1, 0.1, high_included=False)
    """Dropout probability wherever the family has dropout; applied to pretrained weights, too. null: those of
    the folder's config.json, or of the family in transformers."""
    tie_embeddings: bool = True
    """True if input embedding and output projection share one matrix."""
    weights: str = one_of("pretrained", "random", default="random")
    """`pretrained`, or `random` (initialized from the seed)."""
    pretrained: str | None = "openai-community/gpt2"
    """Hugging Face name of the pretrained weights and their tokenizer; null: `path` says all of the model."""
    path: str | None = None
    """A local folder to use instead of `pretrained`, in the Hugging Face layout."""
    architecture: str | None = checked(None, kinds=(NOTHING,), optional=True)
    """The class that the pretrained weights' config.json names; the shape is theirs then."""
    parameters: int | None = checked(None, kinds=(NOTHING,), optional=True)
    """The floating-point numbers in the files of the pretrained weights, a tied matrix once."""
    tokenizer: str | None = None
    """Hugging Face name or local folder of the tokenizer. null: the tokenizer of the pretrained weights, or,
    with random weights, one trained on the data."""
    paper_dataset: str = "openwebtext"
    """The data set the papers train this model on."""
    recipe: RecipeConfig = field(default_factory=RecipeConfig)

    @property
    def is_folder(self) -> bool:
        """True if its folder alone determines the model: `model=folder`."""
        return self.pretrained is None


SET_BY_WEIGHTS = ("architecture", "parameters")
"""Fields that the files of pretrained weights alone set."""


def check(config: ModelConfig) -> None:
    """Raises a one-line ValueError for the first invalid field of `config`."""
    given = {name: value for name, value in vars(config).items() if name not in SET_BY_WEIGHTS}
    if config.is_folder:
        check_fields(ModelConfig, given | {"family": FOLDER}, "model")
        check_recipe(config.recipe, config.context, config.path)
        return
    check_fields(ModelConfig, given, "model")
    objectives = (OBJECTIVE,) if config.family in VISION else FAMILIES[config.family].objectives
    if config.objective not in objectives:
        raise ValueError(
            f"model.objective={config.objective}: {config.family} supports only {', '.join(objectives)}; use "
            f"model.objective={objectives[0]}"
        )
    if config.family in VISION:
        check_vision(config)
    else:
        if config.architecture is None:  # else they are those of trained weights
            _check_heads(config)
    if config.tokenizer is not None and config.weights == "pretrained":
        raise ValueError(
            f"model.tokenizer={config.tokenizer} cannot be used with model.weights=pretrained, whose "
            "vocabulary is that of their own tokenizer; use model.tokenizer=null or model.weights=random"
        )
    check_recipe(config.recipe, config.context, config.path)


def _check_heads(config: ModelConfig) -> None:
    _divides("num_heads", config.num_heads, "hidden_size", config.hidden_size)
    _divides("num_kv_heads", config.num_kv_heads, "num_heads", config.num_heads)
    described, usual = FAMILIES[config.family], config.hidden_size // config.num_heads
    if config.num_kv_heads != config.num_heads and not described.grouped_heads:
        raise ValueError(
            f"model.num_kv_heads={config.num_kv_heads}: {config.family} has no grouped-query attention; "
            f"use model.num_kv_heads={config.num_heads}"
        )
    if config.head_dim not in (None, usual) and not described.own_head_dim:
        raise ValueError(
            f"model.head_dim={config.head_dim}: in {config.family} it is hidden_size / num_heads; "
            "use model.head_dim=null"
        )


def check_recipe(recipe: RecipeConfig, context: int, path: str | None = None) -> None:
    """Raises a one-line ValueError for the first hyper-parameter that cannot work; `context` in tokens, of
    the model in the folder `path` if there is one."""
    check_length("model.recipe.sequence_length", recipe.sequence_length, context, path)


def check_length(key: str, length: int | None, context: int, path: str | None) -> None:
    """Raises a one-line ValueError unless a sequence of `length` tokens fits into the model's positions."""
    if length is not None and 2 <= length <= context:
        return
    if path is not None and length is not None and length > context:
        raise ValueError(f"{key}={length}: the model in {path} has {context} positions; use {key}={context}")
    raise ValueError(f"{key}={length}: must be between 2 and model.context={context}")


def _divides(name: str, divisor: int, of_name: str, dividend: int) -> None:
    if dividend % divisor:
        raise ValueError(f"model.{name}={divisor}: must divide model.{of_name}={dividend}")
