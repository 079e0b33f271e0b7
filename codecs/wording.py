"""Values and names in messages: formatted as on the command line, with the nearest known name or an
example."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

ECHOED = 60
"""Characters of a value that a message repeats."""

COMPARED = 100
"""Characters of a mistyped name that are compared with the known ones."""


def spelled(value: Any) -> str:
    """A value as the command line writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value.isprintable() else ascii(value)[1:-1]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{spelled(name)}: {spelled(item)}' for name, item in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(spelled, value))}]"
    if isinstance(value, int) and value.bit_length() > 512:
        return f"<a number of {int(value.bit_length() * math.log10(2)) + 1} digits>"
    return str(value)


def shortened(value: Any, most: int = ECHOED) -> str:
    """A value as the command line writes it, shortened in the middle if it is long."""
    if isinstance(value, str | Sequence) and len(value) > 4 * most:
        value = value[: 2 * most]
        return shortened(spelled(value)[: 2 * most], most)
    text = spelled(value)
    if len(text) <= most:
        return text
    head = (most - 3) * 2 // 3
    return f"{text[:head]}...{text[head + 3 - most :]}"


def as_python(value: object) -> str:
    """A value as Python writes it, shortened if it is long."""
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = writer.maxlong = ECHOED
    return " ".join(writer.repr(value).split())


def closest(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Up to `count` candidates that look like `word`, best first.

    Dotted keys are compared as a whole and by their last part, so that `train.batch` finds
    `train.micro_batch` and `bits` finds `codec.bits`. Case is ignored.
    """
    names = sorted(set(candidates))
    word = word[:COMPARED].lower()
    lowered = {name.lower(): name for name in names}
    whole = [lowered[name] for name in difflib.get_close_matches(word, lowered, n=count, cutoff=0.6)]
    last = word.rsplit(".", 1)[-1]
    tails = [name for name in names if name.rsplit(".", 1)[-1] == last]
    siblings = [name for name in names if "." in word and name.startswith(word.rsplit(".", 1)[0] + ".")]
    near = [name for name in siblings if last in name or name.rsplit(".", 1)[-1] in last]
    return list(dict.fromkeys([*tails, *whole, *near]))[:count]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """The suffix `; did you mean a, b?`, or an empty string if no candidate is close."""
    near = closest(word, candidates)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class ValueRule(Protocol):
    """The part of a rule of `fields` that this module needs; `fields` imports this module."""

    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def optional(self) -> bool: ...
    @property
    def choices(self) -> tuple[Any, ...]: ...
    @property
    def elements(self) -> Any: ...
    def allows(self, value: Any) -> bool: ...


WORDS = {
    True: ("yes", "on", "1", "y", "t", "enable", "enabled", "True"),
    False: ("no", "off", "0", "n", "f", "disable", "disabled", "False", "none"),
}
"""Other words for true and false."""

NOTHING_WORDS = ("none", "auto", "never", "off", "default", "false", "no", "nil", "unlimited", "all")
"""Other words for null."""

CHOICE_WORDS = {
    "cuda": ("gpu", "cuda:0", "nvidia", "gpus"),
    "bf16": ("fp16", "16", "float16", "half", "bfloat16", "mixed", "amp", "bf16-mixed", "16-mixed"),
    "fp32": ("float32", "32", "float", "full", "tf32", "single"),
    "auto": ("true", "yes", "on", "last", "latest", "always", "continue", "1", "default"),
    "never": ("false", "no", "off", "0", "restart", "scratch"),
    "gloo": ("mpi", "cpu", "tcp"),
    "adamw": ("adam_w", "adamw_torch"),
}
"""Choices by their names elsewhere."""

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
MEGABITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3, "tbit": 1e6, "k": 1e-3, "m": 1.0, "g": 1e3}
MEGABYTES = {"kb": 1e-3, "mb": 1.0, "gb": 1e3, "kib": 1e-3, "mib": 1.0, "gib": 1e3, **MEGABITS}
COUNTS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "bit": 1.0, "bits": 1.0, "x": 1.0, "%": 1e-2}
FACTORS = {"_s": SECONDS, "_mbit": MEGABITS, "_mb": MEGABYTES, "": COUNTS}
"""Factors of units to the key's own, by the end of the key's name."""

_QUANTITY = re.compile(r"([-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?)\s*([a-z%]*)(?:/s|ps)?", re.IGNORECASE)


def likely_meant(key: str, value: Any, rule: ValueRule, *, python: bool = False) -> str:
    """`; did you mean key=<a likely value>?`, or nothing if there is none."""
    vast = isinstance(value, int) and value.bit_length() > ECHOED  # Python does not write it
    if not isinstance(value, str | int | float) or vast or len(str(value)) > ECHOED:
        return ""
    for meant in _candidates(key, value, rule):
        if rule.allows(meant):
            written = repr(meant) if python and not isinstance(meant, str) else spelled(meant)
            return f"; did you mean {key}={written}?"
    return ""


def _candidates(key: str, value: Any, rule: ValueRule) -> Iterator[Any]:
    if rule.elements is not None and not isinstance(value, list):
        yield from _listed(key, value, rule.elements)
    if isinstance(value, str | int) and rule.choices:
        yield from _choices(str(value), rule)
    if "true or false" in rule.kinds:
        yield from (truth for truth, words in WORDS.items() if str(value).lower() in words)
    yield from _numbers(key, value)
    if rule.optional and str(value).lower() in (*NOTHING_WORDS, *(["0"] if key.endswith("every") else [])):
        yield None


def _listed(key: str, value: Any, of: ValueRule) -> Iterator[list[Any]]:
    """A value, or the parts of a text, as a list."""
    yield [value]
    parts: list[Any] = [part for part in re.split(r"[\s,;()]+", str(value)) if part]
    yield parts
    read = [next((each for each in _numbers(key, part) if of.allows(each)), part) for part in parts]
    yield read


def _choices(word: str, rule: ValueRule) -> Iterator[Any]:
    """The choice that differs from `word` only in case and signs, has it as another name, or looks
    similar."""
    alike = {_plain(str(choice)): choice for choice in rule.choices}
    if _plain(word) in alike:
        yield alike[_plain(word)]
    yield from (choice for choice, names in CHOICE_WORDS.items() if word.lower() in names)
    yield from closest(word, [choice for choice in rule.choices if isinstance(choice, str)])


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "").strip()


def _numbers(key: str, value: Any) -> Iterator[int | float]:
    """A number without its unit, rounded if the rule asks for whole numbers."""
    if isinstance(value, bool) or not isinstance(value, str | float):
        return
    read = _QUANTITY.fullmatch(str(value).strip())
    if read is None:
        return
    unit, number = read[2].lower(), float(read[1])
    ending = next((each for each in FACTORS if each and key.endswith(each)), "")
    factor = FACTORS[ending].get(unit, FACTORS[ending].get(unit.removesuffix("s")))
    if factor is None and unit:
        return
    found = float(f"{number * (factor or 1.0):.12g}")
    if abs(found) < 1e15 and found == int(found):
        yield int(found)
    yield found
