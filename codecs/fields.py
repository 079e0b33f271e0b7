"""Dataclass fields that declare which values they allow, and the one check that enforces this.

The allowed values are declared once, with the field, and are used by the check, its message, the help page
and the tests. They follow from the field's type and from the bounds, choices and lengths that these functions
add. Every number must be finite, every text printable and not empty, every message is one line.

Codecs, `attach()` and the command line all check their settings with this module, so it imports neither torch
nor Hydra.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from gradwire.codecs.wording import did_you_mean, likely_meant, shortened, spelled

WHOLE, NUMBER, BOOLEAN, TEXT, LIST, MAPPING = (
    *("whole number", "number", "true or false", "text", "list", "mapping"),
)
"""The kinds of values, in the words of messages."""

RANGE = "range such as 100-109"
"""A kind of text that stands for consecutive whole numbers, see `range_of`."""

_RANGE = re.compile(r"(\d{1,10})-(\d{1,10})")

NOTHING = "set automatically; leave it out"
"""A value that no user gives."""

LONGEST_TEXT = 4096
"""Characters of a text: those of the longest path."""

LONGEST_PART = 255
"""Bytes of a text between two slashes: a file system takes no longer name, and nothing else needs one."""

LONGEST_NAME = 100
"""Characters of a name that becomes part of a file's."""

LONGEST_LIST = 10_000

KIND_OF_TYPE = {int: WHOLE, float: NUMBER, bool: BOOLEAN, str: TEXT, list: LIST, dict: MAPPING}

_RULE = "rule"


@dataclass(frozen=True)
class Rule:
    """The values that a field allows."""

    kinds: tuple[str, ...] = ()
    """Any of them; empty: anything, another check looks at it."""
    optional: bool = False
    """True if null is allowed."""
    choices: tuple[Any, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True
    plain: bool = False
    """True if a text becomes part of a file's name: letters, digits and a few signs."""
    fewest: int = 0
    """Elements of a list."""
    unique: bool = False
    """True if a list has each element once."""
    pair: bool = False
    """True if a list is of two numbers, the smaller first."""
    elements: Rule | None = None
    hint: str = ""
    """Helps to choose; in parentheses after what is allowed."""

    def allows(self, value: Any) -> bool:
        return _is_allowed(value, self)

    def allowed(self) -> str:
        """The allowed values in words, e.g. `a whole number from 1 to 64, or null`."""
        words = self._allowed()
        if NOTHING in self.kinds:
            return NOTHING
        return f"{words}, or null" if self.optional else words

    def _allowed(self) -> str:
        if self.choices:
            return f"one of {_listed(self.choices)}"
        if LIST in self.kinds and TEXT in self.kinds:
            return "a printable text, or a list of them"
        if self.pair and self.elements is not None:
            return f"{self.elements.allowed()}, or a list of two of them, the smaller first"
        if LIST in self.kinds:
            some, each = "a list of at least one" if self.fewest else "a list", self.elements
            if each is None:
                return some
            if each.choices:
                some = f"{'one' if self.fewest else 'none'} or more of {_listed(each.choices)}"
                return f"{some}, each once" if self.unique else some
            if each.kinds == (TEXT,):
                return f"a list of {'at least one text' if self.fewest else 'texts'}"
            return f"{some}, each {each.allowed()}"
        if self.plain:
            return f"a name of letters, digits, '.', '_', '+' and '-', of at most {LONGEST_NAME} characters"
        if self.low == self.high:
            return _figure(self.low)
        kinds = " or ".join(("" if kind == BOOLEAN else "a ") + kind for kind in self.kinds) or "a value"
        return kinds.replace("a text", "a printable text") + self._bounds()

    def _bounds(self) -> str:
        has_low, has_high = math.isfinite(self.low), math.isfinite(self.high)
        if has_low and has_high and self.low_included and self.high_included:
            return f" from {_figure(self.low)} to {_figure(self.high)}"
        low = f" {'of at least' if self.low_included else 'above'} {_figure(self.low)}" if has_low else ""
        high = f" {'at most' if self.high_included else 'below'} {_figure(self.high)}" if has_high else ""
        return f"{low}{' and' if low and high else ''}{high}"


def _figure(bound: float) -> str:
    """A bound as text: `65536`, `0.001`, `1e+09`."""
    return str(int(bound)) if bound == int(bound) and abs(bound) < 1e12 else f"{bound:g}"


def _listed(choices: Sequence[Any]) -> str:
    """The choices as text, with consecutive whole numbers as a range: `auto, 1 to 16`."""
    numbers = [choice for choice in choices if isinstance(choice, int) and not isinstance(choice, bool)]
    if len(numbers) <= 8 or numbers != list(range(numbers[0], numbers[-1] + 1)):
        return ", ".join(map(spelled, choices))
    others = [spelled(choice) for choice in choices if choice not in numbers]
    return ", ".join([*others, f"{numbers[0]} to {numbers[-1]}"])


def one_of(*allowed: Any, default: Any = None, hint: str = "") -> Any:
    """A field with a fixed set of values; the first is the default unless one is given."""
    chosen = allowed[0] if default is None else default
    return dataclasses.field(default=chosen, metadata={_RULE: {"choices": allowed, "hint": hint}})


def at_least(minimum: float, default: float | None, most: float = math.inf, *, hint: str = "") -> Any:
    """A number field (None allowed where the type says so) with minimum <= value <= most."""
    return between(minimum, most, default, hint=hint)


def above(minimum: float, default: float | None, most: float = math.inf, *, hint: str = "") -> Any:
    """A number field with minimum < value <= most."""
    return between(minimum, most, default, low_included=False, hint=hint)


def between(
    minimum: float,
    maximum: float,
    default: float | None,
    *,
    low_included: bool = True,
    high_included: bool = True,
    hint: str = "",
) -> Any:
    """A number field with minimum <= value <= maximum, or < where an end is not included."""
    ends = {"low_included": low_included, "high_included": high_included}
    bounds = {"low": minimum, "high": maximum, **ends, "hint": hint}
    return dataclasses.field(default=default, metadata={_RULE: bounds})


def plain_name(default: str | None) -> Any:
    """A text field that becomes part of a file's name."""
    return dataclasses.field(default=default, metadata={_RULE: {"plain": True}})


def list_of(
    default: Sequence[Any] = (),
    *,
    fewest: int = 0,
    unique: bool = False,
    hint: str = "",
    **element: Any,
) -> Any:
    """A list field whose elements have the kind that the type says and the `Rule`'s `element` settings."""
    rule = {"fewest": fewest, "unique": unique, "hint": hint, "element": element}
    return dataclasses.field(default_factory=lambda: list(default), metadata={_RULE: rule})


def number_or_pair(minimum: int, maximum: int, default: int, *, hint: str = "") -> Any:
    """A field that holds a whole number or a list of two, the smaller first. Its type is Any because
    configurations do not support a union of both."""
    bounds: dict[str, Any] = {"low": minimum, "high": maximum}
    each = Rule(kinds=(WHOLE,), **bounds)
    return checked(default, kinds=(WHOLE, LIST), pair=True, elements=each, hint=hint, **bounds)


def checked(default: Any, **rule: Any) -> Any:
    """A field with an explicit `Rule`, for types that do not imply the allowed values."""
    return dataclasses.field(default=default, metadata={_RULE: rule})


@lru_cache(maxsize=1024)
def rules_of(schema: type) -> Mapping[str, Rule | type]:
    """The rule of each field of a dataclass, or, for a field that is a dataclass itself, that dataclass."""
    hints = typing.get_type_hints(schema)
    return {field.name: _rule(field, hints[field.name]) for field in dataclasses.fields(schema)}


def _rule(field: dataclasses.Field[Any], hint: Any) -> Rule | type:
    given = dict(field.metadata.get(_RULE, {}))
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    types_of = typing.get_args(hint) if is_union else (hint,)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    element = given.pop("element", {})
    origins = [typing.get_origin(kind) or kind for kind in types_of]
    kinds = tuple(KIND_OF_TYPE[kind] for kind in origins if kind in KIND_OF_TYPE)
    if NUMBER in kinds:  # whole ones are numbers
        kinds = tuple(kind for kind in kinds if kind != WHOLE)
    rule = {"kinds": kinds, "optional": type(None) in types_of, **given}
    if list in origins:
        of = typing.get_args(types_of[origins.index(list)])[:1]
        own = {"kinds": tuple(KIND_OF_TYPE[kind] for kind in of if kind in KIND_OF_TYPE)}
        rule["elements"] = Rule(**own | element)
    return Rule(**rule)


def rules_with(schema: type, values: Mapping[str, Any]) -> Mapping[str, Rule | type]:
    """`rules_of`, narrowed where the `values` of some fields restrict others.

    A dataclass narrows rules in its class method `narrowed_rules`. That method gets all fields, each with a
    value that its own rule allows (the default if the field is not among `values`), and returns the replaced
    rules.
    """
    rules, narrowed = rules_of(schema), getattr(schema, "narrowed_rules", None)
    if narrowed is None:
        return rules
    known = {field.name: default_of(field) for field in dataclasses.fields(schema)}
    for name, rule in rules.items():
        if name in values and isinstance(rule, Rule) and rule.allows(values[name]):
            known[name] = values[name]
    return {**rules, **narrowed(known)}


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default value of a field; None if the field has no default."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def check_fields(schema: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ValueError, in one line, for the first of `values` that its field in `schema` does not allow.

    `prefix` is the part before a field's name in the key that users write: `codec` for `codec.bits`.
    """
    for name, rule in rules_with(schema, values).items():
        key = f"{prefix}.{name}" if prefix else name
        if name not in values:
            continue
        if isinstance(rule, Rule):
            check_value(key, values[name], rule)
        else:
            found = values[name]
            check_fields(rule, dict(found) if isinstance(found, Mapping) else vars(found), key)


def check_value(key: str, value: Any, rule: Rule) -> None:
    """Raise ValueError, in one line, unless `rule` allows `value`, which users write as `key`."""
    if not rule.allows(value):
        raise ValueError(refusal(shortened(key), shortened(value), value, rule))


def refusal(key: str, shown: str, value: Any, rule: Rule, *, python: bool = False) -> str:
    """The message `key=shown: choose <allowed values>`; with `python` it writes None, True and False."""
    hint, allowed = f" ({rule.hint})" if rule.hint else "", rule.allowed()
    if isinstance(value, str) and TEXT in rule.kinds and not rule.plain and _is_long(value):
        allowed += f", of at most {LONGEST_TEXT} characters, {LONGEST_PART} of them between two slashes"
    if python:
        allowed = allowed.replace("or null", "or None").replace(BOOLEAN, "True or False")
    elif rule.hint.startswith("null: "):
        hint = f" ({rule.hint.removeprefix('null: ')})"
    elif allowed.endswith(", or null"):
        allowed, hint = f"{allowed.removesuffix(', or null')}{hint}, or null (no value)", ""
    if allowed == NOTHING:
        return f"{key}={shown}: {NOTHING}"
    blank = isinstance(value, str) and not value.strip() and TEXT in rule.kinds
    must = "must not be empty; " if blank and not rule.choices and not rule.plain else ""
    return f"{key}={shown}: {must}choose {allowed}{hint}{likely_meant(key, value, rule, python=python)}"


def plain(value: Any) -> Any:
    """A number, or each number of a list, as Python's own int or float: numpy's scalars are allowed, too."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list):
        return [plain(element) for element in value]
    return tuple(map(plain, value)) if type(value) is tuple else value


def check_names(known: Iterable[str], given: Iterable[str], prefix: str, owner: str) -> None:
    """Raise ValueError for the first of the `given` names that `owner` does not know."""
    names = list(known)
    for name in given:
        if name not in names:
            has = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            raise ValueError(f"{prefix}.{shortened(name)}: {owner} has no such option{has}")


def _is_allowed(value: Any, rule: Rule) -> bool:
    if value is None:
        return rule.optional or not rule.kinds
    if rule.choices and value not in rule.choices:
        return False
    return not rule.kinds or any(_CHECKS[kind](value, rule) for kind in rule.kinds)


def _is_number(value: Any, rule: Rule) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool) or not _is_finite(value):
        return False
    number = float(value)
    above_low = number >= rule.low if rule.low_included else number > rule.low
    return above_low and (number <= rule.high if rule.high_included else number < rule.high)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_text(value: Any, rule: Rule) -> bool:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return False
    return is_plain_name(value) if rule.plain else not _is_long(value)


def _is_long(text: str) -> bool:
    parts = text.encode("utf-8", "replace").split(b"/")
    return len(text) > LONGEST_TEXT or max(map(len, parts)) > LONGEST_PART


def is_plain_name(text: str) -> bool:
    """True if a text can be part of a file's name: it starts with a letter or digit and has no separators."""
    signs = set("._+-")
    return (
        0 < len(text) <= LONGEST_NAME
        and text[0].isalnum()
        and all(letter.isalnum() or letter in signs for letter in text)
    )


def range_of(text: Any) -> range | None:
    """The whole numbers that `100-109` stands for, both ends included; None for anything else, and for a
    range whose end is before its beginning."""
    ends = _RANGE.fullmatch(text) if isinstance(text, str) else None
    if ends is None or int(ends[1]) > int(ends[2]):
        return None
    return range(int(ends[1]), int(ends[2]) + 1)


def _is_range(value: Any, rule: Rule) -> bool:
    found = range_of(value)
    return found is not None and rule.low <= found[0] and found[-1] <= rule.high


def _is_list(value: Any, rule: Rule) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    if not rule.fewest <= len(value) <= LONGEST_LIST:
        return False
    if rule.unique and any(element in value[:index] for index, element in enumerate(value)):
        return False
    if rule.elements is not None and not all(_is_allowed(element, rule.elements) for element in value):
        return False
    return not rule.pair or (len(value) == 2 and bool(value[0] < value[1]))


_CHECKS: dict[str, Callable[[Any, Rule], bool]] = {
    WHOLE: lambda value, rule: isinstance(value, Integral) and _is_number(value, rule),
    NUMBER: _is_number,
    BOOLEAN: lambda value, rule: isinstance(value, bool),
    TEXT: _is_text,
    LIST: _is_list,
    MAPPING: lambda value, rule: isinstance(value, Mapping) and len(value) <= LONGEST_LIST,
    NOTHING: lambda value, rule: False,
    RANGE: _is_range,
}
