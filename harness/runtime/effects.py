"""Settings that are read only with other settings: rows that declare them, and the one check of all rows.

Where nothing reads it, a setting that is not as usual is refused: no key is ignored silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import default_of
from gradwire.harness.runtime.errors import ConfigError, shortened

_DEFAULT, _ABSENT = object(), object()


@dataclass(frozen=True)
class ReadWith:
    """Keys that are read only if the settings `readers` have values that `reads` accepts, in their order."""

    keys: tuple[str, ...]
    readers: tuple[str, ...]
    reads: Callable[..., bool]
    otherwise: str = "leave it out"
    """The remedy if nothing reads them."""
    read_by: tuple[str, ...] = ()
    """Tasks that read them whatever those values are."""
    usual: Any = _DEFAULT
    """The value, besides null, that needs no reader: that of the model's recipe, else the field's default."""


def keys_of(group: str, *names: str) -> tuple[str, ...]:
    """The keys of some of a group's settings."""
    return tuple(f"{group}.{name}" for name in names)


def no_effect(given: str, readers: Mapping[str, Any], otherwise: str) -> ConfigError:
    """The error of a setting, as `given`, while the settings that could read it have these values."""
    if all(value is None for value in readers.values()):
        return ConfigError(f"{given} has no effect without {' or '.join(readers)}; {otherwise}")
    now = " and ".join(f"{key}={_written(value)}" for key, value in readers.items())
    return ConfigError(f"{given} has no effect with {now}; {otherwise}")


def check_read_settings(rows: Iterable[ReadWith], groups: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first setting that is not as usual and that nothing reads.

    `groups` are a configuration's, by name. Rows about settings that it does not have are passed over.
    """
    task = _value(groups, "task")
    for row in rows:
        if task in row.read_by:
            continue
        unusual = (key for key in row.keys if _is_unusual(groups, key, row.usual))
        key, now = next(unusual, None), {reader: _value(groups, reader) for reader in row.readers}
        if key is not None and _ABSENT not in now.values() and not row.reads(*now.values()):
            raise no_effect(f"{key}={_written(_value(groups, key))}", now, row.otherwise)


def _value(groups: Mapping[str, Any], key: str) -> Any:
    """The value of a setting; for a group its name."""
    group, _, field = key.partition(".")
    settings, field = groups.get(group), field or "name"
    if isinstance(settings, Mapping):
        return settings.get(field, _ABSENT)
    return getattr(settings, field, _ABSENT)


def _is_unusual(groups: Mapping[str, Any], key: str, usual: Any) -> bool:
    value = _value(groups, key)
    if value is _ABSENT or value is None:
        return False
    return bool(value != (_usual(groups, key) if usual is _DEFAULT else usual))


def _usual(groups: Mapping[str, Any], key: str) -> Any:
    """The value of a setting that the user has not set: that of the model's recipe, else its default."""
    group, _, name = key.partition(".")
    settings = groups[group]
    if isinstance(settings, Mapping):
        return None
    recipe = getattr(groups.get("model"), "recipe", None) if group == "train" else None
    default = next(default_of(each) for each in dataclasses.fields(settings) if each.name == name)
    return getattr(recipe, name, default)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return shortened(f"[{','.join(map(_written, value))}]")
    if isinstance(value, float):
        return f"{value:g}"
    return shortened(value)
