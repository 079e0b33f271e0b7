"""The keys and values of a user's own configuration files: those of the command line, with its rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gradwire.codecs.registry import codec_classes
from gradwire.harness.config.errors import ConfigError, shortened
from gradwire.harness.config.explain import narrowed_rule, plain, rule_of, unknown_key
from gradwire.harness.config.overrides import MISSING, check_as_read, check_hydra_value
from gradwire.harness.config.own_files import GLOBAL, OwnFile
from gradwire.harness.config.store import group_schemas

CASES = "hydra.sweeper.cases"
"""The key of Hydra's that only files set; the sweeper checks what it holds."""


def check_own_file(file: OwnFile, built_on: DictConfig) -> None:
    """Raise ConfigError, naming the file, for a key that there is not or a value that its rule refuses.

    `built_on` is the configuration of the same choices without the values of the user's own files.
    """
    try:
        _check_type(file, built_on)
        given = dict(_leaves(file.values, "" if file.everywhere else file.group, built_on))
        for key, value in given.items():
            _check(key, value, built_on, given)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from None


def _check_type(file: OwnFile, built_on: DictConfig) -> None:
    """Without a choice or schema of its group a file's keys would have no types."""
    if file.everywhere or file.group in GLOBAL:
        return
    node = built_on._get_node(file.group) if file.group in built_on else None
    if node is None or not dataclasses.is_dataclass(OmegaConf.get_type(node)):
        raise ConfigError(
            f"does not say which {file.group} it changes; begin it with defaults: [<a choice of "
            f"{file.group}>, _self_]"
        )


def _leaves(values: Mapping[str, Any], prefix: str, config: DictConfig) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values, down to what a rule is about."""
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else name
        hydras = key.partition(".")[0] == "hydra" and key != CASES
        ours = rule_of(config, key) is None and isinstance(plain(config, key), DictConfig)
        if isinstance(value, Mapping) and (hydras or (ours and key != CASES)):
            yield from _leaves(value, key, config)
        else:
            yield key, value


def _check(key: str, value: Any, config: DictConfig, given: Mapping[str, Any]) -> None:
    if key.partition(".")[0] == "hydra":
        if key != CASES:
            check_hydra_value(key, value, f"{key}={shortened(value)}")
        return
    rule = rule_of(config, key)
    if rule is None and key in group_schemas() and isinstance(value, str):
        raise ConfigError(
            f"{key}={shortened(value)}: choose it in the list defaults: - override /{key}: <choice>"
        )
    if rule is None:
        raise unknown_key(key, None, config)
    if key == "codec.name":
        _check_codec_name(value, config)
    if value == MISSING:  # to be given on the command line
        return
    try:
        check_as_read(key, value, rule)
    except ConfigError:
        check_as_read(key, value, narrowed_rule(key, config, given) or rule)
        raise


def _check_codec_name(name: Any, config: DictConfig) -> None:
    """A codec's name says which class it is; several of a class are told apart by it."""
    chosen, classes = plain(config, "codec.name"), codec_classes()
    alike = isinstance(name, str) and name in classes and classes[name] is classes.get(str(chosen))
    if name != chosen and not alike:
        raise ConfigError(
            f"codec.name={shortened(name)} contradicts defaults, which choose {chosen}; leave it out"
        )
