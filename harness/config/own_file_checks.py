"""Checks of the user's own configuration files: their keys exist, and their values are allowed."""

from __future__ import annotations

from dataclasses import is_dataclass

from omegaconf import DictConfig, OmegaConf

from gradwire.codecs.registry import are_one_class
from gradwire.harness.config.declared import declared
from gradwire.harness.config.explain import narrowed_rule, plain, rule_of, unknown_key
from gradwire.harness.config.overrides import MISSING, check_as_read, check_hydra_value
from gradwire.harness.config.own_files import SWEEP, OwnFile
from gradwire.harness.config.store import group_schemas
from gradwire.harness.runtime.errors import ConfigError, shortened


def check_own_file(file: OwnFile, built_on: DictConfig) -> None:
    """Raise ConfigError, naming the file, for an unknown key or a value that its rule refuses.

    `built_on` is the configuration of the same choices without the values of the user's own files.
    """
    group = file.group
    try:
        if group in group_schemas() and not is_dataclass(OmegaConf.get_type(built_on.get(group))):
            package = ", and leave the line # @package _global_ out" if file.everywhere else ""
            raise ConfigError(
                f"does not say which {group} it changes; begin it with defaults: [<a choice of {group}>, "
                f"_self_]{package}"
            )
        given = dict(file.leaves())
        for key, value in given.items():
            if key in SWEEP:
                declared(file.values["hydra"]["sweeper"])
            elif key.startswith("hydra."):
                check_hydra_value(key, value, f"{key}={shortened(value)}")
            elif (rule := rule_of(built_on, key)) is None:
                raise unknown_key(key, None, built_on, value)
            elif value != MISSING:  # to be given on the command line
                if key in ("codec.name", "task.name"):  # they say which keys there are
                    _check_name(key, value, str(plain(built_on, key)))
                try:
                    check_as_read(key, value, rule)
                except ConfigError:
                    check_as_read(key, value, narrowed_rule(key, built_on, given) or rule)
                    raise
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from None


def _check_name(key: str, name: object, chosen: str) -> None:
    alike = key == "codec.name" and are_one_class(str(name), chosen)  # and have the same keys
    if name != chosen and not alike:
        raise ConfigError(
            f"{key}={shortened(name)} contradicts defaults, which choose {chosen}; leave it out, or choose "
            f"{shortened(name)} there"
        )
