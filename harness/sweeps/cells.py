"""A sweep's cells: unions of products, as data.

`hydra.sweeper.cases.<size>` is a list of cases; a case maps keys to a value or a list of values and stands
for their product; the sweep is the union of its cases. `hydra.sweeper.common.<size>` has values that all
cells of a size share, unless their case sets them or chooses something that has no such key. Sweeps on the
command line multiply the sweep, and the command line's values take precedence over cases and common values. A
value may be taken from another sweep's cells (config/declared.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Transformer

from gradwire.harness.config.compose import choices_of_groups, compose
from gradwire.harness.config.declared import SEED, Declared, Source, Taking, taking
from gradwire.harness.config.explain import plain, rule_of
from gradwire.harness.config.overrides import parse, single_lines, swept_elements
from gradwire.harness.config.root_keys import root_rules
from gradwire.harness.config.store import choices_with_field, group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.runtime.errors import ConfigError

MOST_CELLS = 10_000

TASK = "task"

Values = Mapping[str, str]
"""Key to value, as text of Hydra's override grammar."""


@dataclass(frozen=True)
class SweepCell:
    """One run of a sweep."""

    overrides: tuple[str, ...]
    """All overrides, in the form that `python run.py` takes."""
    swept: Mapping[str, str]
    """The overrides that come from the cases or from a sweep on the command line, and the needed cells' axes;
    values taken from needed cells are in words, not paths."""
    sources: tuple[Source, ...] = ()
    """The needed cells that the cell takes values from."""

    @property
    def label(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.swept.items()) or "one run"


@dataclass(frozen=True)
class _SweepCase:
    """One case: the values of its keys, the values taken from needed cells, and the common values."""

    values: Mapping[str, list[str]]
    taken: Mapping[str, Taking]
    common: Values

    @property
    def task(self) -> list[str]:
        return self.values.get(TASK, [])


def expand(
    declared: Declared,
    size: str,
    arguments: Sequence[str],
    sources: Mapping[str, Sequence[Source]] | None = None,
) -> list[SweepCell]:
    """The cells of a sweep in order, without repetitions.

    `size` is the chosen one, `arguments` are the command line's overrides, `sources` the cells of the needed
    sweeps by their names in `needs`. Raises ConfigError when the sweep has no cases for this size or a case
    is malformed.
    """
    fixed, swept = _command_line(arguments)
    fixed_lines = single_lines(parse(arguments))
    cases = _cases_of(declared, size)
    tasks = tasks_of(declared, size, arguments)
    most = sum(
        math.prod(len(values) for values in [*case.values.values(), *swept.values()]) for case in cases
    )
    if most > MOST_CELLS:
        raise ConfigError(f"the sweep has {most} runs; choose at most {MOST_CELLS}, e.g. in several sweeps")
    cells: dict[tuple[str, ...], SweepCell] = {}
    for case, line in itertools.product(cases, _product(swept)):
        user = {**fixed, **line}
        given = {**case.values, **{key: [] for key in case.taken}}
        kept = {key: values for key, values in case.values.items() if not _shadowed(key, given, user)}
        taken = {key: each for key, each in case.taken.items() if not _shadowed(key, given, user)}
        common = {
            key: value
            for key, value in case.common.items()
            if not _shadowed(key, {key: [value], **given}, user) and _applies(key, case, cases)
        }
        for values in _product(kept):
            task = values.get(TASK, tasks[0])
            for found in _with_taken(values, taken, user, sources or {}, TASKS[task].reads):
                texts = (
                    *fixed_lines,
                    *(f"{key}={value}" for key, value in {**common, **found.overrides, **line}.items()),
                )
                chosen = {**found.words, **line}
                texts, chosen = _fitting(texts, chosen, swept)
                texts = tuple(text for text in texts if _suits(key_of(text), task, tasks))
                cells.setdefault(tuple(sorted(texts)), SweepCell(texts, chosen, found.sources))
    if not cells:
        raise ConfigError("the sweep has no runs: a key of its cases has an empty list; give it a value")
    return list(cells.values())


def tasks_of(declared: Declared, size: str, arguments: Sequence[str]) -> list[str]:
    """The tasks of a sweep: first that of cases without a task, then those that cases name."""
    choices = [text for text in single_lines(parse(arguments)) if "." not in key_of(text)]
    usual = str(plain(compose(choices, named_by_user=False), "task.name"))
    named = (task for case in _cases_of(declared, size) for task in case.task)
    return list(dict.fromkeys([usual, *named]))


def swept_keys(cells: Sequence[SweepCell]) -> list[str]:
    """The keys whose values differ between cells, in order of appearance."""
    keys = dict.fromkeys(key for cell in cells for key in cell.swept)
    return [key for key in keys if len({cell.swept.get(key) for cell in cells}) > 1]


def override_text(value: Any) -> str:
    """A value in Hydra's override grammar; strings are quoted only if necessary."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(override_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}: {override_text(item)}' for key, item in value.items())}}}"
    if not isinstance(value, str):
        return repr(value)
    return value if _is_plain(value) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _is_plain(text: str) -> bool:
    """True if the grammar reads `text` as this very string."""
    try:
        (override,) = OverridesParser.create().parse_overrides([f"key={text}"])
    except Exception:  # the grammar has several error types; any of them means: use quotes
        return False
    return bool(text) and not override.is_sweep_override() and override.value() == text


def _cases_of(declared: Declared, size: str) -> list[_SweepCase]:
    if not declared.cases:
        return [_SweepCase({}, {}, {})]
    cases, common = declared.cases_of(size), declared.common_of(size)
    if not cases:
        sizes = " or ".join(f"size={known}" for known in declared.cases)
        raise ConfigError(f"size={size}: this sweep has no cases for it; choose {sizes}")
    return [
        _SweepCase(
            {str(key): _texts(value) for key, value in case.items() if not isinstance(value, Mapping)},
            {
                str(key): taking(key, value, declared.needs)
                for key, value in case.items()
                if isinstance(value, Mapping)
            },
            {str(key): override_text(value) for key, value in common.items() if key not in case},
        )
        for case in cases
    ]


def _texts(value: Any) -> list[str]:
    return [override_text(item) for item in (value if isinstance(value, list) else [value])]


@dataclass(frozen=True)
class _CellValues:
    """The values of a cell, and their words in its label."""

    overrides: dict[str, str]
    words: dict[str, str]
    sources: tuple[Source, ...] = ()


def _with_taken(
    values: Values,
    taken: Mapping[str, Taking],
    user: Values,
    sources: Mapping[str, Sequence[Source]],
    reads: Sequence[str],
) -> Iterator[_CellValues]:
    """A cell's own values combined with each set of values from needed cells that agree with it.

    `reads` lists the groups and keys that the cell's task reads.
    """
    candidates = [list(each.values(key, sources[each.need])) for key, each in taken.items()]
    number = 0
    for combination in itertools.product(*candidates):
        found: _CellValues | None = _CellValues(dict(values), dict(values))
        for (key, each), (source, path, words) in zip(taken.items(), combination, strict=True):
            found = found and _paired(found, each.need, source, {**user, **_seed_of(values)}, reads)
            if found is None:
                break
            found.overrides[key], found.words[key] = override_text(path), words
        if found is not None:
            number += 1
            yield found
    if not number:
        own = " ".join(f"{key}={value}" for key, value in {**values, **_seed_of(user)}.items())
        raise ConfigError(
            f"{', '.join(taken)}: no cell of {', '.join({each.need: None for each in taken.values()})} goes "
            f"with {own}; seeds are paired, and what the command line sets has to be the same"
        )


def _seed_of(values: Values) -> Values:
    return {SEED: values[SEED]} if SEED in values else {}


def _paired(
    found: _CellValues, need: str, source: Source, fixed: Values, reads: Sequence[str]
) -> _CellValues | None:
    """Adds a needed cell's axes; None if one of them contradicts the seed, another needed cell's axis, or the
    command line."""
    overrides, words = dict(found.overrides), dict(found.words)
    adopted = {key: value for other in found.sources for key, value in other.axes.items()}
    for key, value in source.axes.items():
        if (key in fixed and fixed[key] != value) or adopted.get(key, value) != value:
            return None
        if key in overrides and key not in adopted and key != SEED:
            words[f"{need}.{key}"] = value  # the case has one of its own, which is about something else
        else:
            words[key] = value
            if key.partition(".")[0] in reads:
                overrides[key] = value
    return _CellValues(overrides, words, (*found.sources, source))


def _command_line(arguments: Sequence[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The fixed and the swept values on the command line, by key."""
    fixed: dict[str, str] = {}
    swept: dict[str, list[str]] = {}
    for override in parse(arguments):
        key = override.get_key_element()
        if override.is_discrete_sweep():
            choices = choices_of_groups().get(key, ())
            swept[key] = list(map(Transformer.str, swept_elements(override, choices)))
        elif override.is_sweep_override():
            raise ConfigError(f"{override.input_line} has no list of values; use choice(...) or range(...)")
        else:
            fixed[key] = str(override.input_line).partition("=")[2]
    return fixed, swept


def key_of(text: str) -> str:
    """The key of an override."""
    return text.lstrip("+").partition("=")[0]


def _suits(key: str, task: str, tasks: Sequence[str]) -> bool:
    """True if a cell of `task` reads a root key or group, or if no task of the sweep does: then the key is
    kept, so that it is refused."""
    group = key.partition(".")[0]
    if "." not in key or key in root_rules(task) or group in TASKS[task].reads:
        return True
    return not any(key in root_rules(other) or group in TASKS[other].reads for other in tasks)


def _fitting(
    texts: tuple[str, ...], chosen: Values, swept: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """A cell's overrides and swept values without the keys that its choice of a swept group lacks.

    `codec=bf16,dynamiq codec.bits=3,4` includes BF16 once, because it has no bits. A key that no choice has
    is kept, so that it is refused.
    """

    def fits(key: str) -> bool:
        group, _, field = key.partition(".")
        if not field or len(swept.get(group, ())) < 2:
            return True
        owners = [choice for choice in swept[group] if _has(group, choice, field)]
        return chosen.get(group) in owners or not owners

    return (
        tuple(text for text in texts if fits(key_of(text))),
        {key: value for key, value in chosen.items() if fits(key)},
    )


def _has(group: str, choice: str, field: str) -> bool:
    """True if a choice of a group has a field, or cannot be composed: it is then refused with its cell."""
    if choice in group_schemas().get(group, ()):
        return choice in choices_with_field(group, field)
    try:
        config = compose([f"{group}={choice}"], named_by_user=False)
    except ConfigError:
        return True
    return rule_of(config, f"{group}.{field}") is not None


def _applies(key: str, case: _SweepCase, cases: Sequence[_SweepCase]) -> bool:
    """True if a common value applies to a case: false only if other cases' choices of the group have such a
    key and this one's does not.

    A key that no case's choice has is kept, so that it is refused.
    """
    return _has_key(case, key) or not any(_has_key(other, key) for other in cases)


def _has_key(case: _SweepCase, key: str) -> bool:
    group, _, field = key.partition(".")
    choices = case.values.get(group, [])
    return not field or not choices or any(_has(group, choice, field) for choice in choices)


def _shadowed(key: str, case: Mapping[str, list[str]], user: Values) -> bool:
    """True if the command line sets `key`, or a different choice of its group than the case."""
    group = key.partition(".")[0]
    other_choice = group in user and group in case and user[group] not in case[group]
    return key in user or (key != group and other_choice)


def _product(values: Mapping[str, Iterable[str]]) -> list[dict[str, str]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
