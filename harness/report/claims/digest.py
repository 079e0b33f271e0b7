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

RULE_MODULES = tuple(f"{RULES}{name}" for name in ("effects", "evidence", "claim", "figures"))

PLAIN = (str, int, float, bool, type(None), tuple, list, dict)


def digest_of(terms: Sequence[str], functions: Sequence[Callable[..., Any]]) -> str:
    """sha256 of terms and functions: of what the functions do, with their helpers and constants, and not of
    their names, comments, line breaks or files."""
    found = [*terms, *(part for function in functions for part in _parts(function, set()))]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _parts(function: Callable[..., Any], seen: set[str]) -> Iterator[str]:
    """A function's normalized source, then those of the helpers and constants that it names."""
    yield _normalized(function)
    outside = {**getattr(function, "__globals__", {}), **inspect.getclosurevars(function).nonlocals}
    for name in sorted(_names(function)):
        value = outside.get(name)
        if name in seen or name not in outside or isinstance(value, type | ModuleType):
            continue
        seen.add(name)
        if isinstance(value, FunctionType) and value.__module__ not in RULE_MODULES:
            yield name
            yield from _parts(value, seen)
        elif isinstance(value, PLAIN):
            yield f"{name} = {value!r}"


def _normalized(function: Callable[..., Any]) -> str:
    """The source of a function as the parser understands it, without name, decorators and docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda amid a call
        tree = ast.parse(f"({source.strip().rstrip(',')})")
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        lambdas = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
        return ast.unparse(lambdas[0])
    found.name, found.decorator_list = "_", []
    if ast.get_docstring(found) is not None:
        found.body = found.body[1:] or [ast.Pass()]
    return ast.unparse(found)


def _names(function: Callable[..., Any]) -> set[str]:
    """The names that a function and the functions within it look up outside."""

    def of(code: CodeType) -> Iterator[str]:
        yield from (*code.co_names, *code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from of(constant)

    return set(of(function.__code__))
