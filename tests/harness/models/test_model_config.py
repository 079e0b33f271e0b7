"""Model settings: usable by OmegaConf, refused in one line, equal to the published models."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

from gradwire.harness.models.build import transformers_config
from gradwire.harness.models.config import ModelConfig, RecipeConfig, check
from gradwire.harness.models.presets import PRESETS
from gradwire.harness.models.registry import family_names

PARAMETERS = {"gpt2": 124_439_808, "llama1b": 1_235_814_400, "bert_large": 335_174_458}
"""As published: the parameters of the checkpoints on the Hugging Face hub."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_have_the_published_number_of_parameters(name):
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = PRESETS[name]()
    check(config)
    auto = AutoModelForCausalLM if config.objective == "causal" else AutoModelForMaskedLM
    with torch.device("meta"):
        model = auto.from_config(transformers_config(config, config.vocab_size))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_llama_preset_has_the_published_rotary_constants():
    described = transformers_config(PRESETS["llama1b"](), 128256)
    assert described.rope_parameters == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_omegaconf_composes_settings_with_interpolations():
    schema = OmegaConf.structured(ModelConfig)
    changes = {"num_heads": 6, "num_kv_heads": "${num_heads}", "path": "/weights", "recipe": {"epochs": 2}}
    made = OmegaConf.to_object(OmegaConf.merge(schema, changes))
    assert made == ModelConfig(num_heads=6, num_kv_heads=6, path="/weights", recipe=RecipeConfig(epochs=2.0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "t5"}, "model.family=t5: must be one of bert, gpt2, llama"),
        ({"weights": "none"}, "model.weights=none: must be one of pretrained, random"),
        ({"objective": "masked"}, "model.objective=masked: must be one of causal"),
        ({"num_layers": 0}, "model.num_layers=0"),
        ({"num_heads": 5, "num_kv_heads": 5}, "model.num_heads=5: must divide model.hidden_size=768"),
        ({"num_kv_heads": 5}, "model.num_kv_heads=5: must divide model.num_heads=12"),
        ({"num_kv_heads": 6}, "use model.num_kv_heads=12"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"path": "/weights"}, "model.weights=pretrained"),
        ({"recipe": RecipeConfig(sequence_length=1025)}, "between 2 and model.context=1024"),
        ({"recipe": RecipeConfig(micro_batch=0)}, "model.recipe.micro_batch=0"),
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


def test_every_file_of_families_is_a_family():
    assert family_names() == ("bert", "gpt2", "llama")


def test_settings_and_availability_do_not_import_transformers():
    code = (
        "import sys\n"
        "from gradwire.harness.models import presets, config, weights\n"
        "config.check(presets.llama1b()); weights.weights_available(presets.gpt2())\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
