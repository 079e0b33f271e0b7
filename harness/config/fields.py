"""The check of a configuration's fields: the rules of `gradwire.codecs.fields`, refused as ConfigError."""

from __future__ import annotations

from collections.abc import Mapping
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
from gradwire.harness.config.errors import ConfigError

__all__ = [
    "Rule",
    "above",
    "at_least",
    "between",
    "check_fields",
    "check_value",
    "checked",
    "list_of",
    "one_of",
    "plain_name",
    "rules_of",
]


def check_fields(schema: type, values: Mapping[str, Any], prefix: str) -> None:
    """Raise ConfigError for the first of `values` that its field in `schema` does not allow.

    `prefix` is the group's key, so that the message names the field as typed on the command line.
    """
    try:
        core.check_fields(schema, values, prefix)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_value(key: str, value: Any, rule: Rule) -> None:
    """Raise ConfigError unless `rule` allows `value`, which users write as `key`."""
    try:
        core.check_value(key, value, rule)
    except ValueError as error:
        raise ConfigError(str(error)) from None
