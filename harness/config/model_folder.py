"""Configurations of models whose files say what they are: `model=folder`, and pretrained weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.explain import plain
from gradwire.harness.config.overrides import said
from gradwire.harness.data.prepare import labels_of
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.data.tokenizer import own_tokenizer
from gradwire.harness.files.folders import files_in
from gradwire.harness.models.build import quiet_transformers, without_values
from gradwire.harness.models.described import Described, kind_of
from gradwire.harness.models.families import AUTO, FOLDER
from gradwire.harness.models.folder import described, objective_of, settled
from gradwire.harness.models.settings import ModelConfig, RecipeConfig, check_length
from gradwire.harness.models.weights import FOLDER_WAYS_OUT, WAYS_OUT
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.trainer.settings import RunConfig

UNSIZED = "paper"
"""The size that sets nothing."""

OF_SIZE = ("sequence_length", "micro_batch", "batch")
"""What a size sets of a folder's recipe: how much a step trains on. Shape, weights, tokenizer and rate are
those of `model=folder`."""

SHAPE = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
    *("vocab_size", "context", "tie_embeddings"),
)
"""Keys of a model that its weights decide."""

LENGTH = "recipe.sequence_length"
"""That of a folder's recipe is cut to its positions, unless it was asked for."""

_loaded: set[tuple[object, ...]] = set()
"""The models that this process has found to load, with the state of their folders."""


def keep_from_size(config: DictConfig, unsized: DictConfig) -> None:
    """Give a `config` of `model=folder` the model that it has without a size, but for what a size sets of the
    recipe. `unsized`: the configuration of the same choices without one."""
    sized = OmegaConf.to_container(config.model.recipe, resolve=False)
    assert isinstance(sized, dict)
    config.model = unsized.model.copy()
    for name in OF_SIZE:
        config.model.recipe[name] = sized[name]


def check_shape_given(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse a key of the shape that was asked for and differs from what the weights have."""
    given = {override.key_or_group: override for override in overrides}
    family = given.get("model.family")
    if family is not None and family.value() == FOLDER:
        raise ConfigError(f"{said(family)}: choose it by model=folder model.path=<folder>")
    if plain(config, "model.family") == FOLDER:
        for key in ("model.pretrained", "model.family"):
            if key in given and given[key].value() is not None:
                raise ConfigError(
                    f"{said(given[key])} has no effect on model=folder, whose files say it; leave it out"
                )
    asked = [name for name in (*SHAPE, LENGTH) if f"model.{name}" in given]
    found = _described(config) if asked else None
    if found is None:
        return
    for name, value in found.shape().items():
        override = given.get(f"model.{name}")
        wanted = plain(config, f"model.{name}")
        if override is not None and wanted not in (value, None):
            raise ConfigError(
                f"{said(override)} contradicts the weights of {_source(config)}, which have {value}; "
                "leave it out"
            )
    if f"model.{LENGTH}" in given and found.context is not None:
        length = plain(config, f"model.{LENGTH}")
        refused_as_config_error(check_length, f"model.{LENGTH}", length, found.context, _source(config))


def _described(config: DictConfig) -> Described | None:
    """What the weights say of a model; None where none are read, or what is refused later."""
    try:
        return described(_named(config), fetch=False)
    except ValueError:
        return None


def _named(config: DictConfig) -> ModelConfig:
    """The fields of a model that say where its weights lie and what they are for."""
    names = ("name", "family", "objective", "weights", "pretrained", "path")
    return ModelConfig(**{name: plain(config, f"model.{name}") for name in names})


def _source(config: DictConfig) -> str:
    return str(plain(config, "model.path") or plain(config, "model.pretrained"))


def settle_objective(config: DictConfig) -> None:
    """Replace `model.objective=auto` by what it stands for, since sizes look values up by it."""
    if plain(config, "model.objective") == AUTO:
        objective = refused_as_config_error(objective_of, _named(config))
        OmegaConf.update(config, "model.objective", objective)


def with_shape_of_weights(run: RunConfig) -> RunConfig:
    """`run` with the model that the files of its weights describe. Raises ValueError in one line."""
    return replace(run, model=settled(run.model))


def check_folder_loads(run: RunConfig) -> None:
    """Refuse weights, a tokenizer or labels in a folder that do not fit together. Raises ValueError in one
    line. Of weights the headers are read."""
    model = run.model
    if model.path is None or not (model.is_folder or model.weights == "pretrained"):
        return
    remedy = FOLDER_WAYS_OUT if model.is_folder else WAYS_OUT
    folder = Path(model.path).expanduser()
    states = [(path, path.stat()) for path in files_in(folder, remedy=remedy)]
    contents = tuple(sorted((str(path), state.st_size, state.st_mtime_ns) for path, state in states))
    labels = labels_of(run.dataset) if model.objective == "classification" else ()
    key = (repr(replace(model, name="", recipe=RecipeConfig())), labels, contents)
    if key in _loaded:
        return
    _check_labels(model, run.dataset, labels)
    quiet_transformers()
    _check_known(model)
    made = without_values(model, labels)
    _check_tokenizer(model, made.config.pad_token_id)
    _loaded.add(key)


def _check_labels(model: ModelConfig, dataset: DatasetConfig, labels: Sequence[str]) -> None:
    found = described(model)
    if found is None or found.kind != "classification" or found.num_labels == len(labels):
        return
    raise ValueError(
        f"model.path={model.path}: its head tells {found.num_labels} labels apart, and "
        f"dataset={dataset.name} has {len(labels)} ({', '.join(labels)}); use data with as many, or a masked "
        "model, which gets a new head"
    )


def _check_known(model: ModelConfig) -> None:
    from transformers import CONFIG_MAPPING, __version__

    if model.is_folder and kind_of(model.architecture) and model.family not in CONFIG_MAPPING:
        found = described(model)
        if found is None or found.model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"model.path={model.path}: its config.json says model_type={model.family}, which "
                f"transformers {__version__} does not have, and code of a folder is never run; use another "
                "model"
            )


def _check_tokenizer(model: ModelConfig, padding: object) -> None:
    tokenizer = own_tokenizer(model)
    assert tokenizer is not None, "a folder has or is given one"
    source = model.tokenizer or model.path
    entries = max(tokenizer.get_vocab().values()) + 1
    if entries > model.vocab_size:
        raise ValueError(
            f"the tokenizer of {source} has {entries} entries, and the model in {model.path} embeds "
            f"{model.vocab_size}; use the tokenizer that the model was trained with"
        )
    if model.objective == "masked" and tokenizer.mask_token_id is None:
        raise ValueError(
            f"model.objective=masked: the tokenizer of {source} has no mask token; use the one that the "
            "model was trained with"
        )
    if model.objective == "classification" and padding != tokenizer.pad_token_id:
        raise ValueError(
            f"model.objective=classification: the tokenizer of {source} pads with {tokenizer.pad_token_id}, "
            f"and the model's config.json has pad_token_id={padding}; make them agree"
        )
