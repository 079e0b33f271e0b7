"""Checks a configuration's fields by the rules of `gradwire.codecs.fields` and raises ConfigError.

The functions check the command line and, with messages in Python syntax, calls (`check_arguments`). They only
need the standard library.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from gradwire.codecs import fields as core
from gradwire.codecs.fields import (
    Rule,
    above,
    at_least,
    between,
    checked,
    list_of,
    one_of,
    plain_name,
    rules_of,
)
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, refused_as_config_error

__all__ = [
    "Rule",
    "above",
    "at_least",
    "between",
    "check_arguments",
    "check_fields",
    "check_value",
    "checked",
    "list_of",
    "one_of",
    "plain_name",
    "rules_of",
]


def check_fields(schema: type, values: Mapping[str, Any], prefix: str) -> None:
    """Raises ConfigError for the first of `values` that its field in `schema` does not allow.

    `prefix` is the group's key, so that the message names the field as typed on the command line.
    """
    refused_as_config_error(core.check_fields, schema, values, prefix)


def check_value(key: str, value: Any, rule: Rule) -> None:
    """Raises ConfigError unless `rule` allows `value`, which users write as `key`."""
    refused_as_config_error(core.check_value, key, value, rule)


def check_arguments(
    schema: type, values: Mapping[str, Any], prefix: str = "", without: Iterable[str] = ()
) -> None:
    """Raises ConfigError unless the fields of `schema` allow `values`, given in Python.

    `prefix` and a dot precede the names in messages. Fields in `without` must not be given.
    """
    rules = {name: rule for name, rule in core.rules_with(schema, values).items() if name not in {*without}}
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else name
        rule = rules.get(name)
        if rule is None:
            allowed = f"choose from {', '.join(rules)}" if rules else "there are no options"
            raise ConfigError(f"{key}={shown(value)} is unknown: {allowed}{did_you_mean(name, rules)}")
        if isinstance(rule, Rule) and not rule.allows(value):
            raise ConfigError(core.refusal(key, shown(value), value, rule, python=True))


def shown(value: object) -> str:
    """`value` in Python syntax, shortened if it is long."""
    shortened = reprlib.Repr()
    shortened.maxstring = shortened.maxother = shortened.maxlong = 60
    return " ".join(shortened.repr(value).split())
