"""The keys of the configuration's root that are not groups: those of every run or sweep, and those of a task.

The root itself is not typed, so that each task can add keys, which are the fields of the task's settings.
Their defaults come from `conf/task/<task>.yaml`, and their rules apply to files and to the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gradwire.codecs.fields import Rule, above, check_fields, default_of, rules_of
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.errors import refused_as_config_error

LONGEST_MINUTES = 525_600


@dataclass(frozen=True)
class SweepConfig:
    """The settings of a sweep's execution."""

    # with real text for small sizes, a file or sub-folder for each data set (conf/local_data.yaml);
    # null: the embedded text
    data: str | None = None
    minutes: int | float | None = above(0, None, LONGEST_MINUTES)  # of running cells; then it can be resumed
    plan: bool = False  # print cells and predicted minutes, start nothing; task=plan sets it
    paper: str | None = None  # the item that a sweep's file reproduces, e.g. DynamiQ Table 4


@dataclass(frozen=True, kw_only=True)
class Root(RecordedConfig):
    """The keys of every root: those of every run, and those of sweeps."""

    sweep: SweepConfig = field(default_factory=SweepConfig)


REQUIRED = "???"
"""The value of a key that must be given."""

Rules = Mapping[str, Rule | type]


@cache
def _without_groups(schema: type) -> Rules:
    return {name: rule for name, rule in rules_of(schema).items() if name not in group_schemas()}


def _schema(task: str | None) -> type:
    """The schema of a task's configuration; for an unknown task, which is refused elsewhere, the keys of
    every run."""
    return TASKS[task].config if task in TASKS else Root


def own_keys(task: str) -> Rules:
    """The keys that a task adds to the root."""
    usual = rules_of(Root)
    return {name: rule for name, rule in _without_groups(_schema(task)).items() if name not in usual}


def usual_defaults() -> dict[str, Any]:
    """The keys of every root, with their defaults."""
    return _defaults(Root, _without_groups(Root))


def own_defaults(task: str) -> dict[str, Any]:
    """The keys that a task adds to the root, with their defaults; `REQUIRED` if there is none."""
    return _defaults(_schema(task), own_keys(task))


def _defaults(owner: type, rules: Rules) -> dict[str, Any]:
    schema = {each.name: each for each in dataclasses.fields(owner)}
    found: dict[str, Any] = {}
    for name, rule in rules.items():
        if isinstance(rule, type):
            found[name] = dataclasses.asdict(rule())
        else:
            default = default_of(schema[name])
            found[name] = REQUIRED if default is None and not rule.optional else default
    return found


def root_rules(task: str | None) -> dict[str, Rule]:
    """The rules of all root keys, and of those below them, for this task: `replay.rounds`."""
    return dict(_leaves({**_without_groups(Root), **_without_groups(_schema(task))}))


def check_root(config: Mapping[Any, Any], task: str) -> None:
    """Raise ConfigError for the first root key, other than groups, whose value is not allowed."""
    for schema in (Root, _schema(task)):
        names = _without_groups(schema)
        given = {name: config[name] for name in names if name in config}
        refused_as_config_error(check_fields, schema, given)


def _leaves(rules: Rules, prefix: str = "") -> Iterator[tuple[str, Rule]]:
    for name, rule in rules.items():
        if isinstance(rule, Rule):
            yield prefix + name, rule
        else:
            yield from _leaves(rules_of(rule), f"{prefix}{name}.")
