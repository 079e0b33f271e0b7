"""What a model is, in words that fit every family, and how the papers train it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .registry import family, family_names

WEIGHTS = ("pretrained", "random")
SCHEDULES = ("linear", "cosine")
SIZES = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "intermediate_size",
    "vocab_size",
    "context",
)


@dataclass
class RecipeConfig:
    """How a paper fine-tunes or pre-trains a model, by steps or by epochs. Defaults: GPT-2 125M."""

    sequence_length: int = 1024
    """Tokens per packed sequence; at most the model's context."""
    micro_batch: int = 4
    """Sequences per worker and forward pass (EDGC §V)."""
    batch: int | None = None
    """Sequences of all workers in one optimizer step; null: one micro-batch per worker."""
    lr: float = 6e-4
    """Learning rate at the first step, after warm-up if there is one (SDP4Bit Table 9, 125M)."""
    weight_decay: float = 0.01
    """AdamW's decoupled decay."""
    beta2: float = 0.999
    """AdamW's mean of squared gradients."""
    warmup_steps: int = 0
    """Optimizer steps in which the learning rate climbs linearly to `lr`."""
    schedule: str = "linear"
    """How the learning rate falls from `lr` to `lr * end_factor`: `linear` or `cosine`."""
    end_factor: float = 0.125
    """Learning rate at the end of the schedule, as a fraction of `lr`."""
    steps: int | None = None
    """How long to train, in optimizer steps; null: `epochs`."""
    epochs: float | None = 3.0
    """How long to train, in passes over the training split."""
    schedule_epochs: float | None = 2.0
    """How long the learning rate falls, in epochs, to stay at lr * end_factor; null: the whole run."""


@dataclass
class ModelConfig:
    """One model. The defaults are GPT-2 with 124M parameters, trained from scratch."""

    name: str = "gpt2"
    family: str = "gpt2"
    """Which mapping builds it: a file of `families/`."""
    objective: str = "causal"
    """`causal` (next token) or `masked` (BERT's masked language modelling)."""
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    num_kv_heads: int = 12
    """Key/value heads; fewer than `num_heads` is grouped-query attention (llama and gemma only)."""
    head_dim: int | None = None
    """Channels of one attention head; null: hidden_size / num_heads, the only choice of bert and gpt2."""
    intermediate_size: int = 3072
    vocab_size: int = 50257
    """Largest vocabulary: a tokenizer trained on little text may need fewer entries."""
    context: int = 1024
    """Positions the model can tell apart, in tokens."""
    dropout: float = 0.1
    """Dropout probability everywhere the family has it; applied to pretrained weights too."""
    tie_embeddings: bool = True
    """Whether input embedding and output projection are one matrix."""
    weights: str = "random"
    """`pretrained`, or `random` (initialized from the seed)."""
    pretrained: str = "openai-community/gpt2"
    """Hugging Face name of the pretrained weights and their tokenizer."""
    path: str | None = None
    """A local folder to take instead of `pretrained`, in the Hugging Face layout."""
    tokenizer: str | None = None
    """Hugging Face name or local folder of the tokenizer; null: the pretrained weights' own, or, with
    random weights, one trained on the data."""
    paper_dataset: str = "openwebtext"
    """The data set the papers train this model on."""
    recipe: RecipeConfig = field(default_factory=RecipeConfig)


def check(config: ModelConfig) -> None:
    """Raise a one-line ValueError for the first field of `config` that cannot work."""
    _one_of("family", config.family, family_names())
    _one_of("weights", config.weights, WEIGHTS)
    _one_of("objective", config.objective, family(config.family).objectives)
    for name in SIZES:
        _at_least(1, name, getattr(config, name))
    _check_heads(config)
    if not 0 <= config.dropout < 1:
        raise ValueError(f"model.dropout={config.dropout}: must be at least 0 and below 1")
    if config.path is not None and config.weights == "random":
        raise ValueError(
            f"model.path={config.path} has no effect with model.weights=random; use model.weights=pretrained"
        )
    if config.tokenizer is not None and config.weights == "pretrained":
        raise ValueError(
            f"model.tokenizer={config.tokenizer} cannot be used with model.weights=pretrained, whose "
            "vocabulary is that of their own tokenizer; use model.tokenizer=null or model.weights=random"
        )
    check_recipe(config.recipe, config.context)


def _check_heads(config: ModelConfig) -> None:
    _divides("num_heads", config.num_heads, "hidden_size", config.hidden_size)
    _divides("num_kv_heads", config.num_kv_heads, "num_heads", config.num_heads)
    described, usual = family(config.family), config.hidden_size // config.num_heads
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
    if config.head_dim is not None:
        _at_least(1, "head_dim", config.head_dim)


def head_dim(config: ModelConfig) -> int:
    """Channels of one attention head."""
    return config.head_dim or config.hidden_size // config.num_heads


def check_recipe(recipe: RecipeConfig, context: int) -> None:
    """Raise a one-line ValueError for the first hyper-parameter that cannot work; `context` in tokens."""
    if not 2 <= recipe.sequence_length <= context:
        limits = f"between 2 and model.context={context}"
        raise ValueError(f"model.recipe.sequence_length={recipe.sequence_length}: must be {limits}")
    for name, least in (("micro_batch", 1), ("batch", 1), ("steps", 1), ("warmup_steps", 0)):
        value = getattr(recipe, name)
        if value is not None:
            _at_least(least, f"recipe.{name}", value)
    for name in ("lr", "epochs", "schedule_epochs"):
        value = getattr(recipe, name)
        if value is not None and not value > 0:
            raise ValueError(f"model.recipe.{name}={value}: must be above 0")
    _one_of("recipe.schedule", recipe.schedule, SCHEDULES)
    if not 0 < recipe.end_factor <= 1:
        raise ValueError(f"model.recipe.end_factor={recipe.end_factor}: must be above 0 and at most 1")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"model.{name}={value}: must be one of {', '.join(allowed)}")


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"model.{name}={value}: must be at least {least}")


def _divides(name: str, divisor: int, of_name: str, dividend: int) -> None:
    if dividend % divisor:
        raise ValueError(f"model.{name}={divisor}: must divide model.{of_name}={dividend}")
