"""From command-line overrides to a configuration, with Hydra's refusals in one line."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradwire.codecs.fields import MAPPING
from gradwire.harness.config.explain import (
    OPTIONAL_GROUPS,
    check_choice_name,
    check_groups,
    check_keys,
    explain,
    known_groups,
    narrowed_rule,
    plain,
    rule_of,
    unknown_key,
)
from gradwire.harness.config.manual import register_manual
from gradwire.harness.config.model_folder import UNSIZED, check_shape_given, keep_from_size
from gradwire.harness.config.overrides import check_forms, check_given, choices_of, parse, said
from gradwire.harness.config.own_files import OwnFolder, own_folder, register_own_files
from gradwire.harness.config.own_form import REMEDY, OwnFile
from gradwire.harness.config.own_values import check_hydra_node, check_own_file
from gradwire.harness.config.plugins import allow_plugins, register_plugins
from gradwire.harness.config.store import register_schemas
from gradwire.harness.models.families import FOLDER
from gradwire.harness.runtime.conf import CONFIG_NAME, conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.fields import Rule

VERSION_BASE = "1.3"


def compose(
    overrides: Sequence[str] = (), with_hydra: bool = False, *, named_by_user: bool = True
) -> DictConfig:
    """The configuration that `python run.py <overrides>` would run with, not yet resolved.

    Works inside and outside of Hydra's main, and any number of times. `with_hydra` adds the `hydra` node.
    `named_by_user`: whether that a plug-in is among the overrides permits its import; the cells of a sweep
    may come from a file.
    Raises ConfigError, in one line, for an unknown group choice or key, a value that its key does not allow
    and an override that cannot be parsed.

    Hydra composes each set of choices once per process; values are put into a copy of it.
    """
    parsed = parse(meant(overrides))
    check_forms(parsed, lambda key: _rule_without(parsed, key))
    if named_by_user:
        allow_plugins(parsed)
    choices = _choices(parsed)
    base, node = _composed(tuple(str(override.input_line) for override in choices), own_folder())
    values = [override for override in parsed if override not in choices]
    for override in values:
        _check(override, base, parsed)
    _check_narrowed(values, base)
    config = copy.deepcopy(base)  # takes as long as all checks: what is refused needs none
    for override in values:
        _set(config, override, base)
    check_warm_up(config, parsed)
    check_length(config, parsed)
    check_codec_times_asked(config, parsed)
    check_shape_given(config, parsed)
    if with_hydra:
        OmegaConf.update(config, "hydra", copy.deepcopy(node), force_add=True)
    return config


def composed_hydra(overrides: Sequence[str]) -> DictConfig:
    """Hydra's own node of the configuration of `compose`, not to be written to. Raises ConfigError."""
    choices = _choices(parse(meant(overrides)))
    return _composed(tuple(str(override.input_line) for override in choices), own_folder())[1]


def _choices(parsed: Sequence[Override]) -> list[Override]:
    """The overrides that Hydra itself must see; raises ConfigError for a choice that does not exist."""
    prepare()
    register_plugins(parsed)
    groups = choices_of_groups(own_folder())
    choices = [override for override in parsed if _chooses(override, groups)]
    if any(override.value() not in groups.get(override.key_or_group, ()) for override in choices):
        choices_of_groups.cache_clear()  # a plug-in has been added, or there is no such choice
        groups = choices_of_groups(own_folder())
    check_groups(choices, groups)
    return choices


def meant(overrides: Sequence[str]) -> list[str]:
    """The overrides without those that choose nothing from a group without a default."""
    nothing = [f"{group}=null" for group in OPTIONAL_GROUPS]
    return [text for text in overrides if text not in nothing]


@lru_cache(maxsize=8)
def choices_of_groups(folder: OwnFolder | None) -> Mapping[str, Sequence[str]]:
    """Every group with its choices, sorted, with the user's own `folder` in use."""
    assert folder is own_folder()
    with _initialized():
        return known_groups()


def _rule_without(parsed: Sequence[Override], key: str) -> Rule | None:
    """What `key` allows with the choices that are of one value."""
    single = [str(each.input_line) for each in parsed if not each.is_sweep_override()]
    return rule_of(compose(choices_of(single), named_by_user=False), key)


def _chooses(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether Hydra itself has to see an override: the choice of a group, or a key of Hydra's own."""
    key = override.key_or_group
    return key.partition("/")[0].partition(".")[0] == "hydra" or key in groups


@lru_cache(maxsize=256)
def _composed(choices: tuple[str, ...], folder: OwnFolder | None) -> tuple[DictConfig, DictConfig]:
    """The configuration of these choices, and Hydra's node, which takes as long to copy."""
    with _initialized():
        config = _hydra_composed(choices) if folder is None else _composed_with_own(choices, folder)
    check_keys(config)
    OmegaConf.set_struct(config, False)
    node = config.pop("hydra")
    OmegaConf.set_struct(config, True)
    if plain(config, "model.family") == FOLDER and plain(config, "size.name") != UNSIZED:
        others = [choice for choice in choices if choice.partition("=")[0] != "size"]
        keep_from_size(config, _composed((*others, f"size={UNSIZED}"), folder)[0])
    return config, node


def _composed_with_own(choices: Sequence[str], folder: OwnFolder) -> DictConfig:
    """As `_hydra_composed`, the user's own files being checked against what they build on before."""
    own = _hydras_own(tuple(text for text in choices if text.lstrip("+").startswith("hydra")), folder)
    folder.bare, folder.used = True, []
    try:
        built_on = _hydra_composed(choices, folder.used)
    finally:
        folder.bare = False
    if not folder.used:
        return built_on
    for file in folder.used:
        check_own_file(file, built_on)
    config = _hydra_composed(choices, folder.used)
    check_hydra_node(config.hydra, own)
    return config


@lru_cache(maxsize=8)
def _hydras_own(choices: tuple[str, ...], folder: OwnFolder) -> DictConfig:
    """Hydra's node without the files of the `folder` in use: `choices` are of Hydra's groups alone."""
    assert folder is own_folder()
    node: DictConfig = _hydra_composed(choices).hydra
    return node


def _hydra_composed(choices: Sequence[str], used: Sequence[OwnFile] = ()) -> DictConfig:
    """What Hydra makes of the choices. Raises ConfigError, naming the user's own files `used` by then."""
    try:
        return hydra.compose(CONFIG_NAME, list(choices), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        refusal = explain(error, parse(choices))
        files = ", ".join(dict.fromkeys(str(file.path) for file in used))
        raise (ConfigError(f"{files}: {refusal}; {REMEDY}") if files else refusal) from None


def _check_narrowed(values: Sequence[Override], base: DictConfig) -> None:
    """Raise ConfigError for a value that the codec with these values does not allow, in the words it was
    given in. Each of them is allowed by itself."""
    given = {override.key_or_group: override.value() for override in values}
    for override in values:
        rule = narrowed_rule(override.key_or_group, base, given)
        if rule is not None:
            check_given(override, rule)


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
            f"{said(override)}: a mapping is added to what is there; write '++{said(override)}'"
        )


def _set(config: DictConfig, override: Override, base: DictConfig) -> None:
    """Gives a key of `config` the override's value."""
    rule = rule_of(base, override.key_or_group)
    assert rule is not None
    try:
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=MAPPING in rule.kinds)
    except (OmegaConfBaseException, ValueError, RecursionError):
        raise ConfigError(f"{said(override)}: cannot be read as a value; choose {rule.allowed()}") from None


def check_warm_up(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse a warm-up that was asked for and is longer than the run; a preset's is cut short by the run."""
    for override in overrides:
        if override.key_or_group == "train.warmup_steps":
            steps, asked = plain(config, "train.steps"), plain(config, "train.warmup_steps")
            if isinstance(steps, int) and isinstance(asked, int) and asked > steps:
                raise ConfigError(
                    f"train.warmup_steps={asked} is more than train.steps={steps}; choose at most "
                    f"{steps}, or more steps"
                )


def check_length(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse epochs that were asked for where steps, a size's own among them, say how long the run is."""
    for override in overrides:
        group, _, field = override.key_or_group.partition(".")
        if group != "train" or not field.endswith("epochs") or override.value() is None:
            continue
        other = f"train.{field.removesuffix('epochs')}steps"
        steps = plain(config, other)
        if steps is not None:
            raise ConfigError(
                f"{said(override)} has no effect while {other}={steps}; add {other}=null, or leave it out"
            )


def check_codec_times_asked(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Refuse codec times of this machine where they are asked for and nothing runs here."""
    given = {override.key_or_group for override in overrides}
    asked = "network.codec_times" in given and plain(config, "network.codec_times") == "measured"
    task = plain(config, "task.name")
    if asked and task in ("predict", "simulate"):
        use = ", or use network.codec_times=<folder of a task=bench>" if task == "predict" else ""
        raise ConfigError(
            f"network.codec_times=measured: task={task} runs no codec, and measures none; leave it out{use}"
        )


def prepare() -> None:
    """Make known to Hydra what `conf/` refers to; repeating it changes nothing."""
    register_schemas()
    register_own_files()
    register_manual(conf_directory())


@contextmanager
def _initialized() -> Iterator[None]:
    """Hydra as its main has initialized it, or our own initialization for the time of one call."""
    if GlobalHydra.instance().is_initialized():
        yield
    else:
        with hydra.initialize_config_dir(str(conf_directory()), job_name="run", version_base=VERSION_BASE):
            yield
