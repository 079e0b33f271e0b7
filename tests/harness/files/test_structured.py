"""JSON and YAML that others wrote, and values against declared types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import DEPTH, MOST_NODES, read_json, read_json_lines, read_yaml
from gradwire.harness.files.typed import made

WAY_OUT = "mend it"

BAD_JSON = {
    "is not JSON": '{"a": 1',
    "is a list, not an object": "[1]",
    "is a whole number, not an object": "5",
    "is null, not an object": "null",
    "is not UTF-8": b'{"a": "\xff"}',
    f"more than {DEPTH} brackets": "[" * 100_000,
    f"more than {DEPTH} brackets inside": '{"]": ' * (DEPTH + 1) + "1" + "}" * (DEPTH + 1),
    "a number of thousands of digits": '{"a": ' + "1" * 5000 + "}",
    "is longer than": b" " * (8 * 2**20 + 1),
}

ALIASES = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 9}]\n" for a, b in pairwise("abcdefg"))

BAD_YAML = {
    "has an alias": ALIASES,
    "is a list, not a mapping": "- 1",
    "is null, not a mapping": "",
    "line 1 is not YAML": "a: [1",
    "could not determine a constructor": "a: !!python/object/apply:os.system [ls]",
    "a has a tag of its own": "a: !!binary aGVsbG8=",
    "b.c holds an interpolation": "b:\n  c: ['x${oc.env:HOME}']",
    "a holds an interpolation": 'a: "\\x24{oc.env:HOME}"',
    "has a key that is not text: 1": "1: 2",
    "has the key a twice": "a: 1\na: 2",
    "a is a number of more than 64 bits": f"a: {10**30}",
    f"more than {MOST_NODES} values": f"a: [{'1,' * MOST_NODES}]",
    f"or {DEPTH} inside each other": "- " * 1000,
    "unacceptable character": b"a: \x00",
    "is longer than 256 KiB": " " * (2**18 + 1),
}


def refused(read: Callable[..., Any], content: str | bytes, path: Path) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnusableFileError) as caught:
        read(path, remedy=WAY_OUT)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.endswith(f"; {WAY_OUT}")
    assert text.isprintable()
    return text


@pytest.mark.parametrize("problem", BAD_JSON)
def test_json_is_bounded_and_of_the_type_expected(problem: str, tmp_path: Path) -> None:
    assert problem in refused(read_json, BAD_JSON[problem], tmp_path / "file")


@pytest.mark.parametrize("problem", BAD_YAML)
def test_yaml_is_bounded_and_nothing_of_it_is_resolved(problem: str, tmp_path: Path) -> None:
    assert problem in refused(read_yaml, BAD_YAML[problem], tmp_path / "file")


def test_deep_and_wide_json_that_is_within_bounds_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"[[[[": ' * DEPTH + "1" + "}" * DEPTH)
    read_json(path, remedy=WAY_OUT)
    path.write_text("[" + "[[], {}], " * 1000 + "0]")
    assert len(read_json(path, remedy=WAY_OUT, expected=list)) == 1001


def test_yaml_reads_what_omegaconf_writes(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "numbers": [1e-05, 3, 0.1, -2.5e30, float("inf"), True, None],
        "text": ["1e-4", "yes", "null", "2020-01-01", "a: b", "*x", "é\n", "~", "0x1F", "1:30", ""],
        "inside": {"empty": {}, "none": []},
    }
    (tmp_path / "file").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    assert read_yaml(tmp_path / "file", remedy=WAY_OUT) == config


def test_a_damaged_line_costs_what_is_after_it(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n5\n{"a": 4}\n')
    rows, read = [], read_json_lines(path, remedy=WAY_OUT)
    with pytest.raises(UnusableFileError, match="line 3 is a whole number, not an object"):
        rows += [next(read), next(read)]
        next(read)
    assert rows == [(1, {"a": 1}), (2, {"a": 2})]
    path.write_bytes(b'{"a": 1}\n{"a": 2')  # its writer was cut off
    assert list(read_json_lines(path, remedy=WAY_OUT)) == [(1, {"a": 1})]


@dataclass
class Inner:
    low: float


@dataclass
class Outer:
    count: int
    name: str
    kind: Literal["wall", "simulated"]
    inner: Inner | None
    rows: list[dict[str, int]]
    files: Mapping[str, str] = field(default_factory=dict)
    anything: Any = None


GOOD: dict[str, Any] = {"count": 1, "name": "x", "kind": "wall", "inner": {"low": 2}, "rows": [{"a": 1}]}


def test_values_are_taken_as_they_are_declared() -> None:
    found = made(Outer, GOOD | {"unknown": 5, "files": {"a": "b"}}, "file", remedy=WAY_OUT)
    assert found == Outer(1, "x", "wall", Inner(2), [{"a": 1}], {"a": "b"})
    assert made(Outer, GOOD | {"inner": None}, "file", remedy=WAY_OUT).inner is None


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("count", "1", "count is '1', not a whole number"),
        ("count", True, "count is True, not a whole number"),
        ("count", 2**70, "not a whole number"),
        ("name", None, "name is None, not text"),
        ("kind", "moon", "kind is 'moon', not one of wall, simulated"),
        ("inner", {"low": "x"}, "inner.low is 'x', not a number"),
        ("inner", {}, "lacks inner.low"),
        ("inner", 5, "inner is 5, not an object"),
        ("rows", {}, "rows is {}, not a list"),
        ("rows", [5], "rows is 5, not an object"),
        ("rows", [{"a": None}], "rows.a is None, not a whole number"),
        ("files", {"a": 1}, "files.a is 1, not text"),
    ],
)
def test_a_value_of_another_type_is_named(key: str, value: Any, problem: str) -> None:
    with pytest.raises(UnusableFileError, match="^file: .*; mend it$") as caught:
        made(Outer, GOOD | {key: value}, "file", remedy=WAY_OUT)
    assert problem in str(caught.value)


def test_missing_fields_are_named() -> None:
    with pytest.raises(UnusableFileError, match="file: lacks name, rows; mend it"):
        made(Outer, {key: GOOD[key] for key in ("count", "kind", "inner")}, "file", remedy=WAY_OUT)
