"""One rule for all settings: a field says what it allows, and all else is refused in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from gradwire.codecs.fields import (
    Rule,
    above,
    at_least,
    between,
    check_fields,
    list_of,
    one_of,
    plain_name,
    rules_of,
)
from gradwire.codecs.registry import OWN, codec_class, make_codec
from gradwire.codecs.wording import shortened


@dataclass
class Inner:
    depth: int = at_least(1, 2, 9)


@dataclass
class Settings:
    """Settings with every kind of field."""

    name: str = plain_name("run")
    label: str | None = None
    count: int = at_least(1, 3, 100)
    rate: float | None = above(0, 0.5, 10)
    share: float = between(0, 1, 0.0, high_included=False)
    mode: str = one_of("auto", "on", "off")
    bits: int | str = one_of("auto", *range(1, 17))
    enabled: bool = True
    widths: list[int] = list_of([2], fewest=1, unique=True, choices=(2, 4, 8))
    steps: list[int] = list_of(low=0, high=1000)
    files: dict[str, str] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


GOOD = [
    *({"name": "a.b_c+d-1"}, {"name": "modèle"}, {"label": None}, {"label": "two words"}, {"rate": None}),
    *({"rate": 10}, {"count": 100}, {"share": 0}, {"mode": "off"}, {"bits": 16}, {"bits": "auto"}),
    *({"widths": [8, 2]}, {"steps": []}, {"files": {"a": "b"}}, {"inner": {"depth": 9}}, {"inner": Inner()}),
]

BAD = [
    ({"name": "../../x"}, "name=../../x: choose a name of letters"),
    ({"name": ""}, "name=: choose a name"),
    ({"name": "a\nb"}, r"name=a\nb: choose a name"),
    ({"name": "a\u202eb"}, r"name=a\u202eb: choose a name"),
    ({"name": "x" * 101}, "at most 100 characters"),
    ({"label": " "}, "label= : must not be empty; choose a printable text, or null"),
    ({"label": 5}, "label=5: choose a printable text"),
    ({"count": 0}, "count=0: choose a whole number from 1 to 100"),
    ({"count": True}, "count=true: choose a whole number"),
    ({"count": 2.0}, "count=2.0: choose a whole number"),
    ({"count": "4"}, "count=4: choose a whole number"),
    ({"count": None}, "count=null: choose a whole number"),
    ({"count": 10**5000}, "count=<a number of 5001 digits>: choose"),
    ({"rate": 0}, "rate=0: choose a number above 0 and at most 10, or null (no value)"),
    ({"rate": math.nan}, "rate=nan: choose a number"),
    ({"rate": math.inf}, "rate=inf: choose a number"),
    ({"share": 1}, "share=1: choose a number of at least 0 and below 1"),
    ({"mode": "auot"}, "mode=auot: choose one of auto, on, off; did you mean s.mode=auto?"),
    ({"mode": [1]}, "mode=[1]: choose one of auto"),
    ({"bits": 17}, "bits=17: choose one of auto, 1 to 16"),
    ({"enabled": "yes"}, "enabled=yes: choose true or false"),
    ({"enabled": 1}, "enabled=1: choose true or false"),
    ({"widths": []}, "widths=[]: choose one or more of 2, 4, 8, each once"),
    ({"widths": [2, 2]}, "widths=[2, 2]: choose one or more"),
    ({"widths": [[2]]}, "widths=[[2]]: choose one or more"),
    ({"widths": "248"}, "widths=248: choose one or more"),
    ({"steps": [1, -1]}, "steps=[1, -1]: choose a list, each a whole number from 0 to 1000"),
    ({"steps": [None]}, "steps=[null]: choose a list"),
    ({"files": []}, "files=[]: choose a mapping"),
    ({"inner": {"depth": 10}}, "inner.depth=10: choose a whole number from 1 to 9"),
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_allowed(values: dict[str, Any]) -> None:
    check_fields(Settings, values)


@pytest.mark.parametrize(("values", "said"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_refused_in_one_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_fields(Settings, values, "s")
    message = str(refused.value)
    assert message.startswith("s.")
    assert said in message
    assert message.isprintable()
    assert len(message) <= 300


def test_what_a_message_repeats_is_short() -> None:
    for value in ("x" * 10**6, [1] * 10**6, {"a" * 10**6: 1}, 10**5000, [["a" * 500] * 500]):
        assert len(shortened(value)) <= 60
    assert shortened([None, True, "a", 1.5]) == "[null, true, a, 1.5]"


def test_every_number_of_every_codec_has_bounds() -> None:
    for name in OWN:
        for option, rule in rules_of(codec_class(name)).items():
            assert isinstance(rule, Rule) and rule.kinds, (name, option)
            for each in (rule, rule.elements):
                if each is not None and {"number", "whole number"} & set(each.kinds):
                    assert each.choices or math.isfinite(each.low) and math.isfinite(each.high), (
                        name,
                        option,
                    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "dynamic"}, "did you mean dynamiq"),
        ({"name": None}, "codec=null is unknown"),
        ({"name": "dynamiq", "bitz": 4}, "codec.bitz: codec=dynamiq has no such option; did you mean bits"),
        ({"name": "bf16", "bits": 4}, "codec.bits: codec=bf16 has no such option; it has name, exclude, ef"),
        ({"name": "dynamiq", "bits": "4"}, "codec.bits=4: choose a number"),
        ({"name": "dynamiq", "ef": "yes"}, "codec.ef=yes: choose true or false"),
        ({"name": "dynamiq", "widths": [[1]]}, "codec.widths=[[1]]: choose one or more of 1, 2"),
    ],
)
def test_the_registry_refuses_what_no_codec_takes(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        make_codec(**options)
    assert said in str(refused.value)
