"""Examples made by hand, as training reads them, and small models for them."""

from __future__ import annotations

import random
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradwire.harness.data.example_rows import write_examples
from gradwire.harness.data.examples import Examples, LabelledText, Question, as_text
from gradwire.harness.data.token_data import PreparedData, TokenData, read_data
from gradwire.harness.data.tokenizer import trained_tokenizer
from gradwire.harness.models.build import build_model
from gradwire.harness.models.families import FAMILIES
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.models.vision import VISION

WORDS = ["gradient", "ring", "butterfly", "bucket", "worker", "sum", "of", "all", "the", "naïve"]


def questions(number: int, seed: int = 0) -> list[Question]:
    """Questions of different lengths with three or four choices."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        choices = draw.sample(WORDS, k=draw.choice([3, 4]))
        text = " ".join(draw.choices(WORDS, k=draw.randint(2, 12)))
        found.append(Question(f"{text}?", tuple(choices), draw.randrange(len(choices))))
    return found


def sentences(number: int, seed: int = 0) -> list[LabelledText]:
    """Single sentences and pairs, labelled by whether "ring" is in the first."""
    draw = random.Random(seed)
    found = []
    for index in range(number):
        first, second = (" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(2))
        found.append(LabelledText(first, second if index % 3 == 0 else None, int("ring" in first)))
    return found


def written(
    folder: Path,
    examples: Examples,
    length: int = 64,
    tokenizer: PreTrainedTokenizerFast | None = None,
    **limits: int,
) -> TokenData:
    """The examples as training reads them; by default with a tokenizer of 300 entries trained on them."""
    tokenizer = tokenizer or trained_tokenizer(map(as_text, examples.train), 300, folder / "cache")
    write_examples(folder, examples, tokenizer, length, limits.get("held_out"), limits.get("tokens"))
    return read_data(folder, 0.15)


def as_examples(
    train: list, held_out: list, labels: tuple[str, ...] = (), metric: str = "accuracy"
) -> Examples:
    return Examples("by hand", train, held_out, "by hand", metric, labels)


def model_for(family: str, objective: str, data: PreparedData) -> PreTrainedModel:
    """A model of two layers in evaluation mode, with random weights large enough to have opinions."""
    if family in VISION:
        shape = {"depths": [1, 1], "hidden_size": 16, "bottleneck": False, "dropout": 0.0}
        config = ModelConfig(name="tiny", family=family, objective=objective, **shape)
        return build_model(config, seed=0, labels=data.labels).eval()
    grouped = FAMILIES[family].grouped_heads
    config = ModelConfig(
        name="tiny",
        family=family,
        objective=objective,
        num_layers=2,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2 if grouped else 4,
        intermediate_size=64,
        context=128,
        dropout=0.0,
        recipe=RecipeConfig(sequence_length=16),
    )
    model = build_model(config, data.vocab_size, seed=0, labels=data.labels).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model
