"""The typed settings of a task from a composed configuration, each value checked by its field's rule."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from gradwire.codecs.fields import check_fields
from gradwire.codecs.registry import check_codec, make_codec
from gradwire.harness.comm.topology.registry import topology
from gradwire.harness.config.effects import READ_WITH
from gradwire.harness.config.explain import broken_reference, plain
from gradwire.harness.config.model_folder import leave_packaged_weights, settle_objective
from gradwire.harness.config.root_keys import check_root
from gradwire.harness.config.run_name import what_to_give
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS, Task
from gradwire.harness.models.families import FAMILIES, FOLDER
from gradwire.harness.models.vision import VISION
from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.effects import check_read_settings
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error, shortened


def task_of(config: DictConfig) -> Task:
    """The task named in `config`. Raises ConfigError for an unknown one."""
    name = config.task.name
    if name not in TASKS:
        names = ", ".join(sorted(TASKS))
        raise ConfigError(f"task.name={name} is unknown; choose one of {names}, by task=<name>")
    return TASKS[name]


def typed(config: DictConfig) -> Configuration:
    """`settings_of`, after checking that the codec can be made, which may import PyTorch. Raises
    ConfigError.
    """
    found = settings_of(config)
    codec = getattr(found, "codec", None)
    if codec is not None:
        refused_as_config_error(make_codec, **codec)
    return found


def settings_of(config: DictConfig) -> Configuration:
    """The settings that the task of a composed configuration reads, interpolations replaced.

    Every value has been checked by its field's rule; combinations of fields or groups are not checked. Raises
    ConfigError in one line: field, value, allowed values, the fix. Does not import PyTorch.
    """
    schema = task_of(config).config
    names = [each.name for each in dataclasses.fields(schema)]
    resolved = OmegaConf.masked_copy(config, names)
    OmegaConf.set_readonly(resolved, False)
    _check_family(resolved)
    if "model" in resolved:
        settle_objective(resolved)
        leave_packaged_weights(resolved)
    _resolve(resolved)
    for group in group_schemas():
        typed_by = OmegaConf.get_type(resolved[group]) if group in resolved else None
        if dataclasses.is_dataclass(typed_by):
            refused_as_config_error(check_fields, cast(type, typed_by), dict(resolved[group]), group)
    if "topology" in resolved:
        refused_as_config_error(topology, resolved.topology.name)
    check_root(resolved, config.task.name)
    if "codec" in resolved:
        codec = cast(dict[str, Any], OmegaConf.to_container(resolved.codec))
        refused_as_config_error(check_codec, **codec)
    hints = typing.get_type_hints(schema)
    found = schema(**{name: _value(resolved[name], hints[name]) for name in names})
    check_read_settings(READ_WITH, vars(found))
    return found


def _check_family(config: DictConfig) -> None:
    """Refuse an unknown model family before interpolations are resolved, because sizes look values up by
    family."""
    known = (*FAMILIES, *VISION)
    if "model" not in config or plain(config, "model.family") in (*known, FOLDER):
        return
    given = cast(dict[str, Any], OmegaConf.to_container(config.model, resolve=False))["family"]
    raise ConfigError(f"model.family={shortened(given)} is unknown; choose one of {', '.join(known)}")


def _resolve(config: DictConfig) -> None:
    try:
        OmegaConf.resolve(config)
        missing = OmegaConf.missing_keys(config)
    except (OmegaConfBaseException, MissingMandatoryValue, ValueError, RecursionError):
        raise broken_reference(config) from None
    for key in sorted(missing):
        raise ConfigError(f"{key} has no value; {what_to_give(key, config.task.name)}")


def _value(node: Any, hint: Any) -> Any:
    """A node's value, converted to its field's type."""
    if not OmegaConf.is_config(node):
        return node
    # The codec stays a mapping, because its schema is created at run time and workers could not import it.
    if dataclasses.is_dataclass(OmegaConf.get_type(node)) and typing.get_origin(hint) is not dict:
        return OmegaConf.to_object(node)
    container = OmegaConf.to_container(node)
    return cast(Any, hint)(**cast(Any, container)) if dataclasses.is_dataclass(hint) else container
