"""What a model is, in words that fit every family, and how the papers train it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .registry import family, family_names

WEIGHTS = ("pretrained", "random")
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
    """Hyper-parameters of fine-tuning or training a model (DynamiQ Table 1). Defaults: GPT-2 125M."""

    sequence_length: int = 1024
    """Tokens per packed sequence; at most the model's context."""
    micro_batch: int = 4
    """Sequences per worker and forward pass (EDGC §V)."""
    lr: float = 6e-4
    """Learning rate at the first step (SDP4Bit Table 7, 125M)."""
    end_factor: float = 0.125
    """Learning rate at the end of the linear schedule, as a fraction of `lr`."""
    epochs: float = 3.0
    """How long to train, in passes over the training split."""
    schedule_epochs: float = 2.0
    """How long the learning rate falls, in epochs; it stays at lr * end_factor afterwards."""


@dataclass
class ModelConfig:
    """One model. The defaults are GPT-2 with 124M parameters, trained from scratch."""

    name: str = "gpt2"
    family: str = "gpt2"
    """Which mapping builds it: bert, gpt2 or llama."""
    objective: str = "causal"
    """`causal` (next token) or `masked` (BERT's masked language modelling)."""
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    num_kv_heads: int = 12
    """Key/value heads; fewer than `num_heads` is grouped-query attention (llama only)."""
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
    """`pretrained`, or `random` (initialized from the seed, tokenizer trained on the data)."""
    pretrained: str = "openai-community/gpt2"
    """Hugging Face name of the pretrained weights and their tokenizer."""
    path: str | None = None
    """A local folder to take instead of `pretrained`, in the Hugging Face layout."""
    paper_dataset: str = "openwebtext"
    """The data set the papers train this model on."""
    recipe: RecipeConfig = field(default_factory=RecipeConfig)


def check(config: ModelConfig) -> None:
    """Raise a one-line ValueError for the first field of `config` that cannot work."""
    _one_of("family", config.family, family_names())
    _one_of("weights", config.weights, WEIGHTS)
    _one_of("objective", config.objective, family(config.family).objectives)
    for name in SIZES:
        _at_least_one(name, getattr(config, name))
    _divides("num_heads", config.num_heads, "hidden_size", config.hidden_size)
    _divides("num_kv_heads", config.num_kv_heads, "num_heads", config.num_heads)
    if config.num_kv_heads != config.num_heads and not family(config.family).grouped_heads:
        raise ValueError(
            f"model.num_kv_heads={config.num_kv_heads}: {config.family} has no grouped-query attention; "
            f"use model.num_kv_heads={config.num_heads}"
        )
    if not 0 <= config.dropout < 1:
        raise ValueError(f"model.dropout={config.dropout}: must be at least 0 and below 1")
    if config.path is not None and config.weights == "random":
        raise ValueError(
            f"model.path={config.path} has no effect with model.weights=random; use model.weights=pretrained"
        )
    check_recipe(config.recipe, config.context)


def check_recipe(recipe: RecipeConfig, context: int) -> None:
    """Raise a one-line ValueError for the first hyper-parameter that cannot work; `context` in tokens."""
    _at_least_one("recipe.micro_batch", recipe.micro_batch)
    if not 2 <= recipe.sequence_length <= context:
        limits = f"between 2 and model.context={context}"
        raise ValueError(f"model.recipe.sequence_length={recipe.sequence_length}: must be {limits}")
    for name in ("lr", "epochs", "schedule_epochs"):
        if not getattr(recipe, name) > 0:
            raise ValueError(f"model.recipe.{name}={getattr(recipe, name)}: must be above 0")
    if not 0 < recipe.end_factor <= 1:
        raise ValueError(f"model.recipe.end_factor={recipe.end_factor}: must be above 0 and at most 1")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"model.{name}={value}: must be one of {', '.join(allowed)}")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"model.{name}={value}: must be at least 1")


def _divides(name: str, divisor: int, of_name: str, dividend: int) -> None:
    if dividend % divisor:
        raise ValueError(f"model.{name}={divisor}: must divide model.{of_name}={dividend}")
