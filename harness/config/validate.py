"""Every refusal that needs no running worker, and the replacement of every `auto`.

`validate` is the one place a configuration passes before anything starts: under torchrun before the
process group, in a sweep before the first cell, in tests without Hydra's main.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from gradwire.codecs.backends import choose_backend
from gradwire.codecs.registry import make_codec
from gradwire.harness.config.cluster import resolve_cluster
from gradwire.harness.config.errors import ConfigError
from gradwire.harness.config.explain import broken_interpolation
from gradwire.harness.config.fields import check_fields
from gradwire.harness.config.store import group_schemas
from gradwire.harness.data.config import DatasetConfig, resolve_dataset
from gradwire.harness.data.text import TextCorpus
from gradwire.harness.models.config import ModelConfig, check
from gradwire.harness.models.registry import family_names
from gradwire.harness.models.weights import weights_available
from gradwire.harness.tasks.registry import TASKS
from gradwire.harness.topology.registry import TOPOLOGIES

Result = TypeVar("Result")


def validate(config: DictConfig) -> DictConfig:
    """A resolved, read-only copy of a composed configuration that can be run as it is.

    Interpolations and every `auto` or null that stands for something are replaced: `dataset.name`,
    `dataset.sequence_length`, `cluster.workers`, `cluster.backend`, `cluster.device`,
    `train.precision`. Raises ConfigError in one line: field, value, what is allowed, the fix.
    """
    resolved = _resolve(config)
    for group in group_schemas():
        schema = OmegaConf.get_type(resolved[group])
        if dataclasses.is_dataclass(schema):
            check_fields(cast(type, schema), dict(resolved[group]), group)
    _check_names(resolved)
    _check_seed(resolved.seed)
    _check_model(resolved)
    _check_length(resolved)
    refused_as_config_error(make_codec, **_plain(resolved.codec))
    resolved.kernels.name = refused_as_config_error(choose_backend, resolved.kernels.name)
    resolve_cluster(resolved)
    _check_together(resolved)
    _check_parallel(resolved)
    OmegaConf.set_readonly(resolved, True)
    return resolved


def refused_as_config_error(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """`function`'s result; its ValueError, which is already one line, as ConfigError."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def typed(node: DictConfig) -> Any:
    """The dataclass instance a group was composed from, with this configuration's values."""
    return OmegaConf.to_object(node)


def _resolve(config: DictConfig) -> DictConfig:
    resolved = copy.deepcopy(config)
    OmegaConf.set_readonly(resolved, False)
    if "hydra" in resolved:
        OmegaConf.set_struct(resolved, False)
        del resolved["hydra"]
        OmegaConf.set_struct(resolved, True)
    family = resolved.model.family
    if family not in family_names():  # before resolving: sizes look values up by family
        raise ConfigError(f"model.family={family} is unknown; choose one of {', '.join(family_names())}")
    try:
        OmegaConf.resolve(resolved)
        missing = OmegaConf.missing_keys(resolved)
    except (OmegaConfBaseException, MissingMandatoryValue) as error:
        raise broken_interpolation(resolved, error) from None
    for key in sorted(missing):
        raise ConfigError(f"{key} has no value; add {key}=<value>")
    return resolved


def _plain(node: DictConfig) -> dict[str, Any]:
    return {str(key): value for key, value in cast(dict[str, Any], OmegaConf.to_container(node)).items()}


def _check_names(config: DictConfig) -> None:
    for group, known in (("task", TASKS), ("topology", TOPOLOGIES)):
        if config[group].name not in known:
            names = ", ".join(sorted(known))
            raise ConfigError(
                f"{group}.name={config[group].name} is unknown; choose one of {names}, e.g. "
                f"{group}={next(iter(known))}"
            )


def _check_seed(seed: Any) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise ConfigError(f"seed={seed} is out of range; seed must be a whole number from 0 to {2**31 - 1}")


def _check_model(config: DictConfig) -> None:
    """Model, data and weights: what is asked for must exist, without reading all of it."""
    model: ModelConfig = typed(config.model)
    refused_as_config_error(check, model)
    dataset: DatasetConfig = refused_as_config_error(
        resolve_dataset, typed(config.dataset), model, config.size.name
    )
    config.dataset.name, config.dataset.sequence_length = dataset.name, dataset.sequence_length
    if dataset.path is not None:
        _check_readable(dataset)
    reason = weights_available(model)
    if reason is not None:
        raise ConfigError(reason)


def _check_readable(dataset: DatasetConfig) -> None:
    corpus = TextCorpus(Path(str(dataset.path)).expanduser(), dataset.held_out_fraction, dataset.text_field)
    refused_as_config_error(corpus.fingerprint)


def _check_length(config: DictConfig) -> None:
    """Steps against epochs: one of them says how long, and none is ignored silently."""
    train, recipe = config.train, config.model.recipe
    if train.steps is None and train.epochs is None:
        raise ConfigError(
            "train.steps=null and train.epochs=null: a run needs a length; set train.steps=<steps>"
        )
    for by_steps, by_epochs, usual in (
        ("steps", "epochs", recipe.epochs),
        ("schedule_steps", "schedule_epochs", recipe.schedule_epochs),
    ):
        # The recipe's own epochs may stay beside steps: they come from the preset, not from the user.
        if None not in (train[by_steps], train[by_epochs]) and train[by_epochs] != usual:
            raise ConfigError(
                f"train.{by_epochs}={train[by_epochs]} has no effect while "
                f"train.{by_steps}={train[by_steps]}; add train.{by_steps}=null, or leave it out"
            )


def _check_parallel(config: DictConfig) -> None:
    """What the parallelism and its codec cannot do is theirs to say."""
    from gradwire.harness.parallel.registry import PARALLELISMS

    if config.parallel.name not in PARALLELISMS:
        known = ", ".join(sorted(PARALLELISMS))
        raise ConfigError(f"parallel.name={config.parallel.name} is unknown; choose one of {known}")
    reason = PARALLELISMS[config.parallel.name].supports(config)
    if reason is not None:
        raise ConfigError(reason)


def _check_together(config: DictConfig) -> None:
    """Choices that are fine alone and cannot be combined."""
    native, paced = config.codec.name == "native", config.network.name == "paced"
    if native and config.cluster.name == "virtual" and config.cluster.workers > 1:
        raise ConfigError(
            "codec=native needs a process group and cluster=virtual has none; use cluster=local or codec=fp32"
        )
    if native and paced:
        raise ConfigError(
            "codec=native cannot be paced, the backend sends by itself; use network=none or codec=fp32"
        )
    if paced and config.cluster.name == "local" and config.cluster.backend == "nccl":
        raise ConfigError(
            "network=paced works with cluster.backend=gloo or cluster=virtual, not with nccl; add "
            "cluster.backend=gloo"
        )
