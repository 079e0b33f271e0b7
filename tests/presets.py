"""The models of conf/model, as `model=<name>` composes them."""

from __future__ import annotations

from functools import cache

from omegaconf import OmegaConf

from gradwire.harness.config.compose import compose
from gradwire.harness.models.families import FOLDER
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.runtime.conf import conf_directory

PRESETS = tuple(sorted({path.stem for path in (conf_directory() / "model").glob("*.yaml")} - {FOLDER}))


@cache
def preset(name: str) -> ModelConfig:
    """The model that `model=<name>` stands for at its paper's size."""
    model = OmegaConf.to_object(compose([f"model={name}"]).model)
    assert isinstance(model, ModelConfig)
    return model
