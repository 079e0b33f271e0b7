"""The keys and values of a user's own configuration files: those of the command line, with its rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gradwire.codecs.fields import is_plain_name
from gradwire.codecs.registry import are_one_class
from gradwire.harness.config.explain import narrowed_rule, plain, rule_of, unknown_key
from gradwire.harness.config.needs import check_needs, taking
from gradwire.harness.config.overrides import HYDRA_KEYS, MISSING, check_as_read, check_hydra_value
from gradwire.harness.config.own_form import GLOBAL, OwnFile
from gradwire.harness.config.store import group_schemas
from gradwire.harness.runtime.errors import ConfigError, shortened

CASES, COMMON, NEEDS = "hydra.sweeper.cases", "hydra.sweeper.common", "hydra.sweeper.needs"
SWEEP = (CASES, COMMON, NEEDS)
"""The keys of Hydra's that only files set: `tiny: [{codec: [bf16, thc], seed: 0}]`."""

_FILLED = ("overrides", "runtime", "job.name", "job.config_name", "job.override_dirname")
"""Keys of Hydra's node that Hydra fills in, from the command line and the process."""


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
        if "." in name:  # one key to Hydra, another to the rules
            nested = f"{name.replace('.', ': {')}: {shortened(value)}{'}' * name.count('.')}"
            raise ConfigError(f"{shortened(key)}: a file has keys within keys; write {shortened(nested)}")
        hydras = key.partition(".")[0] == "hydra" and key not in SWEEP
        ours = rule_of(config, key) is None and isinstance(plain(config, key), DictConfig)
        if isinstance(value, Mapping) and (hydras or (ours and key not in SWEEP)):
            yield from _leaves(value, key, config)
        else:
            yield key, value


def _check(key: str, value: Any, config: DictConfig, given: Mapping[str, Any]) -> None:
    if key.partition(".")[0] == "hydra":
        if key in SWEEP:
            _check_sweep(key, value, given)
        else:
            check_hydra_value(key, value, f"{key}={shortened(value)}")
        return
    rule = rule_of(config, key)
    if rule is None and key in group_schemas() and isinstance(value, str):
        raise ConfigError(
            f"{key}={shortened(value)}: choose it in the list defaults: - override /{key}: <choice>"
        )
    if rule is None:
        raise unknown_key(key, None, config)
    if key in ("codec.name", "task.name"):
        _check_choice(key, value, config)
    if value == MISSING:  # to be given on the command line
        return
    try:
        check_as_read(key, value, rule)
    except ConfigError:
        check_as_read(key, value, narrowed_rule(key, config, given) or rule)
        raise


def _check_sweep(key: str, value: Any, given: Mapping[str, Any]) -> None:
    """Refuse what is no data of a sweep before Hydra's sweeper is made of it."""
    if key == NEEDS:
        check_needs(value, NEEDS)
    elif key == COMMON:
        _check_common(value)
    else:
        needs = given.get(NEEDS, {})
        _check_cases(value, check_needs(needs, NEEDS) if isinstance(needs, Mapping) else {})


def _check_common(common: Any) -> None:
    if not isinstance(common, Mapping) or not all(isinstance(each, Mapping) for each in common.values()):
        raise ConfigError(
            f"{COMMON}={shortened(common)}: choose a mapping, e.g. {{tiny: {{train.steps: 3}}}}"
        )
    for size, values in common.items():
        for name, value in values.items():
            _check_swept(f"{COMMON}.{shortened(size)}", str(name), value)


def _check_cases(cases: Any, needs: Mapping[str, str]) -> None:
    if not isinstance(cases, Mapping):
        raise ConfigError(f"{CASES}={shortened(cases)}: choose a mapping, e.g. {{any: [{{seed: [0, 1]}}]}}")
    for size, found in cases.items():
        key = f"{CASES}.{shortened(size)}"
        if not is_plain_name(size) or size.startswith("_"):
            raise ConfigError(f"{key}: is no size; choose one, e.g. tiny, or any")
        if not isinstance(found, list) or not found or not all(isinstance(case, Mapping) for case in found):
            raise ConfigError(
                f"{key}={shortened(found)}: choose a list of mappings, e.g. [{{codec: bf16, seed: [0, 1]}}]"
            )
        for name, value in (pair for case in found for pair in case.items()):
            if isinstance(value, Mapping) and "from" in value:
                taking(f"{key}: {name}", value, needs)
                value = None
            _check_swept(key, str(name), value)


def _check_swept(key: str, name: str, value: Any) -> None:
    if name.lstrip("+~").startswith(("_", "hydra")):
        raise ConfigError(f"{key}: {shortened(name)} cannot be swept; choose a key of --help")
    if _holds_mapping(value):
        raise ConfigError(f"{key}: {name}={shortened(value)}: choose a value or a list of values")


def _holds_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_holds_mapping, value)))


def check_hydra_node(node: DictConfig, own: DictConfig) -> None:
    """Raise ConfigError unless Hydra's `node` is gradwire's `own` but for the keys that files may set.

    Hydra calls what some of its keys name, so these are compared once more when all files are composed.
    """
    given, expected = _fixed_keys(node), _fixed_keys(own)
    changed = next((key for key in {**given, **expected} if given.get(key) != expected.get(key)), None)
    if changed is not None:
        raise ConfigError(f"hydra.{changed}: files cannot change it; set {', '.join(HYDRA_KEYS)} or {CASES}")


def _fixed_keys(node: DictConfig) -> dict[str, Any]:
    """Hydra's keys, but for those that files may set or that Hydra fills in."""
    fixed = OmegaConf.to_container(node, resolve=False)
    assert isinstance(fixed, dict)
    for key in (*_FILLED, *(name.removeprefix("hydra.") for name in (*HYDRA_KEYS, *SWEEP))):
        *above, name = key.split(".")
        functools.reduce(lambda holder, part: holder[part], above, fixed).pop(name, None)
    return {str(key): value for key, value in fixed.items()}


def _check_choice(key: str, name: Any, config: DictConfig) -> None:
    """The names of a codec and of a task say which keys there are; codecs of one class have the same."""
    chosen = plain(config, key)
    alike = key == "codec.name" and are_one_class(str(name), str(chosen))
    if name != chosen and not alike:
        raise ConfigError(
            f"{key}={shortened(name)} contradicts defaults, which choose {chosen}; leave it out, or "
            f"choose {shortened(name)} there"
        )
