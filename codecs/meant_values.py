"""What a refused value was meant to be: one with a unit, in capitals, without brackets, by another name.

Only values that the field allows are proposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

from gradwire.codecs.wording import ECHOED, closest, spelled


class Rule(Protocol):
    """What is asked of a rule of `fields`, which builds on this."""

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
"""How others say true and false."""

NOTHING_WORDS = ("none", "auto", "never", "off", "default", "false", "no", "nil", "unlimited", "all")
"""How others say null."""

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
"""What a unit stands for, in that of the key, by the end of the key's name."""

_QUANTITY = re.compile(r"([-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?)\s*([a-z%]*)(?:/s|ps)?", re.IGNORECASE)


def example(key: str, value: Any, rule: Rule, *, python: bool = False) -> str:
    """`, e.g. key=<what was meant>`, or nothing where nobody can tell."""
    vast = isinstance(value, int) and value.bit_length() > ECHOED  # Python does not write it
    if not isinstance(value, str | int | float) or vast or len(str(value)) > ECHOED:
        return ""
    for meant in _candidates(key, value, rule):
        if rule.allows(meant):
            return f", e.g. {key}={repr(meant) if python and not isinstance(meant, str) else spelled(meant)}"
    return ""


def _candidates(key: str, value: Any, rule: Rule) -> Iterator[Any]:
    if rule.elements is not None and not isinstance(value, list):
        yield from _listed(key, value, rule.elements)
    if isinstance(value, str | int) and rule.choices:
        yield from _choices(str(value), rule)
    if "true or false" in rule.kinds:
        yield from (truth for truth, words in WORDS.items() if str(value).lower() in words)
    yield from _numbers(key, value)
    if rule.optional and str(value).lower() in (*NOTHING_WORDS, *(["0"] if key.endswith("every") else [])):
        yield None


def _listed(key: str, value: Any, of: Rule) -> Iterator[list[Any]]:
    """A value, or the parts of a text, as a list."""
    yield [value]
    parts: list[Any] = [part for part in re.split(r"[\s,;()]+", str(value)) if part]
    yield parts
    read = [next((each for each in _numbers(key, part) if of.allows(each)), part) for part in parts]
    yield read


def _choices(word: str, rule: Rule) -> Iterator[Any]:
    """The choice that only differs in capitals and signs, is called so elsewhere, or looks alike."""
    alike = {_plain(str(choice)): choice for choice in rule.choices}
    if _plain(word) in alike:
        yield alike[_plain(word)]
    yield from (choice for choice, names in CHOICE_WORDS.items() if word.lower() in names)
    yield from closest(word, [choice for choice in rule.choices if isinstance(choice, str)])


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "").strip()


def _numbers(key: str, value: Any) -> Iterator[int | float]:
    """A number without its unit, and whole where it is."""
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
