"""Configurations of models whose files determine their shape: `model=folder`, and pretrained weights.

Sizes keep what files determine: of `model=folder`, and of presets whose YAML says where their weights lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.explain import plain
from gradwire.harness.config.overrides import shown
from gradwire.harness.models.described import Described
from gradwire.harness.models.families import AUTO, FOLDER
from gradwire.harness.models.folder import described, objective_of, settled
from gradwire.harness.models.settings import ModelConfig, check_length
from gradwire.harness.packaged.catalogue import folder_of, packaged_at
from gradwire.harness.runtime.effects import no_effect
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.trainer.settings import RunConfig

UNSIZED = "paper"
"""The size that sets nothing."""

OF_SIZE = ("sequence_length", "micro_batch", "batch")
"""The keys of a folder's recipe that a size sets: the amount of data in a step. Shape, weights, tokenizer and
learning rate come from `model=folder`."""

SHAPE = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
    *("vocab_size", "context", "tie_embeddings"),
)
"""Keys of a model that its weights determine."""

LENGTH = "recipe.sequence_length"
"""The key of the sequence length, which is limited to the positions of a folder's model unless set
explicitly."""


def register_packaged_weights() -> None:
    """Registers `${packaged_weights:<name>}`, the folder of weights that `task=weights` fetches; repeating it
    has no effect."""
    OmegaConf.register_new_resolver("packaged_weights", lambda name: str(folder_of(name)), replace=True)


def keeps_its_files(config: DictConfig) -> bool:
    """True if the files of the chosen model stay whatever the size: `config` has no values of the command
    line."""
    chosen = plain(config, "model.family") == FOLDER or plain(config, "model.path") is not None
    return chosen and plain(config, "size.name") != UNSIZED


def leave_packaged_weights(config: DictConfig) -> None:
    """Remove the folder of packaged weights from a `config` that takes random ones, of the preset's shape."""
    path = plain(config, "model.path")
    if plain(config, "model.weights") == "random" and path is not None and packaged_at(path) is not None:
        OmegaConf.update(config, "model.path", None)


def keep_from_size(config: DictConfig, unsized: DictConfig) -> None:
    """Replace the model in a `config` whose files stay by the one without a size, except for the keys of the
    recipe that a size sets. `unsized` is the configuration of the same choices without a size. The rate that
    stays is not the size's, and nor is the batch that it is for."""
    config.size.lr_batch = unsized.size.lr_batch
    sized = OmegaConf.to_container(config.model.recipe, resolve=False)
    assert isinstance(sized, dict)
    config.model = unsized.model.copy()
    for name in OF_SIZE:
        config.model.recipe[name] = sized[name]


def check_shape_given(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse an explicitly set key of the shape that differs from the weights."""
    given = {override.key_or_group: override for override in overrides}
    family = given.get("model.family")
    if family is not None and family.value() == FOLDER:
        raise ConfigError(f"{shown(family)}: choose it by model=folder model.path=<folder>")
    if FOLDER in (plain(config, "model.name"), plain(config, "model.family")):
        for key in ("model.pretrained", "model.family"):
            if key in given and given[key].value() is not None:
                raise no_effect(shown(given[key]), {"model": FOLDER}, "its files say it; leave it out")
    asked = [name for name in (*SHAPE, LENGTH) if f"model.{name}" in given]
    found = _described(config) if asked else None
    if found is None:
        return
    for name, value in found.shape().items():
        override = given.get(f"model.{name}")
        wanted = plain(config, f"model.{name}")
        if override is not None and wanted not in (value, None):
            raise ConfigError(
                f"{shown(override)} contradicts the weights of {_source(config)}, which have {value}; "
                "leave it out"
            )
    if f"model.{LENGTH}" in given and found.context is not None:
        length = plain(config, f"model.{LENGTH}")
        refused_as_config_error(check_length, f"model.{LENGTH}", length, found.context, _source(config))


def _described(config: DictConfig) -> Described | None:
    """The description of a model by its weights; None if there are none, or if they are refused later."""
    try:
        return described(_named(config), fetch=False)
    except ValueError:
        return None


def _named(config: DictConfig) -> ModelConfig:
    """The fields of a model that locate its weights and give their purpose."""
    names = ("name", "family", "objective", "weights", "pretrained", "path")
    return ModelConfig(**{name: plain(config, f"model.{name}") for name in names})


def _source(config: DictConfig) -> str:
    return str(plain(config, "model.path") or plain(config, "model.pretrained"))


def settle_objective(config: DictConfig) -> None:
    """Resolve `model.objective=auto`, because sizes look values up by objective."""
    if plain(config, "model.objective") == AUTO:
        objective = refused_as_config_error(objective_of, _named(config))
        OmegaConf.update(config, "model.objective", objective)


def with_shape_of_weights(run: RunConfig) -> RunConfig:
    """`run` with the model as described by the files of its weights. Raises ValueError in one line."""
    return replace(run, model=settled(run.model))
