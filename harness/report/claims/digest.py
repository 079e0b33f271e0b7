"""Digests of claims, by which a record tells those that stood before it was made from those written later."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

RULES = "gradwire.harness.report.claims."
"""The place of the rules for all claims, which a digest has by name."""

RULE_MODULES = tuple(f"{RULES}{name}" for name in ("effects", "fits", "evidence", "claim", "figures"))

PLAIN = (str, int, float, bool, type(None), tuple, list, dict)


def digest_of(terms: Sequence[str], functions: Sequence[Callable[..., Any]]) -> str:
    """sha256 of terms and functions: of what the functions do, with their helpers and constants, and not of
    their names, comments, line breaks or files."""
    found = [*terms, *(part for function in functions for part in _parts(function, set()))]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _parts(function: Callable[..., Any], seen: set[tuple[str, int]]) -> Iterator[str]:
    """A function's normalized source, then those of the helpers and constants that it names."""
    yield _normalized(function)
    outside = {**getattr(function, "__globals__", {}), **inspect.getclosurevars(function).nonlocals}
    for name in sorted(_names(function)):
        value = outside.get(name)
        this = name, id(value)  # files may have helpers of one name
        if this in seen or name not in outside or isinstance(value, type | ModuleType):
            continue
        seen.add(this)
        if isinstance(value, FunctionType) and value.__module__ not in RULE_MODULES:
            yield name
            yield from _parts(value, seen)
        elif isinstance(value, PLAIN):
            yield f"{name} = {value!r}"


def _normalized(function: Callable[..., Any]) -> str:
    """The source of a function as the parser understands it, without name, decorators and docstring."""
    found = _parsed(function)
    if not isinstance(found, ast.FunctionDef):
        # Python does not tell which one of several it is.
        return "; ".join(ast.unparse(each) for each in ast.walk(found) if isinstance(each, ast.Lambda))
    found.name, found.decorator_list = "_", []
    if ast.get_docstring(found) is not None:
        found.body = found.body[1:] or [ast.Pass()]
    return ast.unparse(found)


def _parsed(function: Callable[..., Any]) -> ast.stmt:
    """The definition of a function, or the statement that a lambda is in."""
    source = textwrap.dedent(inspect.getsource(function))
    try:
        return ast.parse(source).body[0]
    except SyntaxError:  # a lambda amid a call
        return ast.parse(f"({source.strip().rstrip(',')})").body[0]


def _names(function: Callable[..., Any]) -> set[str]:
    """The names that a function and the functions within it look up outside, and those of its defaults."""

    def of(code: CodeType) -> Iterator[str]:
        yield from (*code.co_names, *code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from of(constant)

    found = _parsed(function)
    given = [found.args] if isinstance(found, ast.FunctionDef) else []
    defaults = [each for args in given for each in (*args.defaults, *args.kw_defaults) if each is not None]
    named = (each.id for default in defaults for each in ast.walk(default) if isinstance(each, ast.Name))
    return {*of(function.__code__), *named}
