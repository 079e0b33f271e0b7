"""The rule that names, types and ranges of values given in Python have to keep to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gradwire.codecs.fields import above, at_least, one_of
from gradwire.harness.library.options import check_arguments


@dataclass
class Options:
    bits: float | None = above(0, 4.0)
    buckets: int = at_least(1, 2)
    ef: bool = False
    rounding: str = one_of("correlated", "independent")
    widths: list[int] = field(default_factory=lambda: [2, 4])
    anything: object = None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"bits": None, "buckets": 3, "ef": True, "rounding": "independent", "widths": (2, 8)},
        {"bits": 5, "anything": object()},
    ],
)
def test_allowed_values_pass(values: dict[str, Any]) -> None:
    check_arguments(Options, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"bitz": 4},
            "codec.bitz=4 is unknown: choose from bits, buckets, ef, rounding, widths, anything; did you",
        ),
        ({"bits": "4"}, "codec.bits='4': choose a number above 0, or None"),
        ({"bits": True}, "codec.bits=True: choose a number"),
        ({"bits": 0}, "codec.bits=0: choose a number above 0"),
        ({"bits": float("nan")}, "codec.bits=nan: choose a number above 0"),
        ({"bits": float("inf")}, "codec.bits=inf: choose a number"),
        ({"buckets": 2.0}, "codec.buckets=2.0: choose a whole number"),
        ({"buckets": None}, "codec.buckets=None: choose a whole number"),
        ({"buckets": 0}, "codec.buckets=0: choose a whole number of at least 1"),
        ({"ef": "yes"}, "codec.ef='yes': choose True or False"),
        ({"ef": 1}, "codec.ef=1: choose True or False"),
        ({"rounding": "independant"}, "; did you mean codec.rounding=independent?"),
        ({"widths": [2, "4"]}, "choose a list, each a whole number"),
        ({"widths": "24"}, "codec.widths='24': choose a list"),
        ({"bits": "4" * 5000}, "codec.bits='444"),
    ],
)
def test_others_are_refused_in_one_short_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        check_arguments(Options, values, "codec")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) <= 300
