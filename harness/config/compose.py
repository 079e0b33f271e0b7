"""Composes the configuration for command-line overrides, and converts Hydra's refusals to one line."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradwire.codecs.fields import MAPPING
from gradwire.harness.config.choices import choices_in
from gradwire.harness.config.effects import LENGTHS
from gradwire.harness.config.explain import (
    OPTIONAL_GROUPS,
    all_keys,
    check_choice_name,
    check_groups,
    check_keys,
    explain,
    narrowed_rule,
    plain,
    rule_of,
    unknown_key,
)
from gradwire.harness.config.manual import register_manual
from gradwire.harness.config.model_folder import (
    UNSIZED,
    check_shape_given,
    keep_from_size,
    keeps_its_files,
    register_packaged_weights,
)
from gradwire.harness.config.overrides import (
    check_forms,
    check_given,
    choices_of,
    parse,
    shown,
    single_lines,
)
from gradwire.harness.config.own_file_checks import check_own_file
from gradwire.harness.config.own_files import REMEDY, OwnFile, OwnFolder, own_folder
from gradwire.harness.config.plugins import allow_plugins, plugin_choices, register_plugins
from gradwire.harness.config.store import register_additions
from gradwire.harness.runtime.conf import CONFIG_NAME, conf_directory
from gradwire.harness.runtime.effects import no_effect
from gradwire.harness.runtime.errors import ConfigError

VERSION_BASE = "1.3"


def compose(
    overrides: Sequence[str] = (), with_hydra: bool = False, *, named_by_user: bool = True
) -> DictConfig:
    """The configuration that `python run.py <overrides>` would run with, not yet resolved.

    Works inside and outside of Hydra's main, and any number of times. `with_hydra` adds the `hydra` node.
    With `named_by_user` plug-ins among the overrides may be imported; the cells of a sweep may come from a
    file and must not permit that. Raises ConfigError, in one line, for an unknown group choice or key, a
    value that its key does not allow and an override that cannot be parsed.

    Hydra composes each set of choices once per process; values are put into a copy of it.
    """
    parsed = parse(without_null_choices(overrides))
    single = single_lines(parsed)
    check_forms(parsed, lambda key: rule_of(compose(choices_of(single), named_by_user=False), key))
    if named_by_user:
        allow_plugins(parsed)
    choices = _choices(parsed)
    base, node = _composed(tuple(str(override.input_line) for override in choices), own_folder())
    values = [override for override in parsed if override not in choices]
    for override in values:
        _check(override, base, parsed)
    given = {override.key_or_group: override.value() for override in values}
    for override in values:  # each of them is allowed by itself
        narrowed = narrowed_rule(override.key_or_group, base, given)
        if narrowed is not None:
            check_given(override, narrowed)
    config = copy.deepcopy(base)  # takes as long as all checks: what is refused needs none
    for override in values:
        _set(config, override, base)
    check_length(config, parsed)
    check_codec_times_asked(config, parsed)
    check_shape_given(config, parsed)
    if with_hydra:
        OmegaConf.update(config, "hydra", copy.deepcopy(node), force_add=True)
    return config


def composed_hydra(overrides: Sequence[str]) -> DictConfig:
    """Hydra's own node of the configuration of `compose`, not to be written to. Raises ConfigError."""
    choices = _choices(parse(without_null_choices(overrides)))
    return _composed(tuple(str(override.input_line) for override in choices), own_folder())[1]


def kept_by_the_model(overrides: Sequence[str]) -> dict[str, Any]:
    """Values that `compose` keeps of a model whose files stay at every size, where Hydra alone would have the
    size's: key -> value. Empty for other models. Raises ConfigError."""
    choices = tuple(str(override.input_line) for override in _choices(parse(without_null_choices(overrides))))
    ours = _composed(choices, own_folder())[0]
    if not keeps_its_files(ours):
        return {}
    hydras = _hydra_composed(choices, ())
    keys = [key for key in all_keys(ours) if key.startswith("model.") or key == "size.lr_batch"]
    found = {key: plain(ours, key) for key in keys if plain(ours, key) != plain(hydras, key)}
    lists = {key: list(value) for key, value in found.items() if isinstance(value, ListConfig)}
    return {key: value for key, value in found.items() if not isinstance(value, DictConfig)} | lists


def _choices(parsed: Sequence[Override]) -> list[Override]:
    """The overrides that Hydra itself must see; raises ConfigError for a choice that does not exist."""
    prepare()
    register_plugins(parsed)
    groups = choices_of_groups()
    choices = [
        override
        for override in parsed
        if override.key_or_group in groups or re.match(r"hydra[./]|hydra$", override.key_or_group)
    ]
    check_groups(choices, groups)
    return choices


def without_null_choices(overrides: Sequence[str]) -> list[str]:
    """The overrides without those that select null for a group without a default."""
    nothing = [f"{group}=null" for group in OPTIONAL_GROUPS]
    return [text for text in overrides if text not in nothing]


def choices_of_groups() -> dict[str, list[str]]:
    """Every group with its choices, sorted: those of `conf/`, of plug-ins and of the user's own files."""
    folder, plugins = own_folder(), plugin_choices()
    groups = {
        group: sorted({*names, *plugins.get(group, ()), *(folder.names[group] if folder is not None else ())})
        for group, names in choices_in(conf_directory()).items()
    }
    return {**groups, "hydra/launcher": list(_launchers())}


@lru_cache(maxsize=1)
def _launchers() -> tuple[str, ...]:
    with _initialized():
        loader = GlobalHydra.instance().config_loader()
        return tuple(sorted(loader.get_group_options("hydra/launcher", results_filter=ObjectType.CONFIG)))


@lru_cache(maxsize=256)
def _composed(choices: tuple[str, ...], folder: OwnFolder | None) -> tuple[DictConfig, DictConfig]:
    """The configuration of these choices, and Hydra's node, which takes as long to copy. `folder` contains
    the user's own files. Raises ConfigError, naming those that were used."""
    used: list[OwnFile] = []
    if folder is not None:
        with folder.without_values() as used:
            built_on = _hydra_composed(choices, used)
        for file in used:
            check_own_file(file, built_on)
    config = _hydra_composed(choices, used)
    OmegaConf.set_struct(config, False)
    node = config.pop("hydra")
    OmegaConf.set_struct(config, True)
    if keeps_its_files(config):
        others = [choice for choice in choices if choice.partition("=")[0] != "size"]
        keep_from_size(config, _composed((*others, f"size={UNSIZED}"), folder)[0])
    return config, node


def _hydra_composed(choices: Sequence[str], used: Sequence[OwnFile]) -> DictConfig:
    """The configuration that Hydra composes from the choices. Raises ConfigError, naming the user's own files
    `used` so far."""
    try:
        with _initialized():
            config = hydra.compose(CONFIG_NAME, list(choices), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
        refusal = explain(error, parse(choices), choices_of_groups())
    else:
        try:
            check_keys(config)
            return config
        except ConfigError as error:
            refusal = error
    files = ", ".join(dict.fromkeys(str(file.path) for file in used))
    raise (ConfigError(f"{files}: {refusal}; {REMEDY}") if files else refusal) from None


def _check(override: Override, base: DictConfig, all_given: Sequence[Override]) -> None:
    """Raises ConfigError unless an override's key exists and its rule allows the value."""
    key = override.key_or_group
    rule = rule_of(base, key)
    if rule is None:
        raise unknown_key(key, override, base)
    check_choice_name(override, base)
    try:
        check_given(override, rule)
    except ConfigError:
        given = {each.key_or_group: each.value() for each in all_given}
        check_given(override, narrowed_rule(key, base, given) or rule)
        raise
    if MAPPING in rule.kinds and not override.is_force_add():
        raise ConfigError(
            f"{shown(override)}: a mapping is merged into the existing one; write '++{shown(override)}'"
        )


def _set(config: DictConfig, override: Override, base: DictConfig) -> None:
    """Gives a key of `config` the override's value."""
    rule = rule_of(base, override.key_or_group)
    assert rule is not None
    try:
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=MAPPING in rule.kinds)
    except (OmegaConfBaseException, ValueError, RecursionError):
        raise ConfigError(f"{shown(override)}: cannot be read as a value; choose {rule.allowed()}") from None


def check_length(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse explicitly set epochs, even the recipe's own value, if steps give the run's length."""
    for override in overrides:
        for row in LENGTHS:
            (reader,) = row.readers
            steps = plain(config, reader)
            if override.key_or_group in row.keys and override.value() is not None and steps is not None:
                raise no_effect(shown(override), {reader: steps}, row.otherwise)


def check_codec_times_asked(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse explicitly set codec times of this machine if no codec runs here."""
    given = {override.key_or_group for override in overrides}
    asked = "network.codec_times" in given and plain(config, "network.codec_times") == "measured"
    task = plain(config, "task.name")
    if asked and task in ("predict", "simulate"):
        use = ", or use network.codec_times=<folder of a task=bench>" if task == "predict" else ""
        raise ConfigError(
            f"network.codec_times=measured: task={task} runs no codec, and measures none; leave it out{use}"
        )


def prepare() -> None:
    """Registers everything that `conf/` refers to with Hydra; repeating it has no effect."""
    register_additions()
    register_manual(conf_directory())
    register_packaged_weights()


@contextmanager
def _initialized() -> Iterator[None]:
    """Hydra as initialized by its main, or else initialized here for the duration of one call."""
    if GlobalHydra.instance().is_initialized():
        yield
    else:
        with hydra.initialize_config_dir(str(conf_directory()), job_name="run", version_base=VERSION_BASE):
            yield
