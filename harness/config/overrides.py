"""The command line's overrides, read and checked before Hydra composes them.

Each must have an existing key and a value that the key's rule allows. Everything that Hydra would refuse with
several lines is refused here with one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, RangeSweep, Transformer
from hydra.errors import HydraException

from gradwire.codecs.fields import LIST, MAPPING, NUMBER, TEXT, WHOLE, Rule, check_value
from gradwire.harness.config.misread import override_advice, range_advice
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error, shortened

MISSING = "???"
"""Hydra's notation for a value that has to be given."""

MOST_SWEPT = 10_000
"""The largest number of values of a range."""

HYDRA_KEYS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.mode")
"""Hydra's own keys that have an effect here, in addition to `hydra/launcher` and the launcher's options."""

_RANGE = re.compile(r"(\d{1,9})(?:-|\.\.\.?|:)(\d{1,9})")
"""`0-3`: other programs' notation for the numbers from 0 to 3."""

PATHS = ("/", "./", "../", "~")
"""Beginnings of paths, as opposed to single names."""

_kept: list[str] = []


def keep_for_sweep(overrides: Sequence[str]) -> list[str]:
    """Stores the command line of a sweep; returns the part that Hydra needs.

    Hydra composes the sweep before its cells and would refuse a key that only some of them have.
    """
    _kept[:] = overrides
    return choices_of(overrides)


def kept_for_sweep(arguments: Sequence[str]) -> list[str]:
    """The stored command line of the sweep for which Hydra passes `arguments`."""
    handed = [text for text in choices_of(_kept) if not text.lstrip("+").startswith("hydra")]
    return list(_kept) if list(arguments) == handed else list(arguments)


def choices_of(overrides: Sequence[str]) -> list[str]:
    """The choices of groups, and Hydra's own keys, among overrides."""
    return [text for text in overrides if "." not in text.partition("=")[0] or text.startswith("hydra.")]


@lru_cache(maxsize=1)
def _parser() -> OverridesParser:
    return OverridesParser.create()


def parse(overrides: Sequence[str]) -> list[Override]:
    """The parsed overrides. Raises ConfigError naming the one that is not `key=value`."""
    parsed = []
    for number, text in enumerate(overrides):
        try:
            parsed.append(_parse(text))
        except _UnreadableError:
            advice = range_advice(text) or (
                f"cannot be read as key=value; {override_advice(overrides, number, _is_readable)}"
            )
            raise ConfigError(f"{shortened(text)}: {advice}") from None
    return parsed


class _UnreadableError(ConfigError):
    """Raised for an override that is not key=value."""


def _is_readable(text: str) -> bool:
    try:
        return bool(_parse(text))
    except ConfigError:
        return False


@lru_cache(maxsize=4096)
def _parse(text: str) -> Override:
    if not text.isprintable():
        raise ConfigError(f"{shortened(text)}: has characters that cannot be printed; leave them out")
    key, _, given = text.partition("=")
    path = no_preset(given) if key == "model" and given.startswith(PATHS) else None
    if path is not None:
        raise path
    try:
        (override,) = _parser().parse_overrides([text])
        override.value()
    except (HydraException, ValueError, TypeError, AttributeError, RecursionError):
        raise _UnreadableError(text) from None
    assert isinstance(override, Override)
    return override


def no_preset(model: str) -> ConfigError | None:
    """The refusal of a path, or of a name on the hub, given instead of a preset's name; None for other
    values."""
    folder = os.path.expanduser(model)
    if model.startswith(PATHS) or os.path.isdir(folder):
        return ConfigError(f"model={model} is a path; use model=folder model.path={folder}")
    if model.count("/") == 1:
        return ConfigError(
            f"model={model} is not a preset; for one of the hub's models use model=folder "
            f"model.path=<folder>, "
            f"after hf download {model} --local-dir <folder>"
        )
    return None


def single_lines(overrides: Sequence[Override]) -> list[str]:
    """The lines of the overrides that have one value, not several to sweep over."""
    return [str(each.input_line) for each in overrides if not each.is_sweep_override()]


def swept_elements(override: Override, choices: Sequence[str]) -> list[Any]:
    """The values of an override that has several; `choices` are those of its key if that is a group.

    Raises ConfigError if there are none, or infinitely many.
    """
    value = override.value()
    if isinstance(value, RangeSweep):
        _check_range(override, value)
    if not isinstance(value, Glob):
        return list(override.sweep_iterator(transformer=Transformer.identity))
    found: list[Any] = value.filter(list(choices))
    if not choices:
        raise ConfigError(f"{shown(override)}: glob(...) is for groups; use choice(...) or range(...)")
    if not found:
        raise ConfigError(f"{shown(override)} matches no choice; choose from {', '.join(choices)}")
    return found


def _check_range(override: Override, value: RangeSweep) -> None:
    use = "use range(<first>,<end>,<step>) with a step that leads from the first value to the end"
    try:
        count = math.ceil(((value.stop or 0) - (value.start or 0)) / value.step)
    except (ArithmeticError, ValueError):
        raise ConfigError(f"{shown(override)} is not a finite range; {use}") from None
    if not 0 < count <= MOST_SWEPT:
        number = "no values" if count <= 0 else f"more values than {MOST_SWEPT}"
        raise ConfigError(f"{shown(override)} has {number}; {use}")


def shown(override: Override) -> str:
    """An override as typed, shortened in the middle if it is long."""
    return shortened(str(override.input_line))


def check_forms(
    overrides: Sequence[Override], rule_of: Callable[[str], Rule | None] = lambda key: None
) -> None:
    """Raise ConfigError for the first override that is not a plain `key=value` with one value, or that
    repeats a key.

    `rule_of` gives the rule of a key, because some values with several parts count as one.
    """
    given: dict[str, Override] = {}
    for override in overrides:
        key, line = override.key_or_group, shown(override)
        if override.is_sweep_override():
            one = _advice_for_one_value(override, rule_of(key))
            raise ConfigError(
                f"{line} has more than one value; add --multirun to run one after another, {one}"
            )
        if override.is_delete():
            raise ConfigError(f"{line}: keys and groups cannot be removed; leave it out, or give a value")
        if override.type == OverrideType.ADD:
            raise ConfigError(f"{line}: keys cannot be added; leave out the +, and use a key of --help")
        if override.package is not None:
            raise ConfigError(f"{line}: a group has one place; leave out @{shortened(str(override.package))}")
        if key in given and "." not in key and shown(given[key]) != line:  # of values the last one counts
            raise ConfigError(f"{shown(given[key])} and {line} contradict each other; leave one of them out")
        given[key] = override
        hydras = key.partition("/")[0].partition(".")[0] == "hydra"
        if hydras and not key.startswith(("hydra.launcher.", "hydra/launcher")):
            check_hydra_value(key, override.value(), line)


def _advice_for_one_value(override: Override, rule: Rule | None) -> str:
    """Advice for a single value that contains commas: a list, or a number with a decimal comma."""
    key, text = override.key_or_group, str(override.input_line).partition("=")[2]
    if rule is not None and LIST in rule.kinds:
        return f"or write '{key}=[{shortened(text)}]' for a list"
    if rule is not None and NUMBER in rule.kinds and re.fullmatch(r"-?\d+,\d+", text):
        return f"or write {key}={text.replace(',', '.')} for a fraction"
    return "or put quotes around the value if it is meant to be one"


def check_hydra_value(key: str, value: Any, given: str) -> None:
    """Raise ConfigError for a key of Hydra's own that has no effect, or an impossible value of it."""
    if key == "hydra.searchpath":
        raise ConfigError(
            f"{given}: other places are not searched; add your own files with --config-dir <folder>"
        )
    if key not in HYDRA_KEYS:
        raise ConfigError(
            f"{given} has no effect here; of Hydra's own keys use {', '.join(HYDRA_KEYS)} and hydra/launcher"
        )
    modes = Rule(kinds=(TEXT,), choices=("RUN", "MULTIRUN"))
    refused_as_config_error(check_value, key, value, modes if key == "hydra.mode" else Rule(kinds=(TEXT,)))
    if key != "hydra.mode" and os.path.abspath(value) == os.path.abspath(os.sep):
        raise ConfigError(
            f"{given}: files of runs would lie among the system's; choose a folder of their own"
        )


def check_given(override: Override, rule: Rule) -> None:
    """Raise ConfigError unless `rule` allows the override's value; references `${key}` are checked later."""
    value = override.value()
    if isinstance(value, str) and (ends := _RANGE.fullmatch(value)) and rule.kinds == (WHOLE,):
        several = f"'{override.key_or_group}=range({ends[1]},{int(ends[2]) + 1})'"
        raise ConfigError(f"{shown(override)}: is not one number; for a run of each add --multirun {several}")
    if value == MISSING:
        raise ConfigError(f"{shown(override)} is a missing value; choose {rule.allowed()}")
    if _refers(value) and {LIST, MAPPING} & {*rule.kinds}:
        raise ConfigError(f"{shown(override)}: references cannot stand in it; choose {rule.allowed()}")
    if not _refers(value):
        check_as_read(override.key_or_group, value, rule)


def check_as_read(key: str, value: Any, rule: Rule) -> None:
    """Raise ConfigError unless `rule` allows a value after conversion to the key's type."""
    refused_as_config_error(check_value, key, _converted(value, rule), rule)


def _refers(value: Any) -> bool:
    """True if a value or a part of it is a reference to another key."""
    if isinstance(value, str):
        return "${" in value
    parts = (
        [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    )
    return any(map(_refers, parts))


def _converted(value: Any, rule: Rule) -> Any:
    """The value converted to the key's type: text may look like a number, and a quoted number is a number."""
    if isinstance(value, list) and rule.elements is not None and LIST in rule.kinds:
        return [_converted(each, rule.elements) for each in value]
    if rule.kinds == (TEXT,) and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value
