"""Model settings: usable by OmegaConf, refused in one line, meaning the same in every family."""

import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from presets import PRESETS, preset

from gradwire.harness.config.store import let_write
from gradwire.harness.models.build import transformers_config
from gradwire.harness.models.families import FAMILIES
from gradwire.harness.models.settings import END_ID, PAD_ID, ModelConfig, RecipeConfig, check


def test_omegaconf_composes_settings_with_interpolations():
    schema = OmegaConf.structured(ModelConfig)
    let_write(schema)
    changes = {"num_heads": 6, "num_kv_heads": "${num_heads}", "path": "/weights", "recipe": {"epochs": 2}}
    made = OmegaConf.to_object(OmegaConf.merge(schema, changes))
    assert made == ModelConfig(num_heads=6, num_kv_heads=6, path="/weights", recipe=RecipeConfig(epochs=2.0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "t5"}, "model.family=t5: choose one of bert, gemma, gpt2, llama"),
        ({"weights": "none"}, "model.weights=none: choose one of pretrained, random"),
        ({"objective": "masked"}, "model.objective=masked: gpt2 supports only causal"),
        ({"num_layers": 0}, "model.num_layers=0"),
        ({"num_heads": 5, "num_kv_heads": 5}, "model.num_heads=5: must divide model.hidden_size=768"),
        ({"num_kv_heads": 5}, "model.num_kv_heads=5: must divide model.num_heads=12"),
        ({"num_kv_heads": 6}, "use model.num_kv_heads=12"),
        ({"head_dim": 32}, "use model.head_dim=null"),
        ({"family": "gemma", "head_dim": 0}, "model.head_dim=0"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"weights": "pretrained", "tokenizer": "some/other"}, "use model.tokenizer=null"),
        ({"recipe": RecipeConfig(sequence_length=1025)}, "between 2 and model.context=1024"),
        ({"recipe": RecipeConfig(micro_batch=0)}, "model.recipe.micro_batch=0"),
        ({"recipe": RecipeConfig(batch=0)}, "model.recipe.batch=0"),
        ({"recipe": RecipeConfig(steps=0)}, "model.recipe.steps=0"),
        (
            {"recipe": RecipeConfig(warmup_steps=-1)},
            "model.recipe.warmup_steps=-1: choose a whole number from 0 to",
        ),
        ({"recipe": RecipeConfig(epochs=0.0)}, "model.recipe.epochs=0.0"),
        (
            {"recipe": RecipeConfig(schedule="step")},
            "model.recipe.schedule=step: choose one of linear, cosine",
        ),
        ({"recipe": RecipeConfig(lr=0.0)}, "model.recipe.lr=0.0"),
        ({"recipe": RecipeConfig(lr=float("nan"))}, "model.recipe.lr=nan"),
        ({"recipe": RecipeConfig(end_factor=1.5)}, "model.recipe.end_factor=1.5"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes, named):
    check(ModelConfig())
    with pytest.raises(ValueError) as refusal:
        check(dataclasses.replace(ModelConfig(), **changes))
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_families_are_listed_by_name():
    assert tuple(FAMILIES) == ("bert", "gemma", "gpt2", "llama")


def test_settings_and_availability_do_not_import_transformers():
    models = [preset(name) for name in PRESETS]
    code = (
        "import sys\n"
        "from gradwire.harness.models.settings import ModelConfig, RecipeConfig, check\n"
        "from gradwire.harness.models import weights\n"
        f"for model in {models!r}:\n"
        "    check(model)\n"
        "    weights.weights_available(model), weights.tokenizer_available(model)\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("family_name", "width"), [("llama", 16), ("gemma", 16), ("gemma", None)])
def test_heads_may_be_as_wide_as_asked(family_name, width, make_model_config):
    described = transformers_config(make_model_config(family_name, head_dim=width), 300)
    assert described.head_dim == (width or 32 // 4)


def test_the_special_tokens_are_those_of_the_tokenizer(make_model_config):
    """Special tokens come from the tokenizer trained on the data, else from the family."""
    trained = transformers_config(make_model_config("gpt2"), 300)
    assert (trained.pad_token_id, trained.eos_token_id) == (PAD_ID, END_ID)
    own = transformers_config(make_model_config("gpt2", tokenizer="openai-community/gpt2"), 50257)
    assert (own.bos_token_id, own.eos_token_id) == (50256, 50256)
