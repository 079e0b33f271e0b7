"""Converts refusals of Hydra and OmegaConf to one line that says what to do.

Both raise errors of several lines that name internals. Here they become a `ConfigError` that names the
override, the allowed values, and the closest existing name.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from gradwire.codecs.fields import Rule, rules_of, rules_with
from gradwire.codecs.registry import codec_options
from gradwire.harness.config.aliases import alias_of
from gradwire.harness.config.choices import chosen_in, unknown_choice
from gradwire.harness.config.overrides import no_preset, shown
from gradwire.harness.config.root_keys import root_rules
from gradwire.harness.config.store import choices_with_field, group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, shortened
from gradwire.harness.runtime.program import program

ROOT_KEYS = ("hydra", "seed", "resume", "plots", "sweep")
"""Keys of the root besides the groups, whatever the task."""

MOST_LISTED = 160
"""The largest number of characters of keys that a message lists."""

SUBMITIT = ("hydra_plugins.hydra_submitit_launcher", "hydra-submitit-launcher", "slurm")
JOBLIB = ("hydra_plugins.hydra_joblib_launcher", "hydra-joblib-launcher", "joblib")
LAUNCHERS = {"slurm": SUBMITIT, "submitit_slurm": SUBMITIT, "submitit_local": SUBMITIT, "joblib": JOBLIB}
"""Hydra's launchers from other packages: the module, the package, and this project's extra that installs
it.
"""

OPTIONAL_GROUPS = ("experiment", "sweeps")
"""Groups without a choice by default."""


def check_groups(overrides: Sequence[Override], groups: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError for the first override that picks a choice its group does not have."""
    for override in overrides:
        group, value = override.key_or_group, override.value()
        choices = groups.get(group, ())
        if not choices or value in choices:
            continue
        choices = [choice for choice in choices if ":" not in choice]  # others are plug-ins of this process
        if override.is_delete() or value is None:
            raise ConfigError(f"{shown(override)}: a run needs a {group}; choose one of {', '.join(choices)}")
        elsewhere = no_preset(str(value)) if group == "model" else None
        if elsewhere is not None:
            raise elsewhere
        raise ConfigError(unknown_choice(group, value, choices))


def check_launcher(name: str, srun: bool) -> None:
    """Raise ConfigError for a launcher whose package is not installed, or SLURM's without SLURM (`srun`)."""
    module, package, extra = LAUNCHERS.get(name, ("", "", ""))
    if module and not _is_installed(module):
        raise ConfigError(
            f"hydra/launcher={name} needs the package {package}; run pip install 'gradwire[{extra}]'"
        )
    if package == SUBMITIT[1] and not name.endswith("local") and not srun:
        raise ConfigError(
            f"hydra/launcher={name} needs SLURM, and there is no srun here; run it on a node of the cluster, "
            "or use hydra/launcher=submitit_local"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_choice_name(override: Override, config: DictConfig) -> None:
    """Raise ConfigError for `codec.name=bf16`: names are determined by choices; a model's name is a label of
    its run."""
    group, _, field = override.key_or_group.partition(".")
    if field != "name" or group not in group_schemas() or group == "model":
        return
    chosen = plain(config, override.key_or_group)
    if override.value() != chosen:
        raise ConfigError(
            f"{shown(override)} contradicts {group}={chosen}; choose it by "
            f"{group}={shortened(override.value())}"
        )


def explain(
    error: BaseException, overrides: Sequence[Override], groups: Mapping[str, Sequence[str]]
) -> ConfigError:
    """The ConfigError that explains Hydra's `error` for these overrides in one line."""
    cause = _omegaconf_cause(error)
    text = _first_sentence(cause or error)
    key = str(getattr(cause, "full_key", None) or "")
    override = _culprit(error, key, overrides)
    for each in overrides:
        if each.key_or_group == "network" and str(error).startswith("In 'task/"):
            task = str(error).removeprefix("In 'task/").partition("'")[0]
            return ConfigError(
                f"{each.input_line}: task={task} sets keys that only simulated networks have; leave it out, "
                "or use network=simulated"
            )
    if isinstance(error, RecursionError):
        return ConfigError("its defaults list leads back to itself")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.removeprefix("schema/").rpartition("/")
        choices = groups.get(group, ())
        near = did_you_mean(name, choices) or f"; choose one of {_some(choices or groups)}"
        return ConfigError(f"defaults: {shortened(group)}={shortened(name)} is unknown{near}")
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        names = [] if cause.parent_node is None else [str(name) for name in cause.parent_node]
        near = did_you_mean(str(cause.key), names) or f"; see {program()} --help"
        return ConfigError(f"{key or 'a configuration file'}: unknown key {key}{near}")
    if isinstance(cause, ValidationError):
        if "is not a subclass of" in text:
            return ConfigError("its defaults list builds on two choices; build on one of its group")
        key = key or (override.key_or_group if override is not None else "a value")
        given = str(override.input_line) if override is not None else key
        return ConfigError(f"{given}: {_expected(text, key)}")
    return ConfigError(f"{override.input_line}: {text}" if override is not None else text)


def check_keys(config: DictConfig) -> None:
    """Raise ConfigError for a key that a file added and that nothing reads.

    The root has no schema, so that tasks can add keys; the allowed keys are those of its task.
    """
    if dataclasses.is_dataclass(OmegaConf.get_type(config)):
        raise ConfigError(
            "sets keys of one group in the whole configuration; leave @_here_ and the line # @package "
            "_global_ out"
        )
    task = plain(config, "task.name")
    known = {"hydra", *group_schemas(), *(key.partition(".")[0] for key in root_rules(task))}
    extra = sorted(str(key) for key in config if key not in known)
    for key in [*extra, *_beyond_schemas(config)]:
        raise unknown_key(key, None, config)


def rule_of(config: DictConfig, key: str) -> Rule | None:
    """The rule of a dotted key of a composed configuration; None if there is no such key."""
    group, _, field = key.partition(".")
    rules = root_rules(plain(config, "task.name"))
    if key in rules:
        return rules[key]
    schema = OmegaConf.get_type(config[group]) if group in config else None
    while field and isinstance(schema, type) and dataclasses.is_dataclass(schema):
        name, _, field = field.partition(".")
        found = rules_of(schema).get(name)
        if isinstance(found, Rule):
            return found if not field else None
        schema = found
    return None


def narrowed_rule(key: str, config: DictConfig, given: Mapping[str, Any]) -> Rule | None:
    """The rule that the chosen codec sets for one of its fields, with the values `given` for other keys; None
    for keys of other groups."""
    group, _, field = key.partition(".")
    if group != "codec":
        return None
    own = cast(dict[str, Any], OmegaConf.to_container(config.codec))
    changed = {name.removeprefix("codec."): value for name, value in given.items()}
    rule = rules_with(codec_options(own["name"]), own | changed).get(field)
    return rule if isinstance(rule, Rule) else None


def plain(config: DictConfig, key: str) -> Any:
    """The value of a dotted key; None if it does not exist or refers to nothing."""
    try:
        return OmegaConf.select(config, key)
    except (OmegaConfBaseException, RecursionError):
        return None


def unknown_key(key: str, override: Override | None, config: DictConfig, value: object = None) -> ConfigError:
    """The refusal of a key that does not exist in `config`; `value` is its value if a file sets it."""
    given = shown(override) if override is not None else shortened(key)
    if override is None and key in group_schemas() and isinstance(value, str):
        return ConfigError(
            f"{key}={shortened(value)}: choose it in the list defaults: - override /{key}: <choice>"
        )
    keys = [name for name in all_keys(config) if name.partition(".")[0] != "hydra"]
    group, _, field = key.partition(".")
    chosen = None if override is None or field else chosen_in(key, override.value())
    if chosen is not None:
        return ConfigError(f"{given}: unknown key {key}; did you mean {chosen}?")
    if any(name.startswith(f"{key}.") for name in keys):  # a group, or another key that has keys
        return ConfigError(f"{given}: {key} has keys of its own; set one of them{_fields_of(key, keys)}")
    owners = list(choices_with_field(group, field)) if field else []
    if owners:
        which = "that" if len(owners) == 1 else "one"
        chosen = f"{group}={', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
        return ConfigError(f"{given}: unknown key {key}; {chosen}: choose {which}, or leave {key} out")
    task = plain(config, "task.name")
    own = did_you_mean(key, list(root_rules(task))) if task not in (None, "train") else ""
    if own:
        return ConfigError(f"{given}: unknown key {key}{own}")
    owner = next((task for task in TASKS if key in root_rules(task)), None)
    if owner is not None:
        return ConfigError(f"{given}: unknown key {key}; add task={owner}, which has it, or leave {key} out")
    alias = alias_of(key)
    suggested = f"; did you mean {alias}?" if alias is not None else did_you_mean(key, keys)
    parent = key.rpartition(".")[0]
    fields = _fields_of(parent if parent in keys else group, keys)
    return ConfigError(f"{given}: unknown key {shortened(key)}{suggested or fields}")


def all_keys(config: DictConfig) -> Iterator[str]:
    """Every dotted key of a configuration, groups and leaves."""
    return _keys_in(cast(dict[str, Any], OmegaConf.to_container(config, resolve=False)))


def _keys_in(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name!s}"
        if isinstance(value, dict):
            yield from _keys_in(value, f"{prefix}{name!s}.")


def broken_reference(config: DictConfig) -> ConfigError:
    """The refusal of a value that refers to something missing, to itself, or to a value that its key cannot
    have."""
    trial = copy.deepcopy(config)
    for key in all_keys(config):
        parent, _, name = key.rpartition(".")
        wrong = None
        try:
            value = OmegaConf.select(config, key, throw_on_resolution_failure=True)
        except (OmegaConfBaseException, ValueError, RecursionError):
            wrong = "that is not there, or to itself"
        else:
            holder = OmegaConf.select(config, parent) if parent else config
            if OmegaConf.is_interpolation(holder, name):
                wrong = None if _can_be(trial, key, value) else "that it cannot have"
        if wrong is not None:
            holder = OmegaConf.select(config, parent) if parent else config
            given = cast(dict[str, Any], OmegaConf.to_container(holder, resolve=False))[name]
            return ConfigError(f"{key}={shortened(given)}: refers to a value {wrong}; set {key}=<value>")
    return ConfigError("a value refers to one that is not there; give it on the command line")


def _can_be(config: DictConfig, key: str, value: Any) -> bool:
    try:
        OmegaConf.update(config, key, value)
    except (OmegaConfBaseException, ValueError):
        return False
    return True


def _beyond_schemas(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Keys of typed nodes that their dataclass lacks."""
    schema = OmegaConf.get_type(config)
    fields = (
        {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    )
    for name, value in cast(dict[str, Any], OmegaConf.to_container(config, resolve=False)).items():
        key = f"{prefix}{name!s}"
        if fields is not None and name not in fields:
            yield key
        elif isinstance(value, dict) and key != "hydra":
            yield from _beyond_schemas(config[name], f"{key}.")


def _fields_of(group: str, keys: Sequence[str]) -> str:
    fields = [key for key in keys if key.startswith(f"{group}.") and key.count(".") == group.count(".") + 1]
    if fields:
        return f"; {group} has {_some(name.rpartition('.')[2] for name in fields)}"
    return f"; the top-level keys are {_some(key for key in keys if '.' not in key)}"


def _some(names: Iterable[str]) -> str:
    """The names, as many as fit on a line."""
    text = ""
    for name in names:
        if len(text) + len(name) > MOST_LISTED:
            return f"{text} ..."
        text += f", {name}" if text else name
    return text


def _omegaconf_cause(error: BaseException | None) -> OmegaConfBaseException | None:
    """The innermost OmegaConf error of a chain of causes."""
    found = None
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            found = error
        error = error.__cause__ or error.__context__
    return found


def _culprit(error: BaseException, key: str, overrides: Sequence[Override]) -> Override | None:
    """The override that caused an error, found by the text Hydra quotes or by the key OmegaConf names."""
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
    """OmegaConf's message about a type, in plain words."""
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
