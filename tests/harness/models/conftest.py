"""Small models of every family."""

import pytest

from gradwire.harness.models.families import FAMILIES
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

VOCABULARY = 300


def tiny_model(family_name: str, **changes: object) -> ModelConfig:
    """Two layers of 32 channels; key/value heads are shared where the family can."""
    grouped = FAMILIES[family_name].grouped_heads
    settings: dict = {
        "name": "tiny",
        "family": family_name,
        "objective": FAMILIES[family_name].objectives[0],
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2 if grouped else 4,
        "intermediate_size": 64,
        "vocab_size": VOCABULARY,
        "context": 32,
        "dropout": 0.0,
        "recipe": RecipeConfig(sequence_length=16),
    }
    return ModelConfig(**(settings | changes))


@pytest.fixture(params=FAMILIES)
def family_name(request) -> str:
    return request.param


@pytest.fixture
def make_model_config():
    return tiny_model
