"""Hydra's and OmegaConf's refusals, said in one line with the way out.

Both raise errors of several lines that name internals; here they become a `ConfigError` that names
the override, what is allowed, and the closest thing that exists.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from gradwire.harness.config.errors import ConfigError, closest, did_you_mean
from gradwire.harness.config.store import choices_with_field, group_schemas

CONFIG_NAME = "config"

ROOT_KEYS = ("hydra", "seed", "resume")
"""Keys of the root beside the groups, whatever the task."""

OPTIONAL_GROUPS = ("experiment", "sweeps")
"""Groups without a choice by default."""


def group_choices(group: str) -> list[str]:
    """The choices of a group of `conf/`, sorted; empty when there is no such group. Needs Hydra."""
    loader = GlobalHydra.instance().config_loader()
    return sorted(loader.get_group_options(group, results_filter=ObjectType.CONFIG))


def check_groups(overrides: Sequence[Override]) -> None:
    """Raise ConfigError for the first override that picks a choice its group does not have."""
    for override in overrides:
        group, value = override.key_or_group, override.value()
        choices = [] if "." in group else group_choices(group)
        if not choices or (value is None and group in OPTIONAL_GROUPS):
            continue
        if override.is_delete() or value is None:
            raise ConfigError(
                f"{override.input_line}: a run needs a {group}; choose one of {', '.join(choices)}"
            )
        for choice in value if isinstance(value, list) else [value]:
            if str(choice) not in choices:
                fix = (closest(str(choice), choices) or choices)[0]
                raise ConfigError(
                    f"{group}={choice} is unknown; choose one of {', '.join(choices)}, e.g. {group}={fix}"
                )


def explain(error: BaseException, overrides: Sequence[Override]) -> ConfigError:
    """The ConfigError that says in one line what Hydra's `error` means for these overrides."""
    cause = _omegaconf_cause(error)
    text = _first_sentence(cause or error)
    key = str(getattr(cause, "full_key", None) or "")
    override = _culprit(error, key, overrides)
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        unknown = override.key_or_group if override is not None else key or text
        return unknown_key(unknown, str(override.input_line) if override is not None else None, overrides)
    if isinstance(cause, ValidationError):
        key = key or (override.key_or_group if override is not None else "a value")
        given = str(override.input_line) if override is not None else key
        return ConfigError(f"{given}: {_expected(text, key)}")
    return ConfigError(f"{override.input_line}: {text}" if override is not None else text)


def check_keys(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Raise ConfigError for a key that was added with `+`, or by a file, and that nothing reads.

    The root has no schema, so that tasks can add keys: its known keys are those of the default
    configuration with the same task. Needs Hydra.
    """
    extra = set(config) - {*ROOT_KEYS, *group_schemas()}
    if extra:
        # Not the override's: a sweep or an experiment may have chosen the task.
        known = group_choices("task")
        extra -= set(hydra.compose(CONFIG_NAME, [f"task={config.task.name}"] * (config.task.name in known)))
    for key in [*sorted(map(str, extra)), *_beyond_schemas(config)]:
        raise unknown_key(key, None, overrides)


def unknown_key(key: str, given: str | None, overrides: Sequence[Override] = ()) -> ConfigError:
    """The refusal of a key that the configuration does not have. Needs Hydra."""
    known = [str(override.input_line) for override in overrides if _is_choice(override)]
    keys = list(all_keys(hydra.compose(CONFIG_NAME, known, return_hydra_config=key.startswith("hydra"))))
    group, _, field = key.lstrip("+~").partition(".")
    owners = list(choices_with_field(group, field)) if field else []
    if owners:
        chosen = " or ".join(f"{group}={owner}" for owner in owners)
        return ConfigError(
            f"{given or key}: unknown key {key}; add {chosen}, which has it, or leave {key} out"
        )
    return ConfigError(
        f"{given or key}: unknown key {key}{did_you_mean(key, keys) or _fields_of(group, keys)}"
    )


def all_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration, groups and leaves."""
    for name in config:
        key = f"{prefix}{name!s}"
        yield key
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            yield from all_keys(node, f"{key}.")


def broken_interpolation(config: DictConfig, error: OmegaConfBaseException) -> ConfigError:
    """The refusal of a value that refers to something which is not there."""
    for key in all_keys(config):
        try:
            OmegaConf.select(config, key, throw_on_resolution_failure=True)
        except OmegaConfBaseException as found:
            return ConfigError(f"{key}: {_first_sentence(found)}; set {key}=<value> on the command line")
    return ConfigError(_first_sentence(error))


def _beyond_schemas(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """The keys of typed nodes that their dataclass does not have."""
    schema = OmegaConf.get_type(config)
    fields = (
        {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    )
    for name in config:
        key, node = f"{prefix}{name!s}", config._get_node(name)
        if fields is not None and name not in fields:
            yield key
        elif isinstance(node, DictConfig) and not node._is_none() and key != "hydra":
            yield from _beyond_schemas(node, f"{key}.")


def _fields_of(group: str, keys: Sequence[str]) -> str:
    fields = [key for key in keys if key.startswith(f"{group}.") and key.count(".") == 1]
    if fields:
        return f"; {group} has {', '.join(fields)}"
    return f"; the top-level keys are {', '.join(key for key in keys if '.' not in key)}"


def _is_choice(override: Override) -> bool:
    return "." not in override.key_or_group and bool(group_choices(override.key_or_group))


def _omegaconf_cause(error: BaseException | None) -> OmegaConfBaseException | None:
    """The innermost OmegaConf error of a chain of causes."""
    found = None
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            found = error
        error = error.__cause__
    return found


def _culprit(error: BaseException, key: str, overrides: Sequence[Override]) -> Override | None:
    """The override an error is about, by the text Hydra quotes or by the key OmegaConf names."""
    text = str(error)
    for override in reversed(overrides):
        named = f"'{override.key_or_group}'" in text or str(override.input_line) in text
        if named or (key and override.key_or_group == key):
            return override
    return None


def _first_sentence(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not re.match(r"(full_key|object_type|reference_type):?", line)]
    return " ".join(useful[:2]) or type(error).__name__


def _expected(text: str, key: str) -> str:
    """OmegaConf's sentence about a type, in plain words."""
    words = {"Integer": "whole number", "Float": "number", "Boolean": "true or false", "String": "text"}
    match = re.search(r"could not be converted to (\w+)|is not a valid (bool)", text)
    if match:
        kind = words.get(match[1] or "Boolean", match[1])
        return f"{key} has the wrong type, expected {kind}; write {key}=<{kind}>"
    if "not Optional" in text:
        return f"{key} cannot be null; give a value or leave {key} out"
    if "is not a ListConfig" in text:
        return f"{key} has the wrong type, expected a list; write '{key}=[<value>,<value>]'"
    return f"{key} has the wrong type: {text}"
