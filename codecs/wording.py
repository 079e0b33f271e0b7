"""Values and names in messages: spelled as on the command line, shortened, with the nearest known name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
    """A value as the command line writes it, its middle left out where it is long."""
    if isinstance(value, str | Sequence) and len(value) > 4 * most:
        value = value[: 2 * most]
        return shortened(spelled(value)[: 2 * most], most)
    text = spelled(value)
    if len(text) <= most:
        return text
    head = (most - 3) * 2 // 3
    return f"{text[:head]}...{text[head + 3 - most :]}"


def closest(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Up to `count` candidates that look like `word`, best first.

    Dotted keys are compared as a whole and by their last part, so that `train.batch` finds
    `train.micro_batch` and `bits` finds `codec.bits`. Capitals do not count.
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
    """`; did you mean a, b?`, or nothing when no candidate is close."""
    near = closest(word, candidates)
    return f"; did you mean {' or '.join(near)}?" if near else ""
