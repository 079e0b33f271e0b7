"""A sweep's cells: unions of products, as data.

`hydra.sweeper.cases.<size>` is a list of cases; a case maps keys to a value or a list of values and
means their product; the sweep is the union of its cases. Sweeps on the command line multiply it, and
what the command line sets wins over the cases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from gradwire.harness.config.compose import compose
from gradwire.harness.config.explain import rule_of
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.store import choices_with_field, group_schemas
from gradwire.harness.runtime.errors import ConfigError

ANY_SIZE = "any"
"""The cases of a sweep that no size changes, such as one of replays."""

MOST_CELLS = 10_000

Values = Mapping[str, str]
"""Key to value, as text of Hydra's override grammar."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    overrides: tuple[str, ...]
    """All overrides, as `python run.py` would take them."""
    swept: Mapping[str, str]
    """Those that come from the cases or from a sweep on the command line."""

    @property
    def label(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.swept.items()) or "one run"


def expand(cases: Mapping[str, Any], size: str, arguments: Sequence[str]) -> list[Cell]:
    """The cells of a sweep in order, without repetitions.

    `cases` maps sizes, or `any`, to lists of cases, `size` is the chosen one, `arguments` are the command
    line's overrides. Raises ConfigError when the sweep has no cases for this size or a case is malformed.
    """
    fixed, swept = _command_line(arguments)
    cells: dict[tuple[str, ...], Cell] = {}
    all_cases = _cases_of(cases, size)
    most = sum(math.prod(len(values) for values in [*case.values(), *swept.values()]) for case in all_cases)
    if most > MOST_CELLS:
        raise ConfigError(f"the sweep has {most} runs; choose at most {MOST_CELLS}, e.g. in several sweeps")
    for case in all_cases:
        for line in _product(swept):
            set_by_user = {**fixed, **line}
            kept = {key: values for key, values in case.items() if not _shadowed(key, case, set_by_user)}
            for values in _product(kept):
                chosen = {**values, **line}
                texts = (*_fixed_lines(arguments), *(f"{key}={value}" for key, value in chosen.items()))
                texts, chosen = _fitting(texts, chosen, swept)
                cells.setdefault(tuple(sorted(texts)), Cell(texts, chosen))
    return list(cells.values())


def swept_keys(cells: Sequence[Cell]) -> list[str]:
    """The keys whose values differ between cells, in order of appearance."""
    keys = dict.fromkeys(key for cell in cells for key in cell.swept)
    return [key for key in keys if len({cell.swept.get(key) for cell in cells}) > 1]


def override_text(value: Any) -> str:
    """A value as Hydra's override grammar writes it; strings in quotes only where they need them."""
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
    """Whether the grammar reads `text` as this very string."""
    try:
        (override,) = OverridesParser.create().parse_overrides([f"key={text}"])
    except Exception:  # the grammar has several error types; any of them means: use quotes
        return False
    return bool(text) and not override.is_sweep_override() and override.value() == text


def _cases_of(cases: Mapping[str, Any], size: str) -> list[dict[str, list[str]]]:
    if not cases:
        return [{}]
    size = ANY_SIZE if ANY_SIZE in cases else size
    if size not in cases:
        sizes = " or ".join(f"size={known}" for known in cases)
        raise ConfigError(f"size={size}: this sweep has no cases for it; choose {sizes}")
    found = cases[size]
    if not isinstance(found, list) or not found or not all(isinstance(case, Mapping) for case in found):
        raise ConfigError(
            f"hydra.sweeper.cases.{size} must be a list of mappings, e.g. [{{codec: bf16, seed: [0, 1]}}]"
        )
    return [{str(key): _texts(value) for key, value in case.items()} for case in found]


def _texts(value: Any) -> list[str]:
    return [override_text(item) for item in (value if isinstance(value, list) else [value])]


def _command_line(arguments: Sequence[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """(fixed values, swept values) by key."""
    fixed: dict[str, str] = {}
    swept: dict[str, list[str]] = {}
    for override in parse(arguments):
        key = override.get_key_element()
        if override.is_discrete_sweep():
            swept[key] = list(override.sweep_string_iterator())
        elif override.is_sweep_override():
            raise ConfigError(f"{override.input_line} has no list of values; use choice(...) or range(...)")
        else:
            fixed[key] = str(override.input_line).partition("=")[2]
    return fixed, swept


def _fixed_lines(arguments: Sequence[str]) -> list[str]:
    return [str(override.input_line) for override in parse(arguments) if not override.is_sweep_override()]


def _fitting(
    texts: tuple[str, ...], chosen: Values, swept: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """A cell's overrides and swept values without the keys that its choice of a swept group does not have.

    `codec=bf16,dynamiq codec.bits=3,4` means BF16 once: it has no bits. A key that no choice has stays, and
    is refused.
    """

    def fits(key: str) -> bool:
        group, _, field = key.partition(".")
        if not field or len(swept.get(group, ())) < 2:
            return True
        owners = [choice for choice in swept[group] if _has(group, choice, field)]
        return chosen.get(group) in owners or not owners

    return (
        tuple(text for text in texts if fits(text.lstrip("+").partition("=")[0])),
        {key: value for key, value in chosen.items() if fits(key)},
    )


def _has(group: str, choice: str, field: str) -> bool:
    """Whether a choice of a group has a field; what cannot be composed is refused with its cell."""
    if choice in group_schemas().get(group, ()):
        return choice in choices_with_field(group, field)
    try:
        config = compose([f"{group}={choice}"], named_by_user=False)
    except ConfigError:
        return True
    return rule_of(config, f"{group}.{field}") is not None


def _shadowed(key: str, case: Mapping[str, list[str]], user: Values) -> bool:
    """Whether the command line sets `key`, or another choice of its group than the case's."""
    group = key.partition(".")[0]
    other_choice = group in user and group in case and user[group] not in case[group]
    return key in user or (key != group and other_choice)


def _product(values: Mapping[str, Iterable[str]]) -> list[dict[str, str]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
