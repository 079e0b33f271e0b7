"""Reading of JSON and YAML with limits on length and depth and with checked types; references are not
resolved."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import (
    MOST_LINE,
    MOST_TEXT,
    UnusableFileError,
    decoded,
    read_bytes,
    read_lines,
    read_text,
)

DEPTH = 32
"""The largest number of levels of nested objects and lists."""

MOST_YAML = 2**18
"""The largest size of a YAML file in bytes; a run's `config.yaml` has some 6,000."""

MOST_NODES = 20_000
"""The largest number of keys, values, lists and mappings in a YAML file."""

_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)
"""Numbers for OmegaConf that YAML 1.1 parses as text, such as 1e-4."""


def read_json(
    path: str | Path,
    *,
    remedy: str,
    inside: Path | None = None,
    expected: type | tuple[type, ...] = dict,
    most: int = MOST_TEXT,
) -> Any:
    """Returns the JSON value in a file of at most `most` bytes, an instance of `expected`: dict, list, or
    both.

    Raises UnusableFileError; `remedy` and `inside` are those of `files.open_file`.
    """
    content = read_bytes(path, remedy=remedy, inside=inside, most=most)
    return parse_json(content, path, remedy=remedy, expected=expected)


def read_json_lines(
    path: str | Path,
    *,
    remedy: str,
    inside: Path | None = None,
    most: int = MOST_LINE,
    most_in_all: int | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1 on, object) for each line of a file.

    The file has at most `most_in_all` bytes, a line at most `most`. An incomplete last line, without a line
    feed, is ignored. Raises UnusableFileError naming the damaged line, after the lines before it; `remedy`
    and `inside` are those of `files.open_file`.
    """
    lines = read_lines(path, remedy=remedy, inside=inside, most=most, most_in_all=most_in_all)
    for number, line in enumerate(lines, start=1):
        if line.endswith(b"\n"):
            yield number, parse_json(line, path, remedy=remedy, where=f"line {number} ")


def parse_json(
    content: bytes,
    path: str | Path,
    *,
    remedy: str,
    expected: type | tuple[type, ...] = dict,
    where: str = "",
) -> Any:
    """Parses JSON text that was read from `path`; raises UnusableFileError.

    `where` precedes the problem in the message: `line 3 `.
    """
    too_deep = UnusableFileError(path, f"{where}has more than {DEPTH} brackets inside each other", remedy)
    try:
        value = json.loads(decoded(content, path, remedy))
    except RecursionError:
        raise too_deep from None
    except json.JSONDecodeError as error:
        raise UnusableFileError(path, f"{where}is not JSON ({error.msg})", remedy) from None
    except UnusableFileError as error:
        raise UnusableFileError(path, f"{where}{error.problem}", remedy) from None
    except ValueError:
        raise UnusableFileError(path, f"{where}has a number of thousands of digits", remedy) from None
    if content.count(b"[") + content.count(b"{") > DEPTH and _exceeds(value, DEPTH):
        raise too_deep
    if not isinstance(value, expected):
        wanted = " or ".join(
            _kind(each) for each in (expected if isinstance(expected, tuple) else (expected,))
        )
        raise UnusableFileError(path, f"{where}is {_kind(type(value))}, not {wanted}", remedy)
    return value


def _exceeds(value: Any, levels: int) -> bool:
    """Returns whether objects and lists are nested in more than `levels` levels."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_exceeds(each, levels - 1) for each in inner)


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def _kind(found: type) -> str:
    return _KINDS.get(found, found.__name__)


def read_yaml(path: str | Path, *, remedy: str, inside: Path | None = None) -> dict[str, Any]:
    """Returns the mapping in a YAML file: plain values, lists and mappings with text keys, without resolving
    anything.

    Refuses aliases, which can expand; tags; and interpolations (`${…}`), which could read secrets from the
    reader's environment. Raises UnusableFileError; `remedy` and `inside` are those of `files.open_file`.
    """
    import yaml

    text = read_text(path, remedy=remedy, inside=inside, most=MOST_YAML)
    try:
        loader = _bounded_loader()(text)
        try:
            found = loader.get_single_data()
        finally:
            loader.dispose()
    except _RefusedYamlError as error:
        raise UnusableFileError(path, str(error), remedy) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise UnusableFileError(path, f"line {line} is not YAML ({error.problem})", remedy) from None
    except (yaml.YAMLError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise UnusableFileError(path, f"is not YAML that can be read ({error})", remedy) from None
    if not isinstance(found, dict):
        raise UnusableFileError(path, f"is {_kind(type(found))}, not a mapping", remedy)
    reason = _unplain(found, "")
    if reason is not None:
        raise UnusableFileError(path, reason, remedy)
    return found


class _RefusedYamlError(Exception):
    """Raised for YAML constructs that a record does not need."""


@cache
def _bounded_loader() -> Any:
    """PyYAML's safe loader with limits, which parses numbers as OmegaConf does."""
    import yaml

    class Loader(yaml.SafeLoader):
        nodes = depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise _RefusedYamlError("has an alias (*), which is not expanded")
            self.nodes, self.depth = self.nodes + 1, self.depth + 1
            if self.nodes > MOST_NODES or self.depth > DEPTH:
                raise _RefusedYamlError(f"has more than {MOST_NODES} values, or {DEPTH} inside each other")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            double = [key for key, times in keys.items() if times > 1]
            if double:
                raise _RefusedYamlError(f"has the key {double[0]} twice")
            return super().construct_mapping(node, deep=deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


def _unplain(value: Any, key: str) -> str | None:
    """The reason why a value from YAML cannot be part of a record; None if it can."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                return f"has a key that is not text: {name!r}"
            reason = _unplain(name, key) or _unplain(item, f"{key}.{name}" if key else name)
            if reason is not None:
                return reason
        return None
    if isinstance(value, list):
        return next((reason for item in value if (reason := _unplain(item, key)) is not None), None)
    if isinstance(value, str):
        return f"{key} holds an interpolation (${{…}}), which is not resolved" if "${" in value else None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{key} is a number of more than 64 bits"
    return None if value is None or isinstance(value, bool | int | float) else f"{key} has a tag of its own"
